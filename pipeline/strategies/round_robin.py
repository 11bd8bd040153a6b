"""Several rankings taking turns: the first one's best, the second one's best, ..., the first one's next."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from datasets.measurement import Measurement
from pipeline.strategies.admission import untried
from pipeline.strategies.known_good import distinct
from pipeline.strategies.transfer import LogTime
from pipeline.strategy import Task


@dataclass
class RoundRobin:
    """Ranks a closed world's pool by each expert (the lower, the better), once per workload."""

    experts: Sequence[LogTime]
    name: str = "round_robin"
    _order: dict[str, list[dict[str, int]]] = field(default_factory=dict, repr=False)

    def propose(
        self, task: Task, history: Sequence[Measurement], n: int, rng: np.random.Generator
    ) -> list[dict[str, int]]:
        """The next n of the merged rankings."""
        key = f"{task.workload}@{task.device.name}"
        if key not in self._order:
            pool = list(task.pool or ())
            rankings = [np.argsort(expert(task.workload, pool), kind="stable") for expert in self.experts]
            self._order[key] = distinct([pool[i] for turn in zip(*rankings, strict=True) for i in turn])
        return untried(self._order[key], history, n)
