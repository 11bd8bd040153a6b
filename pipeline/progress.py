"""Progress with a rate and an ETA: a live bar in a terminal, a plain line every ten seconds elsewhere."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from pipeline.view import View

LINE_EVERY_S = 10.0
REFRESHES_PER_S = 4


def duration(seconds: float) -> str:
    """`75` -> `1 min 15 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


class Progress:
    """Counts work done. Use it as a context manager with `advance`, or iterate over it when made from an iterable.

    Everything goes to stderr, so that a stage's tables on stdout stay clean. A view's picture stands below the bar, its note
    in the plain lines.
    """

    def __init__(self, work: int | Iterable[Any], what: str, total: int | None = None, view: View | None = None) -> None:
        self.items = None if isinstance(work, int) else work
        if total is None:
            total = work if isinstance(work, int) else len(work) if isinstance(work, Sized) else None
        self.total, self.what, self.done, self.note, self.view = total, what, 0, "", view
        self.started = self.printed = time.monotonic()
        self.bar: Bar | None = None
        self.task = TaskID(0)

    def __enter__(self) -> "Progress":
        self.started = self.printed = time.monotonic()
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
                       TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))  # fmt: skip
            self.bar = _Bar(self.view, *columns, console=Console(stderr=True), refresh_per_second=REFRESHES_PER_S)
            self.task = self.bar.add_task(self.what, total=self.total, rate="", note="")
            stream = sys.stderr
            self.bar.start()
            _log_to(sys.stderr, stream)  # which is the bar's now: it puts what is logged above itself
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar is not None:
            stream = sys.stderr
            self.bar.stop()
            _log_to(sys.stderr, stream)
        elif self.printed > self.started:
            self._print()

    def __iter__(self) -> Iterator[Any]:
        if self.items is None:
            raise AssertionError("progress made from a count has nothing to iterate over; use advance()")
        with self:
            for item in self.items:
                yield item
                self.advance()

    @property
    def rate(self) -> float:
        """Units of work per second since the start."""
        return self.done / max(time.monotonic() - self.started, 1e-9)

    def line(self) -> str:
        """`measuring: 120/400, 11.9/s, 24 s left, <note>`."""
        of = "" if self.total is None else f"/{self.total}"
        rate = f"{self.rate:.1f}/s" if self.rate >= 1 or not self.done else f"{1 / self.rate:.1f} s each"
        left = "" if self.total is None or not self.done else f", {duration((self.total - self.done) / self.rate)} left"
        notes = [note for note in (self.note, self.view.note() if self.view else "") if note]
        return ", ".join([f"{self.what}: {self.done}{of}, {rate}{left}", *notes])

    def advance(self, n: int = 1, note: str = "") -> None:
        """n more units are done; the note (best so far, say) stays until the next one. 0: work begins only now."""
        if n == 0 and self.done == 0:
            self.started = self.printed = time.monotonic()
        self.done += n
        self.note = note or self.note
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done, rate=f"{self.rate:.1f}/s", note=self.note)
        elif time.monotonic() - self.printed >= LINE_EVERY_S:
            self._print()

    def _print(self) -> None:
        self.printed = time.monotonic()
        print(self.line(), file=sys.stderr, flush=True)


class _Bar(Bar):
    """rich's bar with a view below it."""

    def __init__(self, view: View | None, *columns: ProgressColumn, **options: Any) -> None:
        self.view = view
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.view is not None:
            yield self.view.table()


def _log_to(stream: TextIO, instead_of: TextIO) -> None:
    """Send what is logged to one stream to another."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is instead_of:
            handler.setStream(stream)


def progress(work: int | Iterable[Any], what: str, total: int | None = None, view: View | None = None) -> Progress:
    """`for x in progress(items, "fitting")`, or `with progress(400, "measuring") as p: p.advance()`."""
    return Progress(work, what, total, view)
