"""Timing of queued launches: what the GPU takes, launch latency left out, stopped when the median is known well enough.

Per sample the stream gets: L2 flush (when cold), event, launch, event. The host queues a batch of samples behind a kernel
that spins for as long as the host needs, so the stream never runs dry. An event pair costs time of its own (1-2 us); the
lane knows how much from an empty kernel timed both by events and inside a CUDA graph, and that is taken off every sample.
Everything here works on a `Lane`, so that it is tested with a simulated one.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from datasets.device import Device
from pipeline.measure.settings import TimingSettings

CONFIDENCE = 0.9
"""Of the median's interval. Five samples cover 0.94 from their least to their largest; four cannot reach 0.9."""

BATCH = 25
BATCH_US = 20_000.0
"""Samples queued between two looks at the interval: at most BATCH, about BATCH_US of GPU time, at least 2."""

TENSOR_CORE_GAIN = 32.0
"""Ceiling for types that tensor cores multiply: their dense rate over that of fp32 lanes, generous (H200: 990 / 67 = 15)."""


class Lane(Protocol):
    """A stream that launches are timed on. `flush_us`: what a flush takes (0: warm). `overhead_us`: an event pair's cost."""

    flush_us: float
    overhead_us: float

    def spin(self, us: float) -> None:
        """Queue a kernel that lasts so long."""

    def flush(self) -> None:
        """Queue the L2 flush; nothing when warm."""

    def mark(self) -> Any:
        """Queue an event."""

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Time between two events that have passed."""

    def sync(self) -> None:
        """Wait for all that is queued."""


@dataclass(frozen=True)
class Plan:
    """Launches for one candidate: `warmup` beyond the check's own, at most `samples` timed, `batch` between two looks."""

    warmup: int
    samples: int
    batch: int


@dataclass
class Pace:
    """What queueing a sample takes the host, and the launch the GPU; a careful guess until the first batch is measured.

    The check's launch is no guide: it may have been slow for reasons of its own, and the queue would run dry.
    """

    host_us: float = 50.0
    kernel_us: float = 0.0


def plan_launches(settings: TimingSettings, first_us: float, flush_us: float) -> Plan:
    """How many launches the budget buys; a third of it goes to the warm-up, in which the check's launch counts.

    Example: 400 ms at 8 ms a launch buys 50: 15 + 34. At 200 ms it buys 2: none + 2, the least.
    """
    cost_us = max(first_us + flush_us, 1.0)
    affordable = int(settings.budget_ms * 1e3 / cost_us)
    warmup = max(1, min(settings.warmup, affordable // 3))
    samples = max(2, min(settings.samples, affordable - warmup))
    return Plan(warmup - 1, samples, max(2, min(BATCH, int(BATCH_US / cost_us))))


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Distribution-free confidence interval of the median from order statistics; None when there are too few samples.

    [x_(k), x_(n+1-k)] covers the median with probability 1 - 2 P(Binomial(n, 1/2) < k) (David and Nagaraja, Order
    Statistics, 7.1).
    """
    n, below, k = len(samples), 0.0, 0
    while k < n // 2 and 1.0 - 2.0 * (below + math.comb(n, k) * 0.5**n) >= confidence:
        below += math.comb(n, k) * 0.5**n
        k += 1
    ordered = sorted(samples)
    return (ordered[k - 1], ordered[n - k]) if k else None


def settled(samples: Sequence[float], settings: TimingSettings) -> bool:
    """Whether the half-width of the median's interval is below the set share of the median."""
    interval = median_interval(samples) if len(samples) >= settings.min_samples else None
    return interval is not None and (interval[1] - interval[0]) / 2.0 <= settings.precision * median(samples)


def time_launches(
    enqueue: Callable[[], None], lane: Lane, settings: TimingSettings, first_us: float, best_us: float | None = None
) -> tuple[float, ...]:
    """Samples in microseconds of what `enqueue` queues, in the order taken; their median is the time.

    `first_us`: a first estimate, from the check's launch. `best_us`: the best time known of the workload, for
    `hopeless_factor`. Raises what the GPU raises.
    """
    plan = plan_launches(settings, first_us, lane.flush_us)

    def hopeless(us: float) -> bool:
        return best_us is not None and 0.0 < settings.hopeless_factor * best_us < us

    pace = Pace()
    if hopeless(first_us):
        samples = _time_batch(enqueue, lane, 1, pace)
        if hopeless(median(samples)):
            return tuple(samples)
    for left in range(plan.warmup, 0, -plan.batch):
        _time_batch(enqueue, lane, min(plan.batch, left), pace)
    taken: list[float] = []
    while len(taken) < plan.samples:
        taken += _time_batch(enqueue, lane, min(plan.batch, plan.samples - len(taken)), pace)
        over_budget = sum(taken) + len(taken) * lane.flush_us > settings.budget_ms * 1e3
        if settled(taken, settings) or over_budget or hopeless(median(taken)):
            break
    return tuple(taken)


def _time_batch(enqueue: Callable[[], None], lane: Lane, n: int, pace: Pace) -> list[float]:
    """n samples behind one spin that outlasts the host's lag; warm-up goes through here too, to learn the pace."""
    lag_us = max(0.0, pace.host_us - lane.flush_us - pace.kernel_us)
    lane.spin(1.5 * n * lag_us + 2.0 * pace.host_us)
    started = time.perf_counter()
    marks = []
    for _ in range(n):
        lane.flush()
        start = lane.mark()
        enqueue()
        marks.append((start, lane.mark()))
    pace.host_us = min((time.perf_counter() - started) * 1e6 / n, 1000.0)
    lane.sync()
    samples = [max(lane.elapsed_us(start, end) - lane.overhead_us, 0.0) for start, end in marks]
    pace.kernel_us = min(samples)
    return samples


def floor_us(flops: float, read_bytes: float, device: Device, dtype: str, l2: str, empty_us: float) -> float:
    """The time no right kernel can undercut: roofline of peak FLOPs and of what must come from DRAM, less a tenth.

    Cold, every input byte comes from DRAM; warm, only what L2 cannot hold. Outputs may stay in L2 past the kernel's end.
    An empty kernel's time bounds tiny ones.
    """
    peak_flops = device.fp32_tflops * 1e12 * (1.0 if dtype in ("f32", "f64") else TENSOR_CORE_GAIN)
    from_dram = read_bytes if l2 == "cold" else max(0.0, read_bytes - device.l2_bytes)
    bounds = [0.5 * empty_us]
    if peak_flops > 0:
        bounds.append(0.9e6 * flops / peak_flops)
    if device.memory_bandwidth_gbs > 0:
        bounds.append(0.9e-3 * from_dram / device.memory_bandwidth_gbs)
    return max(bounds)
