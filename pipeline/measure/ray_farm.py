"""The farm over Ray: the same farm, with its workers and builds elsewhere.

A keeper holds each GPU (see `ray_node`) and drives the same worker process as the local farm; compiles run as tasks on the
cluster's CPUs. When a keeper or its node dies, its candidate is queued once more and a new keeper is asked for.
"""

import contextlib
import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.measure import ray_node
from pipeline.measure.build import BuildPool, Cubin
from pipeline.measure.cache import Entry
from pipeline.measure.clocks import observe_only
from pipeline.measure.farm import GpuFarm, visible_gpus
from pipeline.measure.jobs import Hello, Job, Outcome, Tools, VendorJob
from pipeline.measure.nvcc import BuildFailure
from pipeline.measure.ray_cluster import Cluster, LostError
from pipeline.measure.settings import BuildSettings, ClockSettings, FarmSettings
from pipeline.measure.worker import GpuWorker, NoRoomError, WorkerGoneError, WorkerLostError
from templates.errors import InputError

ROOM_S = 30.0
"""How long a keeper that died may wait for a GPU: its own is free at once, unless its node is gone."""

SLACK_S = 30.0
"""What Ray may take beyond the deadlines that a keeper itself keeps."""

log = logging.getLogger(__name__)


class RayWorker:
    """The farm's end of one GPU of the cluster; its verbs are those of `worker.Worker`."""

    def __init__(self, cluster: Cluster, settings: FarmSettings, number: int) -> None:
        self.cluster, self.settings, self.number = cluster, settings, number
        self.alive = False
        self._keeper: Any | None = None
        self._room_s = settings.start_s
        self.pid = 0

    def start(self) -> Hello:
        """Start the worker, with a new keeper where there is none; NoRoomError when the cluster has no GPU for it."""
        if self._keeper is None:
            self._keeper = self.cluster.actor(ray_node.GpuKeeper, self.settings, self.number, self.cluster.here())
            try:
                self.pid = self._ask(self._room_s, "ready")
            except WorkerGoneError as error:
                raise NoRoomError(f"{error}: the cluster has no free GPU for it; farm.ray.gpus=N takes fewer") from None
            self._room_s = ROOM_S
        hello = self._ask(self.settings.start_s + SLACK_S, "start")
        assert isinstance(hello, Hello)
        self.alive = True
        return hello

    def equip(self, tools: Tools, locked_mhz: int | None) -> str:
        """Hand over the helper kernels. Clocks are the keeper's business: it is on the machine that has them."""
        return str(self._ask(self.settings.prepare_s + SLACK_S, "equip", tools))

    def run(self, job: Job | VendorJob) -> Outcome:
        """Do a job; WorkerGoneError when the keeper or its node died over it."""
        log.info("worker %d: %s", self.number, job)  # before the launch: the culprit is known whatever happens
        limit_s = self.settings.prepare_s + 4 * self.settings.deadline_s + SLACK_S
        outcome, self.alive = self._ask(limit_s, "run", job)
        assert isinstance(outcome, Outcome)
        return outcome

    def kill(self) -> None:
        """End the keeper, and with it the worker; safe to call twice."""
        self.alive = False
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            self.cluster.kill(keeper)

    def close(self) -> None:
        """Let the worker end by itself and the clock be given back, then make sure."""
        if self._keeper is not None:
            with contextlib.suppress(WorkerLostError, InputError):
                self._ask(SLACK_S, "close")
        self.kill()

    def _ask(self, limit_s: float, what: str, *arguments: object) -> Any:
        keeper = self._keeper
        if keeper is None:
            raise WorkerGoneError(f"worker {self.number} was ended")
        try:
            return self.cluster.get(getattr(keeper, what).remote(*arguments), limit_s)
        except LostError as error:
            self.kill()
            raise WorkerGoneError(f"worker {self.number} was lost ({what}): {error}") from None


class RayBuildPool(BuildPool):
    """Builds on the cluster's CPUs, as many at a time as it has. What is in this machine's cache is not asked for again."""

    def __init__(self, settings: BuildSettings, arch: str, cluster: Cluster) -> None:
        super().__init__(replace(settings, jobs=cluster.cpus), arch)
        self.cluster = cluster
        self._asked: set[Any] = set()
        self._closed = False
        self._guard = threading.Lock()

    def check_nodes(self) -> None:
        """InputError unless every node has the compiler that this machine has."""
        nodes, wanted = self.cluster.nodes(), (self.settings, self.compiler.version)
        asked = {node: self.cluster.task(ray_node.check_compiler, *wanted, node=node) for node in nodes}
        for node, reference in asked.items():
            try:
                self.cluster.get(reference, SLACK_S)
            except LostError as error:
                raise InputError(f"node {nodes[node]} does not compile: {error}") from None

    def make(self, source: str) -> Cubin | BuildFailure:
        """Build one source somewhere in the cluster, unless it is in the cache here."""
        key = self._key(source)
        if (entry := self.cache.load(key)) is not None:
            return Cubin(key, entry.code, dict(entry.resources), entry.compile_s, cache_hit=True)
        try:
            made = self._on_cluster(source)
        except LostError as error:
            return BuildFailure("crash", f"the build was lost: {error}", 0.0)
        if isinstance(made, Cubin) and self.cache.load(key) is None:  # not there yet: the node's cache is another one
            self.cache.store(key, Entry(made.code, made.entries, made.compile_s))
        return made

    def close(self) -> None:
        """Drop what is waiting, interrupt what is under way."""
        with self._guard:
            self._closed = True
            for reference in self._asked:
                self.cluster.cancel(reference)
        self._threads.shutdown(wait=True, cancel_futures=True)  # before Ray ends, which they wait for
        super().close()

    def _on_cluster(self, source: str) -> Cubin | BuildFailure:
        with self._guard:
            if self._closed:
                raise LostError("the farm is closed")
            reference = self.cluster.task(ray_node.compile_source, source, self.arch, self.settings, self.compiler.version)
            self._asked.add(reference)
        try:
            result: Cubin | BuildFailure = self.cluster.get(reference)
            return result
        finally:
            with self._guard:
                self._asked.discard(reference)


class RayFarm(GpuFarm):
    """Measures candidates on the GPUs of a Ray cluster, or of this machine through Ray. A `Measurer` with source "gpu".

    InputError as the local farm's, and where Ray is not installed or the cluster cannot be joined.
    """

    cluster: Cluster | None = None

    def __init__(self, settings: FarmSettings, gpu_indices: Sequence[int] | None = None) -> None:
        if observe_only():  # said here, it has to hold on every node
            settings = replace(settings, clocks=ClockSettings())
        super().__init__(settings, gpu_indices)

    def close(self) -> None:
        """End keepers, workers and builds, and Ray where it was started here."""
        super().close()
        cluster, self.cluster = self.cluster, None
        if cluster is not None:
            cluster.close()

    def _find_workers(self, indices: list[int]) -> list[GpuWorker]:
        names = ",".join(name for _, name in visible_gpus(indices)) if indices else None
        self.cluster = Cluster(self.settings, names)
        return [RayWorker(self.cluster, self.settings, number) for number in range(self.cluster.gpus)]

    def _open_pool(self, arch: str) -> BuildPool:
        assert self.cluster is not None
        pool = RayBuildPool(self.settings.build, arch, self.cluster)
        if not self.cluster.starts_here:
            try:
                pool.check_nodes()
            except BaseException:
                pool.close()
                raise
        return pool

    def _lock_clocks(self, pci_bus_ids: list[str]) -> None:
        """Nothing: each keeper locks its own GPU."""
