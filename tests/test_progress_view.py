"""The view beside a run's progress: what it says, in lines where there is no terminal and in place where there is one."""

import io
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from datasets.device import H200
from datasets.measurement import Candidate, Conditions, Measurement
from pipeline.progress import progress
from pipeline.view import View, Watched
from templates.workload import Workload

BIG, SMALL = Workload.parse("matmul/f32/M=4096,N=4096,K=4096"), Workload.parse("matmul/f32/M=8,N=8,K=8")


class Farm:
    """Answers with rows given beforehand, and with statistics like the farm's."""

    source, device = "gpu", H200

    def __init__(self, rows: Sequence[Measurement] = ()) -> None:
        self.rows, self.left_early, self.closed = rows, False, False

    def known(self, workload: Workload) -> None:
        return None

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Measurement]:
        try:
            yield from self.rows
        finally:
            self.left_early = True

    def stats(self) -> dict[str, float]:
        return {
            "gpu_busy_share": 0.874, "restarts": 2, "gpu_queue_depth": 5, "build_queue_depth": 12, "build_recent_hit_rate": 0.83
        }  # fmt: skip

    def close(self) -> None:
        self.closed = True


class Recording:
    """A measurer that has no statistics, as Replay."""

    source, device = "replay", H200

    def known(self, workload: Workload) -> None:
        return None

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Measurement]:
        return iter(())

    def close(self) -> None:
        pass


def row(
    us: float | None, workload: Workload = BIG, origin: Any = "random", clock: int = 1980, heat: int = 41, why: str = ""
) -> Measurement:
    around = Conditions(1980, clock, throttle_reasons=why, temperature_c=heat)
    return Measurement(workload, {"n": 1}, "ok" if us else "crash", time_us=us, origin=origin, conditions=around)


def seen(*rows: Measurement) -> View:
    view = View(Farm())
    for measurement in rows:
        view.see(measurement)
    return view


def test_the_note_tells_best_statuses_cache_queues_and_gpu() -> None:
    view = seen(row(300.0, origin="naive"), row(100.0, clock=1755), row(None), row(120.0, heat=45), row(50.0, origin="vendor"))
    assert view.note() == (
        "best 100.0 us (3.0 x naive) on matmul/f32/M=4096,N=4096,K=4096; 4 ok, 1 crash; 83 % from the cache, 12 to build, "
        "5 built and waiting; 87 % busy, 2 restarts, 1755-1980 MHz, 41-45 C"
    )


def test_the_last_improvement_comes_first() -> None:
    view = seen(row(100.0), row(7.0, SMALL), row(90.0), row(8.0, SMALL))
    assert view.note().startswith("best 90.0 us on matmul/f32/M=4096")
    lines = printed(view)
    assert [line.split()[1] for line in lines if line.startswith("best")] == ["90.0", "7.0"]


def test_throttling_shows() -> None:
    assert "sw_thermal hw_slowdown" in seen(row(1.0, why="sw_thermal"), row(2.0, why="sw_thermal hw_slowdown")).note()


def test_rows_of_a_recording_say_nothing_of_this_machine() -> None:
    view = View(Recording())
    view.see(row(10.0))
    assert view.note() == "best 10.0 us on matmul/f32/M=4096,N=4096,K=4096; 1 ok"


def test_a_watched_measurer_passes_everything_on() -> None:
    farm = Farm([row(10.0), row(9.0)])
    view = View(farm)
    watched = Watched(farm, view)
    rows = watched.measure([])
    assert next(rows) == farm.rows[0]
    assert view.best[BIG].rows == 1, "seen as soon as it is there, not before"
    rows.close()  # type: ignore[attr-defined]
    assert farm.left_early
    watched.close()
    assert (farm.closed, watched.source, watched.device, watched.known(BIG)) == (True, "gpu", H200, None)


def test_without_a_terminal_a_line_every_ten_seconds_carries_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    view = seen()
    with progress(40, "measuring", view=view) as bar:
        for _ in range(4):
            now[0] += 4.0
            view.see(row(100.0))
            bar.advance()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "\x1b" not in "".join(lines)
    assert lines[0].startswith("measuring: 3/40, 4.0 s each, 2 min 28 s left, best 100.0 us on matmul") and "3 ok" in lines[0]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_it_refreshes_in_place_and_logs_stay_above(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    handler = logging.StreamHandler(terminal)
    logging.getLogger().addHandler(handler)
    try:
        view = seen()
        with progress(40, "measuring", view=view) as bar:
            view.see(row(100.0))
            bar.advance()
            logging.getLogger().warning("a worker restarts")
            bar.bar.refresh()  # type: ignore[union-attr]
    finally:
        logging.getLogger().removeHandler(handler)
    text = terminal.getvalue()
    assert handler.stream is terminal and sys.stderr is terminal, "everything is put back"
    last = text[text.rindex("a worker restarts") :]
    assert "measuring" in last and "100.0 us" in last and "87 % busy" in last, "drawn anew below the line"
    assert "\x1b[1A" in text, "the cursor goes up: it is refreshed in place"


def printed(view: View) -> list[str]:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=150)
    console.print(view.table())
    return [line.strip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
