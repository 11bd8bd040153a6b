"""What a worker does with one candidate on the GPU: load, check, time, check again.

Right before fast: the answer is checked on one input set before timing and on another after it. See `worker` for how
faults of the candidate are contained.
"""

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

from datasets.device import Device
from pipeline.measure import clocks
from pipeline.measure.check import Bench, Checker
from pipeline.measure.gpu import Gpu, NoGpuError, fault_of
from pipeline.measure.jobs import Hello, Job, Outcome, Tools, VendorJob
from pipeline.measure.lane import GpuLane
from pipeline.measure.names import resolve
from pipeline.measure.settings import TimingSettings
from pipeline.measure.timing import floor_us, time_launches
from templates.errors import InputError
from templates.template import load_template
from templates.workload import Workload

Phase = Callable[[str], None]

log = logging.getLogger(__name__)


class GpuEngine:
    """Measures on the first visible GPU. InputError where there is none.

    `phase` is called before each step that may hang or crash; whoever waits gives each its own deadline.
    """

    def __init__(self, timing: TimingSettings) -> None:
        if timing.l2 not in ("cold", "warm"):
            raise InputError(f"timing.l2={timing.l2!r}: use cold or warm")
        self.timing = timing
        nvml = clocks.load_nvml()
        earlier = clocks.all_pids(nvml)
        try:
            self.gpu = Gpu(0)
        except NoGpuError as error:
            raise InputError(f"no usable GPU ({error}); use gpu=replay to work from recorded timings") from None
        self.device: Device = self.gpu.describe()
        self.driver = clocks.driver_version(nvml) or self.gpu.driver_version()
        self.observer = clocks.Observer(nvml, self.gpu.pci_bus_id, earlier)
        self.benches: OrderedDict[Workload, Bench] = OrderedDict()

    def hello(self) -> Hello:
        """Who we are."""
        return Hello(self.device, self.driver, self.gpu.pci_bus_id)

    def equip(self, tools: Tools, locked_mhz: int | None) -> str:
        """Take the helper kernels (they need the architecture that `hello` told) and calibrate; returns notes for the log."""
        self.tools, self.locked_mhz = tools, locked_mhz
        self.checker = Checker(self.gpu, tools.check)
        self.lane = GpuLane(self.gpu, tools.check, self.timing.l2)
        lane = self.lane
        return f"empty kernel {lane.empty_us:.2f} us, event pair {lane.overhead_us:.2f} us, L2 flush {lane.flush_us:.1f} us"

    def measure(self, job: Job, phase: Phase) -> Outcome:
        """Check and time a candidate. CUDA's errors become outcomes; a lost context is marked fatal."""
        return self._guarded(lambda: self._measure(job, phase))

    def vendor(self, job: VendorJob, phase: Phase) -> Outcome:
        """Time a foreign kernel with the same timer."""
        return self._guarded(lambda: self._vendor(job, phase))

    def _guarded(self, work: Callable[[], Outcome]) -> Outcome:
        started = time.perf_counter()
        try:
            outcome = work()
        except Exception as error:  # cuda-core's, PyTorch's and our own types: told apart by the CUDA error inside
            outcome = self._failed(error)
        return replace(outcome, busy_s=time.perf_counter() - started)

    def _failed(self, error: Exception) -> Outcome:
        if isinstance(error, InputError):  # a vendor's library that is missing, say
            return Outcome("launch_error", str(error))
        fault = fault_of(error)
        if fault is None:
            raise error
        if not fault.fatal:
            try:
                self.gpu.sync()
            except Exception as later:  # the context did not survive after all
                return Outcome("crash", f"CUDA error {(fault_of(later) or fault).code}", fatal=True)
            return Outcome("launch_error", f"CUDA error {fault.code}")
        return Outcome("crash", f"CUDA error {fault.code}", fatal=True)

    def bench(self, workload: Workload, phase: Phase) -> Bench:
        """The workload's inputs and references, made when first asked for; recent ones are kept within `keep_mb`."""
        if workload in self.benches:
            self.benches.move_to_end(workload)
            return self.benches[workload]
        phase("prepare")
        template = load_template(workload.op)
        tensors = template.tensors(workload)
        while self.benches and self._held() + _estimate(tensors) > self.timing.keep_mb * 2**20:
            self.benches.popitem(last=False)[1].close()
        reference = self.tools.references[f"{workload.op}/{workload.dtype}"]
        self.benches[workload] = Bench(self.checker, template, workload, reference)
        return self.benches[workload]

    def _held(self) -> int:
        return sum(bench.held_bytes for bench in self.benches.values())

    def _measure(self, job: Job, phase: Phase) -> Outcome:
        workload, config = job.candidate.workload, job.candidate.config
        bench = self.bench(workload, phase)
        launch = bench.template.launch(config, workload)
        phase("check")
        workspace = bench.workspace(launch)
        try:
            kernel = self.gpu.kernel(job.code, bench.template.entry, launch, bench.arguments(0, workspace))
            return self._check_and_time(job, bench, kernel, workspace, phase)
        finally:
            self._tidy(bench, workspace)

    def _check_and_time(self, job: Job, bench: Bench, kernel: Any, workspace: Any, phase: Phase) -> Outcome:
        bench.poison()
        first_us = self.lane.once_us(lambda: self.gpu.launch(kernel))
        problem, error = bench.examine(0, workspace)
        if problem:
            return Outcome("wrong_answer", problem, error=_finite(error))
        phase("time")
        timed = replace(kernel, args=bench.arguments(1, workspace))
        bench.poison()
        outcome = self._time(lambda: self.gpu.launch(timed), first_us, job.best_us, self._floor(bench))
        problem, error_after = bench.examine(1, workspace)
        error = max(error, error_after)
        if problem:
            return Outcome("wrong_answer", f"after timing: {problem}", error=_finite(error), conditions=outcome.conditions)
        return replace(outcome, error=error)

    def _time(self, enqueue: Callable[[], None], first_us: float, best_us: float | None, floor: float) -> Outcome:
        """Time, and again while the timing is contaminated or the clock has not settled."""
        for left in range(self.timing.retries, -1, -1):
            before = self.observer.read()
            samples = time_launches(enqueue, self.lane, self.timing, first_us, best_us)
            after = self.observer.read()
            around = clocks.conditions(before, after, self.locked_mhz)
            why = clocks.contamination(before, after, self.timing.clock_drop)
            # The answer is checked again after this: a right answer in an impossible time means that the time is wrong.
            if not why and median(samples) < floor:
                why = f"{median(samples):.2f} us is below the roofline floor of {floor:.2f} us"
            rising = clocks.clock_change(before, after) > self.timing.clock_drop
            if not why and not (rising and left):
                return Outcome("ok", samples_us=samples, conditions=around)
            log.info("timing repeated: %s", why or "the clock was still rising")
        return Outcome("contaminated", why, samples_us=samples, conditions=around)

    def _floor(self, bench: Bench) -> float:
        template, workload = bench.template, bench.workload
        dtype, l2 = workload.dtype, self.timing.l2
        return floor_us(template.flops(workload), bench.read_bytes, self.device, dtype, l2, self.lane.empty_us)

    def _tidy(self, bench: Bench, workspace: Any) -> None:
        try:
            if workspace is not None:
                self.checker.free(workspace)
            if bench.damaged:
                self.benches.pop(bench.workload).close()
        except Exception as error:  # a lost context cannot free: the outcome on its way out says so already
            if fault_of(error) is None:
                raise

    def _vendor(self, job: VendorJob, phase: Phase) -> Outcome:
        phase("prepare")
        enqueue = resolve(job.prepare)(job.workload, self.gpu.stream_handle)
        phase("check")
        first_us = self.lane.once_us(enqueue)
        phase("time")
        return self._time(enqueue, first_us, None, 0.0)


def _finite(error: float) -> float | None:
    """An error as rows keep it: unknown where an output was NaN or infinite."""
    return error if math.isfinite(error) else None


def _estimate(tensors: Any) -> int:
    """Bytes a bench will hold, from above: two sets of inputs, outputs with two float64 arrays per set."""
    return sum(math.prod(t.shape) * (2 * 8 if t.role == "in" else 8 + 2 * 16) for t in tensors)
