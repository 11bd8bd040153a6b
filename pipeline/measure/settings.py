"""Settings of building, timing and the farm; defaults are those of the mission unless a measurement showed better."""

from dataclasses import dataclass, field

from templates.errors import InputError


@dataclass(frozen=True)
class BuildSettings:
    """How candidates are compiled.

    compiler: "nvcc" starts it anew for every source; "nvrtc" keeps `jobs` processes that compile with the NVRTC library.
    nvcc, host_compiler: None finds them. cache_dir: None is `$XDG_CACHE_HOME/cuda-agent` or `~/.cache/cuda-agent`; cache_mb:
    what it may take, the least recently used cubins go first (0: no bound). limit_s: wall seconds after which a compile is
    killed. slow_compile_s: above it the config is set aside for set_aside_s.
    """

    compiler: str = "nvcc"
    nvcc: str | None = None
    host_compiler: str | None = None
    cache_dir: str | None = None
    cache_mb: int = 4096
    flags: list[str] = field(default_factory=lambda: ["-std=c++17"])
    jobs: int = 4
    limit_s: float = 30.0
    slow_compile_s: float = 3.0
    set_aside_s: float = 600.0

    def __post_init__(self) -> None:
        if self.jobs < 1 or self.limit_s <= 0 or self.cache_mb < 0:
            raise InputError("farm.build: jobs must be 1 or more, limit_s above 0, cache_mb 0 or more")
        if self.compiler not in ("nvcc", "nvrtc"):
            raise InputError(f"farm.build.compiler={self.compiler}: use nvcc or nvrtc")


@dataclass(frozen=True)
class TimingSettings:
    """How one candidate is timed.

    warmup, samples: launches, fewer for long kernels: warm-up and timing together stay near budget_ms, with at least the
    check's launch as warm-up and 2 timed. Timing stops early, at min_samples or more, once the half-width of the median's
    confidence interval is below `precision` of the median. hopeless_factor: above 0, a candidate slower than that many
    times the best of its workload stops after one sample. l2: "cold" flushes L2 before each launch, "warm" does not.
    retries: how often a contaminated timing is repeated before it is recorded as such. clock_drop: the fall of the SM
    clock during the timing that contaminates it. keep_mb: device memory for inputs and references of recent workloads.
    """

    warmup: int = 50
    samples: int = 100
    min_samples: int = 5
    precision: float = 0.005
    budget_ms: float = 400.0
    hopeless_factor: float = 0.0
    l2: str = "cold"
    retries: int = 2
    clock_drop: float = 0.1
    keep_mb: int = 8192


@dataclass(frozen=True)
class ClockSettings:
    """mode: "auto" and "shared" observe, "replay" times nothing; "dedicated" locks the SM clock at lock_mhz and restores it
    afterwards.

    allow_unlocked: go on, observing, where locking is not permitted. CUDA_AGENT_CLOCKS=observe in the environment wins.
    """

    mode: str = "auto"
    lock_mhz: int = 1500
    allow_unlocked: bool = False

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "shared", "dedicated", "replay"):
            raise InputError(f"farm.clocks.mode={self.mode}: use auto, shared, dedicated or replay")


@dataclass(frozen=True)
class RaySettings:
    """Where `kind: ray` finds its GPUs.

    address: `host:port` of a running head (`ray start`); empty: Ray is started here, on loopback, and ended afterwards.
    gpus: how many to use (0: all there are). Where Ray is started here, compilers run `farm.build.jobs` at a time; on a
    cluster, as many as it has CPUs.
    """

    address: str = ""
    gpus: int = 0

    def __post_init__(self) -> None:
        if self.gpus < 0:
            raise InputError(f"farm.ray.gpus={self.gpus}: use 0 (all) or more")


@dataclass(frozen=True)
class FarmSettings:
    """The GPUs as a measurer: kind "local", those of this machine, or "ray", those of a Ray cluster.

    gpus: indices, all visible ones when empty. look_ahead: candidates rendered and built ahead, per GPU. deadline_s:
    the longest one phase of a candidate (check, timing) may take; prepare_s: inputs and references of a new workload;
    start_s: a worker's start. log_dir: where workers write `worker-<gpu>.log` (None: nowhere). vendor: what prepares
    the vendor's kernel, `module:function`. engine: what runs in the worker, `module:class`, replaced in tests.
    """

    kind: str = "local"
    gpus: list[int] = field(default_factory=list)
    look_ahead: int = 64
    deadline_s: float = 10.0
    prepare_s: float = 120.0
    start_s: float = 120.0
    log_dir: str | None = None
    vendor: str = "pipeline.baselines.vendor:prepare"
    engine: str = "pipeline.measure.engine:GpuEngine"
    build: BuildSettings = field(default_factory=BuildSettings)
    timing: TimingSettings = field(default_factory=TimingSettings)
    clocks: ClockSettings = field(default_factory=ClockSettings)
    ray: RaySettings = field(default_factory=RaySettings)

    def __post_init__(self) -> None:
        if self.kind not in ("local", "ray"):
            raise InputError(f"farm.kind={self.kind}: use local or ray")
        if self.gpus and self.ray.address:
            raise InputError("farm.gpus picks GPUs of this machine: with farm.ray.address, say how many with farm.ray.gpus")
