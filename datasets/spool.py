"""Rows on their way into the store: each in a file of lines as soon as it exists, many at a time in Parquet.

A part of Parquet per row would be thousands of files; a batch kept in memory would be lost with the process. So a row goes to
`<root>/.spool/<name>.jsonl` first, which outlives a kill -9, and whoever opens a spool on the same root next moves what
another has left there into the store. A part's name follows from the file's: none is stored twice.
"""

import contextlib
import fcntl
import json
import time
import uuid
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from datasets import store
from datasets.measurement import Measurement
from datasets.schema import RESOURCES, measurement_of, row_of

FLUSH_ROWS, FLUSH_S = 200, 10.0


class Spool:
    """Where one process puts its rows under `root`. InputError where the disk is full or may not be written."""

    def __init__(self, root: Path) -> None:
        self.root, self.part, self.flushed_at = root, 0, time.monotonic()
        self.unsaved: list[Measurement] = []
        with store.writing(root):
            folder = root / ".spool"
            folder.mkdir(parents=True, exist_ok=True)
            self.recovered = sum(self._recover(path) for path in sorted(folder.glob("*.jsonl")))
            self.path = folder / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.jsonl"
            self._file = self.path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def add(self, measurement: Measurement) -> None:
        """Keep a row: against the end of this process at once, in Parquet within FLUSH_S seconds or FLUSH_ROWS rows."""
        self.unsaved.append(measurement)
        line = {"part": self.part, "row": dict.fromkeys(RESOURCES) | row_of(measurement)}
        with store.writing(self.root):
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        if len(self.unsaved) >= FLUSH_ROWS or time.monotonic() - self.flushed_at > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Move what is here into Parquet; where that fails, it is still here."""
        self.flushed_at = time.monotonic()
        if self.unsaved:
            store.append(self.root, self.unsaved, self._name(self.path, self.part))
            self.unsaved, self.part = [], self.part + 1
            self._file.seek(0)
            self._file.truncate()

    def close(self) -> None:
        """Flush and remove the file; where flushing fails it stays, for the next spool to find."""
        with contextlib.closing(self._file):
            self.flush()
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @staticmethod
    def _name(path: Path, part: int) -> str:
        return f"part-{path.stem}-{part:04d}"

    def _recover(self, path: Path) -> int:
        """Store what a process that is gone left in its file; 0 where the process still lives."""
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return 0
            lines = list(_whole_lines(file))
            for part, group in groupby(lines, key=lambda line: int(line["part"])):
                store.append(self.root, [measurement_of(line["row"]) for line in group], self._name(path, part))
            path.unlink()
        return len(lines)


def _whole_lines(file: IO[str]) -> Iterator[dict[str, Any]]:
    """The lines up to one that a kill cut short."""
    for line in file:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return
