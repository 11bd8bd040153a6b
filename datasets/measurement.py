"""A measurement: the typed outcome of one attempt to run one config on one workload."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from templates.workload import Workload

Status = Literal[
    "ok",
    "illegal",  # a constraint of the template says no
    "compile_error",
    "compile_timeout",
    "launch_error",
    "wrong_answer",
    "crash",  # the worker process died: illegal address, killed, nvcc crash
    "timeout",  # the worker hung and was killed at its deadline
    "contaminated",  # timed, but not trustworthy: foreign process, throttling, clock drift
]
STATUSES: tuple[str, ...] = get_args(Status)

Origin = Literal["random", "guided", "naive", "expert", "policy", "vendor"]
"""Who asked for the measurement. Only `random` rows are a fair sample of the legal space."""


@dataclass(frozen=True)
class Candidate:
    """What one asks a measurer to measure."""

    workload: Workload
    config: dict[str, int]
    origin: Origin = "random"


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of a kernel: registers per thread, spill bytes per thread, static shared memory."""

    registers: int
    spill_bytes: int
    static_smem_bytes: int


@dataclass(frozen=True)
class Conditions:
    """The GPU around one timing, as NVML shows it; None where NVML does not say."""

    sm_clock_before_mhz: int | None = None
    sm_clock_after_mhz: int | None = None
    clocks_locked: bool = False
    throttle_reasons: str = ""
    temperature_c: int | None = None
    foreign_processes: int | None = None


@dataclass(frozen=True)
class Measurement:
    """One attempt. `time_us` is the median of `samples_us`, and None unless `status` is "ok".

    `source` is who says so: "gpu", "replay" (a recorded GPU row), "cost_model" (predicted) or "fake" (tests).
    `error` is the largest |out - reference| / (e * magnitude) over all elements, <= 1 for a right answer.
    """

    workload: Workload
    config: dict[str, int]
    status: Status
    message: str = ""
    time_us: float | None = None
    samples_us: tuple[float, ...] = ()
    origin: Origin = "random"
    source: Literal["gpu", "replay", "cost_model", "fake"] = "gpu"
    gpu: str = ""
    nvcc: str = ""
    driver: str = ""
    template_version: str = ""
    l2: Literal["cold", "warm"] = "cold"
    error: float | None = None
    compile_s: float | None = None
    cache_hit: bool | None = None
    measured_at: str = ""
    resources: Resources | None = None
    conditions: Conditions = field(default_factory=Conditions)

    def __post_init__(self) -> None:
        if (self.status == "ok") != (self.time_us is not None):
            raise AssertionError(f"a {self.status} measurement with time_us={self.time_us}")
