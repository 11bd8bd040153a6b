"""The protocol that everything which turns workload + config into a measurement follows.

Implementations: the local GPU farm, replay of recorded rows, the cost model, and a fake for tests. collect, finetune, tune
and evaluate take any of them.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from datasets.device import Device
from datasets.measurement import Candidate, Measurement
from templates.workload import Workload


class Measurer(Protocol):
    """Measures candidates. Expected failures come back as measurements with a status; only faults of ours raise."""

    @property
    def source(self) -> str:
        """What the times are: "gpu", "replay", "cost_model" or "fake"."""

    @property
    def device(self) -> Device:
        """The GPU the times belong to."""

    def known(self, workload: Workload) -> Sequence[dict[str, int]] | None:
        """The only configs that can be measured on this workload; None when every legal config can (an open world)."""

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Measurement]:
        """One measurement per candidate, in the candidates' order, each yielded as soon as it is there."""

    def close(self) -> None:
        """Release workers and restore whatever was changed. Safe to call twice."""
