"""An engine without a GPU for the farm's fault tests: the config's block_m says what happens in the worker."""

import ctypes
import os
import signal
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from datasets.device import H200
from datasets.measurement import Conditions
from pipeline.measure.jobs import Hello, Job, Outcome, Tools, VendorJob
from pipeline.measure.settings import TimingSettings
from templates.errors import InputError


class FakeEngine:
    def __init__(self, timing: TimingSettings) -> None:
        self.jobs = 0

    def hello(self) -> Hello:
        return Hello(H200, "580.1", "0000:65:00.0")

    def equip(self, tools: Tools, locked_mhz: int | None) -> str:
        return f"{len(tools.references)} references"

    def measure(self, job: Job, phase: Callable[[str], None]) -> Outcome:
        self.jobs += 1
        phase("check")
        what = job.candidate.config["block_m"]
        FAULTS.get(what, lambda: None)()
        phase("time")
        us = 100.0 + job.candidate.config["block_n"]
        return Outcome("ok", f"job {self.jobs}, best {job.best_us}", (us, us, us), 0.1, Conditions(1980, 1980), busy_s=0.01)

    def vendor(self, job: VendorJob, phase: Callable[[str], None]) -> Outcome:
        return Outcome("ok", job.prepare, (50.0,), busy_s=0.01)


class SteadyEngine(FakeEngine):
    """Measures everything, in a hundredth of a second, a config always with the same time."""

    def measure(self, job: Job, phase: Callable[[str], None]) -> Outcome:
        time.sleep(0.01)
        us = 10.0 + zlib.crc32(str(job.candidate).encode()) % 10_000 / 100.0
        return Outcome("ok", "", (us, us, us), 0.1, Conditions(1980, 1980), busy_s=0.01)


class NoGpuEngine(FakeEngine):
    def __init__(self, timing: TimingSettings) -> None:
        raise InputError("no usable GPU (none here); use gpu=replay to work from recorded timings")


class DyingEngine(FakeEngine):
    """Starts once, as the file named by DIE_AFTER tells, and never again."""

    def __init__(self, timing: TimingSettings) -> None:
        super().__init__(timing)
        path = Path(os.environ["DIE_AFTER"])
        if path.exists():
            os._exit(7)
        path.touch()


def _hang() -> None:
    time.sleep(60)


def _segfault() -> None:
    ctypes.string_at(0)


def _raise() -> None:
    raise ValueError("a fault of ours\nwith a second line")


FAULTS: dict[int, Callable[[], object]] = {
    8: _hang, 16: lambda: os._exit(3), 32: lambda: os.kill(os.getpid(), signal.SIGKILL), 64: _segfault, 256: _raise,
}  # fmt: skip
