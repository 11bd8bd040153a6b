"""What a run that measures has come to so far: best times, statuses, cache, queues and GPUs, to be shown beside its progress."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from datasets.device import Device
from datasets.measurement import Candidate, Conditions, Measurement
from pipeline.measure.measurer import Measurer
from templates.workload import Workload

SHOWN = 5
"""Workloads in the live table: those whose best time improved last."""

RECENT = 32
"""Rows the GPUs' state is read from: a few for each of eight GPUs."""


@dataclass
class Best:
    """A workload's fastest time so far and its baseline's, microseconds; None where it is not measured yet."""

    time_us: float | None = None
    naive_us: float | None = None
    rows: int = 0

    @property
    def speedup(self) -> float | None:
        """How much faster than the baseline."""
        return self.naive_us / self.time_us if self.naive_us and self.time_us else None


class View:
    """Sees every row of a run; `note` is one line of it, `table` a small picture for a terminal.

    Rows replayed from a recording say nothing of this machine, so that of them only times and statuses are shown.
    """

    def __init__(self, measurer: Measurer) -> None:
        self.live = measurer.source == "gpu"
        self.stats: Callable[[], Mapping[str, float]] = getattr(measurer, "stats", dict)
        self.statuses: Counter[str] = Counter()
        self.best: dict[Workload, Best] = {}  # the one that improved last comes last
        self.recent: deque[Conditions] = deque(maxlen=RECENT)

    def see(self, m: Measurement) -> None:
        """Take one row into account."""
        self.statuses[m.status] += 1
        best = self.best.setdefault(m.workload, Best())
        best.rows += 1
        if m.status != "ok" or m.origin == "vendor":
            return
        assert m.time_us is not None
        self.recent.append(m.conditions)
        if m.origin == "naive":
            best.naive_us = m.time_us
        if best.time_us is None or m.time_us < best.time_us:
            best.time_us = m.time_us
            self.best[m.workload] = self.best.pop(m.workload)

    def facts(self) -> Iterator[tuple[str, str]]:
        """Name and text of what there is to say."""
        yield "rows", ", ".join(f"{count} {status}" for status, count in self.statuses.most_common()) or "none yet"
        stats = self.stats()
        if "build_queue_depth" in stats:
            yield "compiled", _builds(stats)
        if self.live:
            yield "GPU", ", ".join([*_gpus(stats), *conditions_text(self.recent)]) or "not observed"

    def note(self) -> str:
        """Everything in one line: the last improvement, then the facts."""
        parts = [f"best {_time(best)} on {workload}" for workload, best in self._last(1)]
        return "; ".join([*parts, *(text for _, text in self.facts())])

    def table(self) -> Table:
        """The facts, and the workloads that improved last, the latest on top."""
        grid = Table.grid(padding=(0, 2))
        for name, text in self.facts():
            grid.add_row(f"[dim]{name}", text)
        for workload, best in self._last(SHOWN):
            grid.add_row("[dim]best", f"{_time(best)}  {workload}, {best.rows} {'row' if best.rows == 1 else 'rows'}")
        return grid

    def _last(self, n: int) -> list[tuple[Workload, Best]]:
        improved = [(workload, best) for workload, best in list(self.best.items()) if best.time_us is not None]
        return improved[::-1][:n]


class Watched:
    """A measurer whose rows a view sees as they come."""

    def __init__(self, measurer: Measurer, view: View) -> None:
        self.measurer, self.view = measurer, view

    @property
    def source(self) -> str:
        """That of the measurer behind."""
        return self.measurer.source

    @property
    def device(self) -> Device:
        """That of the measurer behind."""
        return self.measurer.device

    def known(self, workload: Workload) -> Sequence[dict[str, int]] | None:
        """As the measurer behind has it."""
        return self.measurer.known(workload)

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Measurement]:
        """The rows of the measurer behind, as they come."""
        for measurement in self.measurer.measure(candidates):
            self.view.see(measurement)
            yield measurement

    def close(self) -> None:
        """Closes the measurer behind."""
        self.measurer.close()


def conditions_text(recent: Sequence[Conditions] | deque[Conditions]) -> list[str]:
    """Clocks, temperatures and throttling of some rows: `1755-1980 MHz`, `41 C`; nothing where NVML said nothing."""
    parts = [_span([c.sm_clock_after_mhz for c in recent], "MHz"), _span([c.temperature_c for c in recent], "C")]
    parts.append("clocks locked" if recent and all(c.clocks_locked for c in recent) else "")
    parts.append(" ".join(dict.fromkeys(reason for c in recent for reason in c.throttle_reasons.split())))
    return [part for part in parts if part]


def _span(values: Sequence[int | None], unit: str) -> str:
    there = [value for value in values if value is not None]
    if not there:
        return ""
    low, high = min(there), max(there)
    return f"{low} {unit}" if low == high else f"{low}-{high} {unit}"


def _builds(stats: Mapping[str, float]) -> str:
    hits, waiting, ready = 100.0 * stats["build_recent_hit_rate"], stats["build_queue_depth"], stats["gpu_queue_depth"]
    return f"{hits:.0f} % from the cache, {waiting:.0f} to build, {ready:.0f} built and waiting"


def _gpus(stats: Mapping[str, float]) -> list[str]:
    busy, restarts = stats.get("gpu_busy_share"), stats.get("restarts")
    return [*([f"{100.0 * busy:.0f} % busy"] if busy is not None else []), *([f"{restarts:.0f} restarts"] if restarts else [])]


def _time(best: Best) -> str:
    return f"{best.time_us:.1f} us" + (f" ({best.speedup:.1f} x naive)" if best.speedup else "")
