"""What runs on the nodes of a Ray cluster: compiling, and looking after one GPU's worker. Plain functions and a class."""

import os
import platform
from dataclasses import replace

from pipeline.measure import clocks
from pipeline.measure.build import Compiler, Cubin, build, find_compiler, open_cache
from pipeline.measure.cache import Cache
from pipeline.measure.jobs import Hello, Job, Outcome, Tools, VendorJob
from pipeline.measure.lock import ClockLock
from pipeline.measure.nvcc import BuildFailure
from pipeline.measure.settings import BuildSettings, FarmSettings
from pipeline.measure.worker import Worker
from templates.errors import InputError

_COMPILERS: dict[str, tuple[Compiler, Cache]] = {}
"""What this process compiles with, found once, by settings."""


def check_compiler(settings: BuildSettings, version: str) -> None:
    """InputError, one line with the node's name, unless its compiler is the one that the cache's keys and the rows name."""
    try:
        found = _compiler(settings)[0].version
    except InputError as error:
        raise InputError(f"node {platform.node()}: {error}") from None
    if found != version:
        raise InputError(f"node {platform.node()} has compiler {found}, this machine {version}: install the same")


def compile_source(source: str, arch: str, settings: BuildSettings, version: str) -> Cubin | BuildFailure:
    """The cubin of a source from this node's cache or compiler, which has to be of that version."""
    check_compiler(settings, version)
    return build(source, arch, settings, *_compiler(settings))


def _compiler(settings: BuildSettings) -> tuple[Compiler, Cache]:
    key = repr(settings)
    if key not in _COMPILERS:
        _COMPILERS[key] = (find_compiler(settings), open_cache(settings))
    return _COMPILERS[key]


class GpuKeeper:
    """The keeper of one GPU: the process that Ray lends it to. It owns a disposable worker process, as the local farm does.

    Only on the farm's own node does the worker write its log where the farm's settings say.
    """

    def __init__(self, settings: FarmSettings, number: int, farm_node: str) -> None:
        import ray  # only where Ray started us

        if ray.get_runtime_context().get_node_id() != farm_node:
            settings = replace(settings, log_dir=None)
        self.settings = settings
        self.worker = Worker(settings, number, os.environ.get("CUDA_VISIBLE_DEVICES", "0"))
        self._lock: ClockLock | None = None
        self._pci_bus_id = ""

    def ready(self) -> int:
        """Our process id, once there is a GPU for us."""
        return os.getpid()

    def start(self) -> Hello:
        """Start the worker, or start it anew."""
        hello = self.worker.start()
        self._pci_bus_id = hello.pci_bus_id
        return hello

    def equip(self, tools: Tools) -> str:
        """Lock this GPU's clock where that is asked for, the first time, and hand the helper kernels over."""
        if self._lock is None:
            self._lock = ClockLock(self.settings.clocks, [self._pci_bus_id], clocks.load_nvml())
            self._lock.__enter__()
        return self.worker.equip(tools, self._lock.locked_mhz)

    def run(self, job: Job | VendorJob) -> tuple[Outcome, bool]:
        """The outcome of a job, and whether the worker is still alive."""
        return self.worker.run(job), self.worker.alive

    def close(self) -> None:
        """End the worker, give the clock back."""
        self.worker.close()
        if self._lock is not None:
            self._lock.restore()
