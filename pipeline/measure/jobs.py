"""What the farm and its workers say to each other; plain values that travel through a pipe."""

from dataclasses import dataclass, field

from datasets.device import Device
from datasets.measurement import Candidate, Conditions, Status
from pipeline.measure.settings import FarmSettings
from templates.knob import config_text
from templates.workload import Workload


@dataclass(frozen=True)
class Start:
    """The first message to a worker."""

    settings: FarmSettings
    parent: int


@dataclass(frozen=True)
class Hello:
    """A worker has its GPU: what it is, its driver, how NVML knows it."""

    device: Device
    driver: str
    pci_bus_id: str


@dataclass(frozen=True)
class Tools:
    """Cubins every job needs: the measurer's own kernels, and the references by operator and dtype, e.g. `matmul/f32`."""

    check: bytes
    references: dict[str, bytes]


@dataclass(frozen=True)
class Job:
    """One candidate for a worker. `best_us`: the best time known on its workload, to stop hopeless ones early."""

    candidate: Candidate
    code: bytes
    best_us: float | None = None

    def __str__(self) -> str:
        return f"{self.candidate.workload} {config_text(self.candidate.config)}"


@dataclass(frozen=True)
class VendorJob:
    """Time what `prepare` (`module:function` of workload and stream) queues, by the same timer."""

    workload: Workload
    prepare: str

    def __str__(self) -> str:
        return f"{self.workload} {self.prepare}"


@dataclass(frozen=True)
class Outcome:
    """What came of a job. `busy_s`: the time the worker spent launching and waiting for the GPU."""

    status: Status
    message: str = ""
    samples_us: tuple[float, ...] = ()
    error: float | None = None
    conditions: Conditions = field(default_factory=Conditions)
    busy_s: float = 0.0
    fatal: bool = False
    """The worker is of no more use: its context is lost."""
