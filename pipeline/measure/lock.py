"""Locking the SM clock, for `gpu=dedicated` only, and giving it back on every way out.

Restored at the normal end, on exceptions, SIGINT and SIGTERM, and by a watchdog process when ours is killed outright.
`python -m pipeline.measure.lock <nvml module> <pci bus id>...` is that watchdog: it waits for its stdin to end.
"""

import atexit
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from pipeline.measure.clocks import load_nvml, observe_only
from pipeline.measure.settings import ClockSettings
from templates.errors import InputError

READ_BACK_S = 3.0
TOLERANCE = 0.03
"""NVML rounds a request to the nearest clock the GPU supports (steps of 15 MHz)."""

log = logging.getLogger(__name__)


class ClockLock:
    """Locks the SM clock of some GPUs on entering and restores it on leaving; does nothing unless asked to.

    `locked_mhz` is the clock read back after locking, None when nothing is locked. InputError when locking is asked for but
    not permitted, not supported or without effect, unless `allow_unlocked`.
    """

    def __init__(self, settings: ClockSettings, pci_bus_ids: list[str], nvml: Any | None) -> None:
        if settings.mode not in ("auto", "shared", "dedicated"):
            raise InputError(f"gpu mode {settings.mode!r} is unknown; use auto, shared or dedicated")
        self.settings, self.ids, self.nvml = settings, pci_bus_ids, nvml
        self.locked_mhz: int | None = None
        self._held: list[Any] = []
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._previous: Any = None

    def __enter__(self) -> "ClockLock":
        if self.settings.mode != "dedicated":
            return self
        if observe_only():
            log.info("CUDA_AGENT_CLOCKS=observe: clocks are not locked")
            return self
        problem = self._lock() if self.nvml is not None else "NVML is not available"
        if problem:
            self.restore()
            mhz = self.settings.lock_mhz
            text = f"cannot lock the GPU's clocks ({problem}); an administrator can: nvidia-smi -lgc {mhz},{mhz}"
            if not self.settings.allow_unlocked:
                raise InputError(f"{text}; or use gpu=auto, which only observes")
            log.warning("%s; going on without", text)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.restore()

    def restore(self) -> None:
        """Give the clocks back; safe to call more than once."""
        for handle in self._held:
            try:
                self.nvml.nvmlDeviceResetGpuLockedClocks(handle)  # type: ignore[union-attr]
            except self.nvml.NVMLError as error:  # type: ignore[union-attr]
                log.error("could not restore the GPU's clocks (%s): run nvidia-smi -rgc", error)
        self._held, self.locked_mhz = [], None
        if self._watchdog is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._watchdog.communicate(b"done\n", timeout=10)
            self._watchdog = None
            atexit.unregister(self.restore)
            self._reset_handler()

    def _lock(self) -> str:
        """Lock every GPU and read back; says what went wrong, or nothing."""
        nvml, mhz = self.nvml, self.settings.lock_mhz
        assert nvml is not None
        try:
            handles = [nvml.nvmlDeviceGetHandleByPciBusId(pci.encode()) for pci in self.ids]
            self._start_watchdog()
            for handle in handles:
                self._held.append(handle)  # before the call: a lock that fails half-way is given back too
                nvml.nvmlDeviceSetGpuLockedClocks(handle, mhz, mhz)
            clocks = [self._read_back(handle) for handle in handles]
        except nvml.NVMLError as error:
            return str(error)
        wrong = [clock for clock in clocks if abs(clock - mhz) > TOLERANCE * mhz]
        if wrong:
            return f"asked for {mhz} MHz, read back {wrong[0]} MHz"
        self.locked_mhz = clocks[0]
        return ""

    def _read_back(self, handle: Any) -> int:
        assert self.nvml is not None
        deadline = time.monotonic() + READ_BACK_S
        while True:
            clock = int(self.nvml.nvmlDeviceGetClockInfo(handle, self.nvml.NVML_CLOCK_SM))
            if abs(clock - self.settings.lock_mhz) <= TOLERANCE * self.settings.lock_mhz or time.monotonic() > deadline:
                return clock
            time.sleep(0.05)

    def _start_watchdog(self) -> None:
        assert self.nvml is not None
        root = Path(__file__).resolve().parents[2]
        path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._watchdog = subprocess.Popen(
            [sys.executable, "-m", "pipeline.measure.lock", self.nvml.__name__, *self.ids],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        atexit.register(self.restore)
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._on_sigterm)

    def _reset_handler(self) -> None:
        if self._previous is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous
        self.restore()
        if callable(previous):
            previous(number, frame)
        raise SystemExit(128 + number)


def watch(nvml_module: str, pci_bus_ids: list[str]) -> None:
    """Wait for stdin to end; without the word "done" before it, the owner was killed: restore in its place."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.stdin.buffer.read().strip() == b"done" or observe_only():
        return
    nvml = load_nvml(nvml_module)
    for pci in pci_bus_ids if nvml is not None else []:
        assert nvml is not None
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlDeviceResetGpuLockedClocks(nvml.nvmlDeviceGetHandleByPciBusId(pci.encode()))


if __name__ == "__main__":
    watch(sys.argv[1], sys.argv[2:])
