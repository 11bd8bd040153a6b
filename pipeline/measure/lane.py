"""The stream of one GPU as the timer sees it: spin, flush, marks; and CUDA-graph replay as the second opinion."""

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from pipeline.measure.gpu import Gpu
from pipeline.measure.settings import TimingSettings
from pipeline.measure.timing import time_launches


class GpuLane:
    """A `timing.Lane` on a GPU. `tools` is the cubin of check.cu; `l2` is "cold" or "warm".

    `empty_us` is what an empty kernel takes inside a graph, `overhead_us` what an event pair adds to that.
    """

    def __init__(self, gpu: Gpu, tools: bytes, l2: str) -> None:
        self.gpu, self.tools, self.cold = gpu, tools, l2 == "cold"
        self.flush_us = self.overhead_us = self.empty_us = 0.0
        self._events: list[Any] = []
        self._used = 0
        device = gpu.describe()
        self._grid = 8 * device.sm_count
        # Twice L2: what a read of its exact size leaves behind depends on the replacement policy.
        self._flush_bytes = 2 * device.l2_bytes // 16 * 16
        self._flushed = gpu.allocate(self._flush_bytes + 16)
        gpu.fill(self._flushed, 0, self._flush_bytes + 16)
        self._calibrate()

    def _calibrate(self) -> None:
        if self.cold:
            self.flush_us = graph_replay_us(self, self.read_all)
        self.empty_us = graph_replay_us(self, self.empty)
        settings = TimingSettings(warmup=50, samples=100, precision=0.0)  # no early stop
        self.overhead_us = max(0.0, median(time_launches(self.empty, self, settings, first_us=5.0)) - self.empty_us)

    def spin(self, us: float) -> None:
        """Queue a kernel that lasts so long."""
        self.gpu.resident(self.tools, "spin", 1, 1, np.uint64(max(0.0, us) * 1e3))

    def empty(self) -> None:
        """Queue a kernel that does nothing."""
        self.gpu.resident(self.tools, "empty", 1, 32)

    def flush(self) -> None:
        """Queue a read of twice L2's size; nothing when warm."""
        if self.cold:
            self.read_all()

    def read_all(self) -> None:
        """Queue a read of twice L2's size."""
        words = np.uint64(self._flush_bytes // 16)
        self.gpu.resident(self.tools, "flush", self._grid, 256, self._flushed, words, self._flushed + self._flush_bytes)

    def mark(self) -> Any:
        """Queue an event; events are used again after a `sync`, so read `elapsed_us` before the next `mark`."""
        if self._used == len(self._events):
            self._events.append(self.gpu.event())
        event = self._events[self._used]
        self._used += 1
        self.gpu.record(event)
        return event

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Time between two events that have passed."""
        return self.gpu.elapsed_us(start, end)

    def sync(self) -> None:
        """Wait for all that is queued; an earlier launch's error shows here."""
        self.gpu.sync()
        self._used = 0

    def once_us(self, enqueue: Callable[[], None]) -> float:
        """Time of a single launch, a first estimate: the spin ahead hides most of its loading."""
        self.spin(300.0)
        start = self.mark()
        enqueue()
        end = self.mark()
        self.sync()
        return self.elapsed_us(start, end)


def graph_replay_us(lane: GpuLane, enqueue: Callable[[], None], launches: int = 50, flush: bool = False) -> float:
    """Time per launch of a graph that holds it `launches` times in a row, the median of 9 replays.

    With `flush`, a flush stands before each launch and a graph of the flushes alone is taken off.
    """
    if flush:

        def flushed() -> None:
            lane.read_all()
            enqueue()

        return graph_replay_us(lane, flushed, launches) - graph_replay_us(lane, lane.read_all, launches)
    gpu = lane.gpu
    enqueue()  # loads the kernel: loading is not allowed inside a capture
    gpu.sync()

    def repeat() -> None:
        for _ in range(launches):
            enqueue()

    graph = gpu.capture(repeat)
    try:
        times = [lane.once_us(lambda: gpu.replay(graph)) / launches for _ in range(11)]
    finally:
        graph.close()
    return median(times[2:])
