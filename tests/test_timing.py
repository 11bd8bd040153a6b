"""The timer on a simulated GPU: queues never run dry, overhead is taken off, long kernels get few launches."""

import math
from statistics import median

import numpy as np
import pytest

from datasets.device import H200
from pipeline.measure.settings import TimingSettings
from pipeline.measure.timing import floor_us, median_interval, plan_launches, settled, time_launches


class SimulatedLane:
    """A stream with a host clock and a GPU clock, in us: an event is stamped when the GPU reaches it, an empty queue waits."""

    def __init__(self, kernel_us: float, host_us: float = 6.0, flush_us: float = 0.0, event_us: float = 0.0) -> None:
        self.kernel_us, self.host_us, self.flush_us, self.event_us = kernel_us, host_us, flush_us, event_us
        self.overhead_us = 0.0
        self.host = self.gpu = 0.0
        self.launches = 0
        self.rng = np.random.default_rng(0)
        self.noise = 0.0

    def _queue(self, us: float) -> float:
        self.host += self.host_us
        self.gpu = max(self.gpu, self.host) + us
        return self.gpu

    def spin(self, us: float) -> None:
        self._queue(us)

    def flush(self) -> None:
        if self.flush_us:
            self._queue(self.flush_us)

    def launch(self) -> None:
        self.launches += 1
        self._queue(self.kernel_us * (1.0 + self.noise * abs(float(self.rng.normal()))) + self.event_us)

    def mark(self) -> float:
        return self._queue(0.0)

    def elapsed_us(self, start: float, end: float) -> float:
        return end - start

    def sync(self) -> None:
        self.host = max(self.host, self.gpu)

    def perf_counter(self) -> float:
        return self.host * 1e-6


def timed(lane: SimulatedLane, settings: TimingSettings, monkeypatch: pytest.MonkeyPatch, **kw: float) -> tuple[float, ...]:
    monkeypatch.setattr("pipeline.measure.timing.time.perf_counter", lane.perf_counter)
    return time_launches(lane.launch, lane, settings, kw.pop("first_us", lane.kernel_us), **kw)


@pytest.mark.parametrize("kernel_us", [2.0, 5.0, 50.0])
@pytest.mark.parametrize("flush_us", [0.0, 10.0, 40.0])
@pytest.mark.parametrize("first_us", [2.0, 500.0])
def test_launch_latency_stays_out_of_short_kernels(
    kernel_us: float, flush_us: float, first_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = SimulatedLane(kernel_us, host_us=6.0, flush_us=flush_us)
    samples = timed(lane, TimingSettings(), monkeypatch, first_us=first_us)
    assert samples == pytest.approx([kernel_us] * len(samples))


def test_the_simulation_shows_the_inflation_that_the_spin_prevents(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = SimulatedLane(2.0, host_us=6.0)
    lane.spin = lambda us: None  # type: ignore[method-assign]
    assert median(timed(lane, TimingSettings(), monkeypatch)) > 6.0


def test_the_event_pairs_own_cost_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = SimulatedLane(3.0, event_us=1.5)
    lane.overhead_us = 1.5
    assert median(timed(lane, TimingSettings(), monkeypatch)) == pytest.approx(3.0)


def test_a_steady_kernel_stops_early_and_a_noisy_one_takes_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    steady, noisy = SimulatedLane(20.0), SimulatedLane(20.0)
    noisy.noise = 0.3
    assert len(timed(steady, TimingSettings(), monkeypatch)) == 25
    assert len(timed(noisy, TimingSettings(), monkeypatch)) == 100
    assert noisy.launches == 50 + 100 - 1, "the check's launch is one of the 50"


def test_long_kernels_get_few_launches_but_always_two(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TimingSettings(budget_ms=400.0)
    assert plan_launches(settings, 8_000.0, 0.0).samples == 34
    assert plan_launches(settings, 10.0, 30.0).warmup == 49
    lane = SimulatedLane(300_000.0)
    assert len(timed(lane, settings, monkeypatch)) == 2
    assert lane.launches == 2


def test_a_hopeless_candidate_stops_after_one_sample_and_a_slow_first_launch_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TimingSettings(hopeless_factor=4.0)
    slow = SimulatedLane(100.0)
    assert len(timed(slow, settings, monkeypatch, best_us=20.0)) == 1 == slow.launches
    cold_start = SimulatedLane(21.0)
    assert len(timed(cold_start, settings, monkeypatch, best_us=20.0, first_us=900.0)) >= 5
    assert len(timed(SimulatedLane(100.0), TimingSettings(), monkeypatch, best_us=20.0)) >= 5, "off by default"


@pytest.mark.parametrize(("n", "ranks"), [(4, None), (5, (1, 5)), (8, (2, 7)), (100, (42, 59))])
def test_median_interval_picks_the_binomial_ranks(n: int, ranks: tuple[int, int] | None) -> None:
    samples = [float(i + 1) for i in range(n)]
    assert median_interval(samples[::-1]) == ranks


def test_median_interval_covers_the_median_as_often_as_it_says() -> None:
    draws = np.random.default_rng(1).exponential(size=(2000, 15))
    intervals = [median_interval(list(row)) for row in draws]
    covered = np.mean([low <= math.log(2) <= high for low, high in intervals if (low, high)])  # type: ignore[misc]
    assert 0.9 <= covered <= 0.98


def test_settled_needs_the_minimum_of_samples() -> None:
    assert not settled([1.0] * 4, TimingSettings())
    assert settled([1.0] * 5, TimingSettings())
    assert not settled([1.0, 1.0, 1.0, 1.0, 1.2], TimingSettings())


def test_the_floor_refuses_the_impossible_and_nothing_else() -> None:
    n = 4096
    floor = floor_us(2.0 * n**3, 8.0 * n * n, H200, "f32", "cold", 1.2)
    assert 2.0 * n**3 / 67e12 * 1e6 * 0.85 < floor < 2.0 * n**3 / 67e12 * 1e6
    stream = floor_us(1.0, 2.0**30, H200, "f32", "cold", 1.2)
    assert stream == pytest.approx(0.9 * 2**30 / 4.8e12 * 1e6)
    small = floor_us(2.0 * 64**3, 8.0 * 64 * 64, H200, "f32", "warm", 1.2)
    assert small == pytest.approx(0.6), "a tiny kernel is bounded by an empty one only"
    assert floor_us(1.0, 8.0e6, H200, "f32", "warm", 1.2) < floor_us(1.0, 8.0e6, H200, "f32", "cold", 1.2)
