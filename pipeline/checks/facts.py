"""What the doctor found out about this machine: plain values, gathered by `pipeline.probes`, judged by `pipeline.checks`.

None, or nothing in a tuple, is "not known": a probe that gave no answer leaves its part at the defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Version = tuple[int, ...]


@dataclass(frozen=True)
class Asked:
    """What the settings ask of the machine; each field is the setting of that name."""

    gpu: str = "auto"
    recorded: str = "nvidia-h200"
    op: str = "all"
    gpus: tuple[int, ...] = ()
    jobs: int = 4
    slow_compile_s: float = 3.0
    keep_mb: int = 8192
    lock_mhz: int = 1500
    allow_unlocked: bool = False


@dataclass(frozen=True)
class Packages:
    """Python and its packages, by normalised names (lower case, dashes); `pinned` is constraints.txt, `wanted` pyproject.toml."""

    python: Version = ()
    installed: Mapping[str, str] = field(default_factory=dict)
    pinned: Mapping[str, str] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Host:
    """The machine round the GPU.

    container: its kind, None outside of one. gpu_present: what the stages go by. gpu_on_bus: PCI shows an NVIDIA GPU.
    kernel_driver: version of the driver's kernel module. quota_cores: what the control group allows. may_administer: the rights
    the driver asks for before it locks clocks. variables: the environment variables that matter here.
    """

    kernel: str = ""
    container: str | None = None
    gpu_present: bool = False
    gpu_on_bus: bool = False
    kernel_driver: str | None = None
    cores: int | None = None
    quota_cores: float | None = None
    shm_bytes: int | None = None
    may_administer: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Toolkit:
    """An nvcc: its path and version, e.g. 13.0.88, None where it does not answer."""

    path: str
    version: str | None = None


@dataclass(frozen=True)
class Build:
    """A tiny program that nvcc was given: what it needs, and why there is no cubin (empty: there is one)."""

    needs: str
    failure: str = ""
    cubin: bytes = b""


@dataclass(frozen=True)
class Compilers:
    """nvcc and its helpers. `used` is the one the settings lead to, else `why_none`; `installed` all that were found.

    home: $CUDA_HOME. gcc, gcc_version: the host compiler. codes: the architectures the used one builds for, e.g. sm_90.
    arch: the one asked for here. builds: the tiny programs tried.
    """

    used: Toolkit | None = None
    why_none: str = ""
    installed: tuple[Toolkit, ...] = ()
    home: str | None = None
    gcc: str | None = None
    gcc_version: str = ""
    codes: tuple[str, ...] = ()
    arch: str = ""
    builds: tuple[Build, ...] = ()


@dataclass(frozen=True)
class Process:
    """A process that computes on a GPU, as NVML lists it; `name` is empty where it lies outside of our container."""

    pid: int
    name: str = ""
    used_bytes: int | None = None


@dataclass(frozen=True)
class GpuState:
    """One GPU as NVML sees it. `lost`: why it does not answer. processes: None where NVML does not tell."""

    index: int
    lost: str = ""
    name: str = ""
    uuid: str = ""
    capability: Version | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    processes: tuple[Process, ...] | None = None
    compute_mode: int | None = None
    mig: bool | None = None
    persistence: bool | None = None
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    reasons: tuple[str, ...] = ()
    temperature_c: int | None = None


@dataclass(frozen=True)
class Nvml:
    """The driver's management library: why it does not work (empty: it does), driver, the CUDA version of it, the GPUs."""

    error: str = "not asked"
    driver: str | None = None
    cuda: Version | None = None
    gpus: tuple[GpuState, ...] = ()


@dataclass(frozen=True)
class Trial:
    """An allocation and a kernel on one GPU, in a process of its own. `visible`: its CUDA_VISIBLE_DEVICES.

    failure: what went wrong, empty when the answer was right. launched: a kernel ran, not just an allocation. cuda: the driver's
    CUDA version. free_bytes: what the context saw free.
    """

    visible: str
    failure: str = ""
    launched: bool = False
    cuda: Version | None = None
    free_bytes: int | None = None


@dataclass(frozen=True)
class PyTorch:
    """PyTorch, asked in a process of its own. `cuda`: the version it was built with; archs: what its kernels are built for."""

    error: str = "not asked"
    version: str = ""
    cuda: Version | None = None
    archs: tuple[str, ...] = ()
    available: bool = False


@dataclass(frozen=True)
class Folder:
    """A folder the pipeline writes to. `kind`: its file system's type, `mount` where that begins. error: why a file cannot be
    made there. write_ms: what a small file takes to be made and flushed, the median of a few.
    """

    path: str
    kind: str = ""
    mount: str = ""
    error: str = ""
    free_bytes: int | None = None
    write_ms: float | None = None


@dataclass(frozen=True)
class Recording:
    """The recorded timings of one GPU and operator; `error` when they cannot be replayed."""

    gpu: str
    op: str
    rows: int = 0
    workloads: int = 0
    error: str = ""


@dataclass(frozen=True)
class Facts:
    """All of it. `folders` by role: cache, scratch, outputs, data."""

    asked: Asked = field(default_factory=Asked)
    packages: Packages = field(default_factory=Packages)
    host: Host = field(default_factory=Host)
    compilers: Compilers = field(default_factory=Compilers)
    nvml: Nvml = field(default_factory=Nvml)
    trials: tuple[Trial, ...] = ()
    pytorch: PyTorch = field(default_factory=PyTorch)
    folders: Mapping[str, Folder] = field(default_factory=dict)
    recordings: tuple[Recording, ...] = ()
