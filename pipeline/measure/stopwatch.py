"""Seconds spent in spans that may overlap."""

import time


class Stopwatch:
    """Seconds during which at least one of several overlapping spans was open."""

    def __init__(self) -> None:
        self._open, self._since, self._total = 0, 0.0, 0.0

    def start(self) -> None:
        """Open a span."""
        self._since = time.monotonic() if self._open == 0 else self._since
        self._open += 1

    def stop(self) -> None:
        """Close one."""
        self._open -= 1
        self._total += time.monotonic() - self._since if self._open == 0 else 0.0

    @property
    def seconds(self) -> float:
        """So far, open spans included."""
        return self._total + (time.monotonic() - self._since if self._open else 0.0)
