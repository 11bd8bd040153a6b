"""A disposable process that owns one GPU: whatever a candidate does to it costs one row and a restart.

This is the farm's end, `server` the process. A plain child process, not multiprocessing's: it imports what it needs and
nothing of the stage that started it, so a restart is quick.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from pipeline.measure.jobs import Hello, Job, Outcome, Start, Tools, VendorJob
from pipeline.measure.settings import FarmSettings
from templates.errors import InputError

ROOT = Path(__file__).resolve().parents[2]

log = logging.getLogger(__name__)


class WorkerLostError(RuntimeError):
    """The worker does not start."""


class WorkerGoneError(WorkerLostError):
    """The worker vanished in the middle of a job, and nothing says that the candidate did it: its node went down, say."""


class NoRoomError(WorkerLostError):
    """There is no GPU for the worker any more; asking again would not help."""


class GpuWorker(Protocol):
    """What the farm needs of whatever drives one GPU: `Worker`, or its stand-in for a GPU elsewhere.

    Used from one thread, but for `kill`.
    """

    number: int

    @property
    def alive(self) -> bool:
        """Whether it can take a job; `start` and `equip` it otherwise."""

    def start(self) -> Hello:
        """Start it, or start it anew."""

    def equip(self, tools: Tools, locked_mhz: int | None) -> str:
        """Hand over the helper kernels; notes for the log."""

    def run(self, job: Job | VendorJob) -> Outcome:
        """Do a job. WorkerGoneError when it vanished through no known fault of the candidate."""

    def kill(self) -> None:
        """End it at once."""

    def close(self) -> None:
        """Let it end."""


class Worker:
    """The farm's end of one worker process; `visible` is the CUDA_VISIBLE_DEVICES entry it is confined to.

    `start` (again) after `alive` turned false. Used from one thread at a time.
    """

    def __init__(self, settings: FarmSettings, number: int, visible: str) -> None:
        self.settings, self.number = settings, number
        self.log_path = Path(settings.log_dir) / f"worker-{number}.log" if settings.log_dir else None
        self.alive = False
        self.starts = 0
        self._env = _environment(visible)
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def start(self) -> Hello:
        """Start the process; InputError when it says that there is no GPU, WorkerLostError when it says nothing."""
        self.kill()
        ours, theirs = Pipe()
        command = [sys.executable, "-m", "pipeline.measure.server", str(theirs.fileno()), str(self.log_path or "")]
        # Its own session: Ctrl-C in the terminal is the farm's business.
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=self._env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if self.log_path else None, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self._pipe, self.alive = ours, True
        self.starts += 1
        with contextlib.suppress(BrokenPipeError):  # it died already: the wait below says how
            ours.send(Start(self.settings, os.getpid()))
        hello = self._answer("start")
        if isinstance(hello, Outcome):
            raise WorkerLostError(f"worker {self.number} did not start: {hello.message}{self._see_log()}")
        assert isinstance(hello, Hello)
        return hello

    def equip(self, tools: Tools, locked_mhz: int | None) -> str:
        """Hand over the helper kernels; returns the worker's notes on its timer."""
        notes = self._ask("equip", (tools, locked_mhz), "prepare")
        if isinstance(notes, Outcome):
            raise WorkerLostError(f"worker {self.number} could not calibrate: {notes.message}{self._see_log()}")
        return str(notes)

    def run(self, job: Job | VendorJob) -> Outcome:
        """Do a job; a crash or a missed deadline is its outcome, and then `alive` is false."""
        log.info("worker %d: %s", self.number, job)  # before the launch: the culprit is known whatever happens
        outcome = self._ask("measure" if isinstance(job, Job) else "vendor", job, "check")
        assert isinstance(outcome, Outcome)
        if outcome.fatal or outcome.status in ("crash", "timeout"):
            log.warning("worker %d: %s: %s; restarting", self.number, job, outcome.message)
            self.kill()
        return outcome

    def kill(self) -> None:
        """End the process, at once; safe to call twice."""
        self.alive = False
        process, self._process = self._process, None
        pipe, self._pipe = self._pipe, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        if pipe is not None:
            pipe.close()

    def close(self) -> None:
        """Let the process end by itself, then make sure."""
        if self._pipe is not None and self._process is not None:
            self._pipe.close()
            self._pipe = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
        self.kill()

    def _ask(self, what: str, payload: object, first_phase: str) -> object:
        assert self._pipe is not None
        with contextlib.suppress(BrokenPipeError):
            self._pipe.send((what, payload))
        return self._answer(first_phase)

    def _answer(self, phase: str) -> object:
        """The answer to what was sent, each phase within its limit; an Outcome when there is none."""
        assert self._pipe is not None
        started = time.perf_counter()
        while True:
            limit = limit_s(self.settings, phase)
            if not self._pipe.poll(limit):
                self.kill()
                return Outcome("timeout", f"no answer within {limit:g} s ({phase})", busy_s=time.perf_counter() - started)
            try:
                kind, value = self._pipe.recv()
            except (EOFError, ConnectionResetError):
                return Outcome("crash", f"the worker died ({phase}): {self._epitaph()}", busy_s=time.perf_counter() - started)
            if kind == "phase":
                phase = value
            elif kind == "input":
                self.kill()
                raise InputError(value)
            elif kind == "raised":
                return Outcome("crash", f"{value} ({phase})", fatal=True, busy_s=time.perf_counter() - started)
            else:
                return value

    def _epitaph(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        if code >= 0:
            return f"exit status {code}"
        with contextlib.suppress(ValueError):
            return f"signal {-code} ({signal.Signals(-code).name})"
        return f"signal {-code}"

    def _see_log(self) -> str:
        return f"; see {self.log_path}" if self.log_path else ""


def limit_s(settings: FarmSettings, phase: str) -> float:
    """How long a phase may take."""
    return {"start": settings.start_s, "prepare": settings.prepare_s}.get(phase, settings.deadline_s)


def _environment(visible: str) -> Mapping[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # NVML counts in PCI order, CUDA by speed unless told: where we number the GPUs ourselves, both must agree.
    order = {} if "CUDA_VISIBLE_DEVICES" in os.environ else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {**os.environ, "PYTHONPATH": path, **order, "CUDA_VISIBLE_DEVICES": visible}
