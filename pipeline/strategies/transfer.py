"""Controls that copy from the training workloads: the nearest one's best, and the best config on average."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from datasets.measurement import Measurement
from pipeline.strategies.admission import admit, untried
from pipeline.strategies.known_good import Known, KnownGood, borrowed, distinct
from pipeline.strategy import Task
from templates import space
from templates.knob import Config, columns_of, config_text
from templates.workload import Workload

LogTime = Callable[[Workload, Sequence[Config]], np.ndarray]
"""A workload and n configs -> predicted log times (n,), up to a constant per workload."""

CANDIDATES_PER_WORKLOAD = 5


@dataclass(frozen=True)
class Nearest:
    """Copies the best configs of the nearest training workloads; where one cannot be measured, the nearest that can."""

    known: KnownGood
    name: str = "nearest"

    def propose(
        self, task: Task, history: Sequence[Measurement], n: int, rng: np.random.Generator
    ) -> list[dict[str, int]]:
        """The next n borrowed configs."""
        return untried(_admitted(task, borrowed(self.known, task.workload)), history, n)


@dataclass(frozen=True)
class OneConfig:
    """The configs with the best average over the training workloads, the same for every shape.

    Training workloads are measured on different random configs, so most of the table candidates x workloads is empty:
    `log_time` (a cost model) fills it.
    """

    known: KnownGood
    log_time: LogTime
    name: str = "one_config"
    _ranking: dict[str, list[dict[str, int]]] = field(default_factory=dict, repr=False)

    def propose(
        self, task: Task, history: Sequence[Measurement], n: int, rng: np.random.Generator
    ) -> list[dict[str, int]]:
        """The next n configs of the ranking, each moved to the nearest that can be measured."""
        if not self._ranking:
            self._ranking["all"] = rank_on_average(task, self.known, self.log_time)
        return untried(_admitted(task, self._ranking["all"]), history, n)


def rank_on_average(task: Task, known: KnownGood, log_time: LogTime) -> list[dict[str, int]]:
    """Known-good configs by their mean log time over the training workloads, each relative to that workload's best.

    The mean is over the workloads where a config is legal; those legal on fewer than half of them come last.
    """
    candidates = distinct([config for k in known for config in k.configs[:CANDIDATES_PER_WORKLOAD]])
    columns = columns_of([*candidates], task.template.names)
    total, legal_count = np.zeros(len(candidates)), np.zeros(len(candidates))
    for k in known:
        legal = space.legal(task.template, columns, k.workload, task.limits)
        total += np.where(legal, _relative(k, candidates, log_time), 0.0)
        legal_count += legal
    mean = total / np.maximum(legal_count, 1)
    return [candidates[i] for i in np.lexsort((mean, legal_count * 2 < len(known)))]


def _relative(k: Known, candidates: list[dict[str, int]], log_time: LogTime) -> np.ndarray:
    """Log time over the workload's best, (n,): measured where it was; predictions are shifted to agree with those on average."""
    predicted = np.asarray(log_time(k.workload, candidates), dtype=float)
    times = {config_text(c): float(np.log(t / k.times_us[0])) for c, t in zip(k.configs, k.times_us, strict=True)}
    measured = np.array([times.get(config_text(c), np.nan) for c in candidates])
    shift = np.nanmean(measured - predicted) if np.isfinite(measured).any() else -predicted.min()
    return np.where(np.isfinite(measured), measured, predicted + shift)


def _admitted(task: Task, configs: Sequence[dict[str, int]]) -> Iterator[dict[str, int]]:
    return (admit(task, config) for config in configs)
