"""Controls that rank by the cost model alone: without adapting, refitted each batch, and over random configs only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from datasets.measurement import Measurement
from pipeline.strategies.admission import admit, naive_config, safe_default, untried
from pipeline.strategies.known_good import KnownGood, borrowed, distinct
from pipeline.strategies.local_search import local_search
from pipeline.strategies.simple import FairPools, draw
from pipeline.strategies.transfer import LogTime
from pipeline.strategy import Task

Refit = Callable[[Sequence[Measurement]], LogTime]
"""The measurements of a task so far -> a cost model that has learnt from them."""

RANDOM_RANKED_DRAWS = 256


@dataclass(frozen=True)
class SearchSettings:
    """How an open world is searched on the cost model before anything is measured."""

    random_starts: int = 1024
    borrowed_starts: int = 16
    local_starts: int = 16
    local_evaluations: int = 1024


@dataclass
class CostModelRanked:
    """The pool, or in an open world random, known-good and locally searched configs, in the order of the predicted time."""

    log_time: LogTime
    known: KnownGood
    settings: SearchSettings = field(default_factory=SearchSettings)
    name: str = "cost_model"
    _ranking: dict[str, list[dict[str, int]]] = field(default_factory=dict, repr=False)

    def propose(
        self, task: Task, history: Sequence[Measurement], n: int, rng: np.random.Generator
    ) -> list[dict[str, int]]:
        """The next n of a ranking made once per workload."""
        key = str(task.workload)
        if key not in self._ranking:
            self._ranking[key] = rank(task, self.log_time, candidates(task, self.known, self.settings, rng), self.settings, rng)
        return untried(self._ranking[key], history, n)


@dataclass
class CostModelRefit:
    """The same, ranked anew after each batch by a cost model that has learnt from this task's measurements."""

    log_time: LogTime
    refit: Refit
    known: KnownGood
    settings: SearchSettings = field(default_factory=SearchSettings)
    name: str = "cost_model_refit"
    _candidates: dict[str, list[dict[str, int]]] = field(default_factory=dict, repr=False)

    def propose(
        self, task: Task, history: Sequence[Measurement], n: int, rng: np.random.Generator
    ) -> list[dict[str, int]]:
        """The n best by the model as it is after `history`."""
        key = str(task.workload)
        if key not in self._candidates:
            self._candidates[key] = candidates(task, self.known, self.settings, rng)
        log_time = self.refit(history) if history else self.log_time
        return untried(rank(task, log_time, self._candidates[key], self.settings, rng), history, n)


@dataclass
class RandomRanked:
    """256 random configs in the order of the predicted time: what a proposal generator has to beat."""

    log_time: LogTime
    fair_pools: FairPools = field(default_factory=dict)
    name: str = "random_ranked"
    _ranking: dict[str, list[dict[str, int]]] = field(default_factory=dict, repr=False)

    def propose(
        self, task: Task, history: Sequence[Measurement], n: int, rng: np.random.Generator
    ) -> list[dict[str, int]]:
        """The next n of the ranked draws."""
        key = str(task.workload)
        if key not in self._ranking:
            drawn = draw(task, RANDOM_RANKED_DRAWS, self.fair_pools, rng)
            self._ranking[key] = [drawn[i] for i in np.argsort(self.log_time(task.workload, drawn), kind="stable")]
        return untried(self._ranking[key], history, n)


def candidates(task: Task, known: KnownGood, settings: SearchSettings, rng: np.random.Generator) -> list[dict[str, int]]:
    """The pool, or random legal configs, the nearest workloads' best and the safe default."""
    if task.pool is not None:
        return list(task.pool)
    lent = [admit(task, config) for config in islice(borrowed(known, task.workload), settings.borrowed_starts)]
    drawn = draw(task, settings.random_starts, {}, rng)
    return distinct([safe_default(task), naive_config(task), *lent, *drawn])


def rank(
    task: Task, log_time: LogTime, configs: list[dict[str, int]], settings: SearchSettings, rng: np.random.Generator
) -> list[dict[str, int]]:
    """Configs by predicted time, best first; in an open world together with what local search finds from the best."""

    def score(some: list[dict[str, int]]) -> np.ndarray:
        return np.asarray(log_time(task.workload, some))

    scored = [(float(value), config) for value, config in zip(score(configs), configs, strict=True)]
    scored.sort(key=lambda pair: pair[0])
    if task.pool is None:
        starts = [config for _, config in scored[: settings.local_starts]]
        scored += local_search(task, score, starts, settings.local_evaluations, rng)
        scored.sort(key=lambda pair: pair[0])
    return distinct([config for _, config in scored])
