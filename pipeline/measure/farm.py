"""The local GPUs as a measurer: builds run ahead in a pool, each GPU's worker times one candidate at a time."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

from datasets.device import Device
from datasets.measurement import Candidate, Measurement
from pipeline.measure import clocks
from pipeline.measure.build import Aside, BuildPool, Cubin
from pipeline.measure.jobs import Hello, Job, Outcome, Tools, VendorJob
from pipeline.measure.lock import ClockLock
from pipeline.measure.nvcc import BuildFailure
from pipeline.measure.rows import row_of
from pipeline.measure.settings import FarmSettings
from pipeline.measure.stopwatch import Stopwatch
from pipeline.measure.worker import GpuWorker, NoRoomError, Worker, WorkerGoneError, WorkerLostError
from templates.errors import InputError
from templates.knob import config_text
from templates.render import render, render_reference
from templates.space import violations
from templates.template import load_template, operators
from templates.workload import Workload

CHECK_SOURCE = Path(__file__).with_name("check.cu")
RESTARTS = 3
"""Attempts to start a worker anew after a crash before its GPU is given up."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Task:
    candidate: Candidate
    built: Cubin | None  # None: the vendor's kernel
    future: "Future[Measurement]"
    again: bool = False  # a worker vanished with it before


class GpuFarm:
    """Measures candidates on the visible GPUs, one worker process each. A `Measurer` with source "gpu".

    InputError, one line, where there is no usable GPU or compiler, or clocks cannot be locked though asked to. Use it as a
    context manager, or call `close`.
    """

    source = "gpu"

    def __init__(self, settings: FarmSettings | None = None, gpu_indices: Sequence[int] | None = None) -> None:
        self.settings = settings or FarmSettings()
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._best: dict[Workload, float] = {}
        self._counts = {"measured": 0, "restarts": 0}
        self._busy_s = 0.0
        self._active = Stopwatch()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._pool: BuildPool | None = None
        self._clock_lock: ClockLock | None = None
        self.workers: list[GpuWorker] = []
        try:
            self.workers = self._find_workers(list(gpu_indices) if gpu_indices is not None else self.settings.gpus)
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        with ThreadPoolExecutor(len(self.workers)) as starters:
            hellos = list(starters.map(_start, self.workers))
        self._hello = hellos[0]
        if len({hello.device.compute_capability for hello in hellos}) > 1:
            raise InputError("the GPUs differ in compute capability; choose alike ones with farm.gpus")
        self.device: Device = self._hello.device
        self._lock_clocks([hello.pci_bus_id for hello in hellos])
        major, minor = self.device.compute_capability
        self._pool = self._open_pool(f"sm_{major}{minor}")
        self._tools = self._build_tools(self._pool)
        with ThreadPoolExecutor(len(self.workers)) as starters:
            for worker, notes in zip(self.workers, starters.map(self._equip, self.workers), strict=True):
                log.info("GPU %d, %s: %s", worker.number, self.device.name, notes)
        self._working = len(self.workers)
        for worker in self.workers:
            self._threads.append(threading.Thread(target=self._work, args=(worker,), daemon=True))
            self._threads[-1].start()

    def _find_workers(self, indices: list[int]) -> list[GpuWorker]:
        """A worker, not started yet, for each GPU to use."""
        return [Worker(self.settings, number, name) for number, name in visible_gpus(indices)]

    def _open_pool(self, arch: str) -> BuildPool:
        """What builds for these GPUs."""
        return BuildPool(self.settings.build, arch)

    def _lock_clocks(self, pci_bus_ids: list[str]) -> None:
        """Lock the GPUs' clocks where that is asked for."""
        self._clock_lock = ClockLock(self.settings.clocks, pci_bus_ids, clocks.load_nvml())
        self._clock_lock.__enter__()

    def _equip(self, worker: GpuWorker) -> str:
        return worker.equip(self._tools, self._clock_lock.locked_mhz if self._clock_lock is not None else None)

    def _build_tools(self, pool: BuildPool) -> Tools:
        building = {name: (path, pool.submit(text)) for name, (path, text) in tool_sources().items()}
        code: dict[str, bytes] = {}
        for name, (path, future) in building.items():
            result = future.result()
            if isinstance(result, BuildFailure):
                raise InputError(f"{path.name} does not build with {pool.compiler.path}: {result.message}")
            code[name] = result.code
        return Tools(code.pop(""), code)

    def known(self, workload: Workload) -> Sequence[dict[str, int]] | None:
        """None: every legal config can be measured."""
        return None

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Measurement]:
        """One measurement per candidate, in order, each as soon as it and those before it are there.

        Candidates are rendered and built up to `look_ahead` per GPU ahead. A candidate of origin "vendor" (config {}) is the
        vendor's kernel. InputError when no GPU is left.
        """
        waiting: deque[Future[Measurement]] = deque()
        upcoming = iter(candidates)
        ahead = self.settings.look_ahead * len(self.workers)
        self._active.start()
        try:
            while True:
                while len(waiting) < ahead and (candidate := next(upcoming, None)) is not None:
                    waiting.append(self._submit(candidate))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            self._active.stop()

    def measure_vendor(self, workload: Workload) -> Measurement:
        """The vendor's kernel on a workload, by the very same timer; config {}, origin "vendor"."""
        return next(iter(self.measure([Candidate(workload, {}, "vendor")])))

    def set_aside_s(self, candidate: Candidate) -> float:
        """Seconds for which a config is still set aside because its compile was slow; 0 when it is not."""
        assert self._pool is not None
        return self._pool.set_aside_s(render(load_template(candidate.workload.op), candidate.config, candidate.workload.dtype))

    def aside(self) -> list[Aside]:
        """The configs set aside at present because their compile was slow, by operator and config, the slowest first."""
        assert self._pool is not None
        return self._pool.aside()

    def stats(self) -> dict[str, float]:
        """Candidates measured and a second, restarts, the GPUs' busy share while measuring, builds waiting for a GPU, and the
        build pool's counts.
        """
        assert self._pool is not None
        wall = self._active.seconds
        return {
            **self._counts,
            "configs_per_s": self._counts["measured"] / wall if wall else 0.0,
            "gpu_busy_share": min(1.0, self._busy_s / (wall * len(self.workers))) if wall else 0.0,
            "gpu_queue_depth": self._tasks.qsize(),
            **{f"build_{name}": value for name, value in self._pool.stats().items()},
        }

    def close(self) -> None:
        """End workers and builds, restore clocks."""
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + 1.0
        for worker, thread in zip(self.workers, self._threads, strict=False):
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                worker.kill()  # in the middle of a job: ending it frees the thread
        for worker in self.workers:
            worker.close()
        if self._pool is not None:
            self._pool.close()
        if self._clock_lock is not None:
            self._clock_lock.restore()

    def __enter__(self) -> "GpuFarm":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _submit(self, candidate: Candidate) -> "Future[Measurement]":
        future: Future[Measurement] = Future()
        template = load_template(candidate.workload.op)
        if candidate.origin == "vendor":
            self._tasks.put(_Task(candidate, None, future))
            return future
        reasons = violations(template, candidate.config, candidate.workload, self.device.limits)
        if reasons:
            future.set_result(self._row(candidate, None, Outcome("illegal", "; ".join(reasons))))
            return future
        assert self._pool is not None
        source = render(template, candidate.config, candidate.workload.dtype)
        build = self._pool.submit(source, f"{template.op} {config_text(candidate.config)}")
        build.add_done_callback(lambda done: self._built(candidate, done, future))
        return future

    def _built(self, candidate: Candidate, done: "Future[Cubin | BuildFailure]", future: "Future[Measurement]") -> None:
        if done.cancelled():
            future.cancel()
            return
        result = done.result()
        if isinstance(result, Cubin):
            self._tasks.put(_Task(candidate, result, future))
        elif future.set_running_or_notify_cancel():
            future.set_result(self._row(candidate, result, Outcome(result.status, result.message)))

    def _work(self, worker: GpuWorker) -> None:
        """One GPU's thread: take what is built, have it measured."""
        while (task := self._tasks.get()) is not None:
            if not task.future.set_running_or_notify_cancel():
                continue
            try:
                task.future.set_result(self._on_gpu(worker, task))
            except WorkerGoneError as error:
                self._again(task, error)
            except WorkerLostError as error:
                self._give_up(task, error)
                return
            except BaseException as error:
                task.future.set_exception(error)

    def _on_gpu(self, worker: GpuWorker, task: _Task) -> Measurement:
        workload = task.candidate.workload
        if not worker.alive:
            self._restart(worker)
        job: Job | VendorJob = VendorJob(workload, self.settings.vendor)
        if task.built is not None:
            job = Job(task.candidate, task.built.code, self._best.get(workload))
        row = self._row(task.candidate, task.built, outcome := worker.run(job))
        with self._lock:
            self._busy_s += outcome.busy_s
            self._counts["measured"] += 1
            if row.time_us is not None and task.built is not None:
                self._best[workload] = min(row.time_us, self._best.get(workload, row.time_us))
        return row

    def _restart(self, worker: GpuWorker) -> None:
        with self._lock:
            self._counts["restarts"] += 1
        for left in range(RESTARTS - 1, -1, -1):
            if self._closed:
                raise WorkerLostError("the farm is closed")
            try:
                worker.start()
                self._equip(worker)
                return
            except NoRoomError:
                raise
            except (WorkerLostError, InputError) as error:
                log.warning("worker %d: %s", worker.number, error)
                if not left:
                    raise WorkerLostError(str(error)) from error
                time.sleep(1.0)

    def _again(self, task: _Task, error: WorkerGoneError) -> None:
        """Queue what a worker vanished with once more; the second time, that is its outcome."""
        log.warning("%s; %s", error, "that is its outcome" if task.again else "queued again")
        if task.again:
            task.future.set_result(self._row(task.candidate, task.built, Outcome("crash", str(error))))
        else:
            self._requeue(replace(task, again=True))

    def _requeue(self, task: _Task) -> None:
        # A future that runs cannot be queued again: its stand-in carries the result over.
        stand_in: Future[Measurement] = Future()
        stand_in.add_done_callback(lambda done: _pass_on(done, task.future))
        self._tasks.put(replace(task, future=stand_in))

    def _give_up(self, task: _Task, error: WorkerLostError) -> None:
        """Leave this GPU's work to the others; when it was the last, everybody waiting is told."""
        with self._lock:
            self._working -= 1
            last = self._working == 0
        if not last:
            self._requeue(task)
            return
        task.future.set_exception(_no_gpu_left(error))
        while (other := self._tasks.get()) is not None:
            if other.future.set_running_or_notify_cancel():
                other.future.set_exception(_no_gpu_left(error))

    def _row(self, candidate: Candidate, built: Cubin | BuildFailure | None, outcome: Outcome) -> Measurement:
        assert self._pool is not None
        return row_of(candidate, built, outcome, self._hello, self._pool.compiler.version, self.settings.timing.l2)


def tool_sources() -> dict[str, tuple[Path, str]]:
    """File and source of the farm's own kernels: "" the check kernels, `op/dtype` the references."""
    sources = {"": (CHECK_SOURCE, CHECK_SOURCE.read_text())}
    for template in map(load_template, operators()):
        for dtype in template.dtypes:
            sources[f"{template.op}/{dtype}"] = template.reference_path, render_reference(template, dtype)
    return sources


def _start(worker: GpuWorker) -> Hello:
    try:
        return worker.start()
    except WorkerLostError as error:
        raise InputError(str(error)) from error


def _pass_on(done: "Future[Measurement]", future: "Future[Measurement]") -> None:
    error = done.exception()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())


def _no_gpu_left(error: WorkerLostError) -> InputError:
    return InputError(f"no GPU is left to measure on ({error}); run again to continue")


def visible_gpus(indices: list[int]) -> list[tuple[int, str]]:
    """(number, CUDA_VISIBLE_DEVICES entry) of the GPUs to use: those of the environment, else all NVML sees, else one."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        names = [name.strip() for name in named.split(",") if name.strip()]
    else:
        names = [str(i) for i in range(clocks.visible_gpus(clocks.load_nvml()) or 1)]
    if not names:
        raise InputError("CUDA_VISIBLE_DEVICES is empty: no GPU to measure on; use gpu=replay")
    for index in indices:
        if not 0 <= index < len(names):
            raise InputError(f"farm.gpus: GPU {index} is not there; {len(names)} visible")
    return [(index, names[index]) for index in indices or range(len(names))]
