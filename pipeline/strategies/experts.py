"""Several opinions of what is fast, weighed by what was measured, and a Gaussian process on what none of them explains.

log t(x) = level + sum_e w_e f_e(x) + g(x), with the weights w_e ~ N(share_e, trust^2), g a Gaussian process over the knobs, and
a level that is anybody's guess: all of it one Gaussian process (Rasmussen and Williams, 2006, section 2.7), so that weights and
residual follow from the measurements together. The next config is the one of largest expected improvement (Mockus, 1975;
Jones, Schonlau, Welch, 1998), which has no constant to choose; a batch believes its own predictions (kriging believer).
Experts are tables of other GPUs, or cost models. The settings are fitted where the truth is known (`expert_fit`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist
from scipy.special import ndtr

from datasets.measurement import Measurement
from pipeline.strategies.known_good import distinct
from pipeline.strategies.transfer import LogTime
from pipeline.strategy import Task
from templates.knob import config_text
from templates.template import Template

LEVEL_SD = 3.0
"""Prior spread of the level, log time, about the mean of the configs' own predictions: nearly nothing is known of it."""

SHORTLIST = 512
"""Only so many configs, the best of a round, are looked at again as its batch is put together."""


@dataclass(frozen=True)
class ExpertSettings:
    """last_share: weight that the last expert starts with, the others sharing the rest; all share alike where it is None.
    trust: how far a weight may be from that. sd and reach: size of what no expert explains, log time, and the knob distance
    (each knob's range is 1) over which it is alike. noise: what cannot be explained at all.
    """

    last_share: float | None = None
    trust: float = 0.5
    sd: float = 0.2
    reach: float = 2.0
    noise: float = 0.05


@dataclass(frozen=True)
class Opinions:
    """n configs: what each expert says, (n, experts), log time with the mean over the configs taken out, and where they are in
    the space, (n, knobs), each knob's range from 0 to 1.
    """

    said: np.ndarray
    places: np.ndarray

    def prior(self, at: np.ndarray, settings: ExpertSettings) -> np.ndarray:
        """What the experts say together before anything is measured, (n,)."""
        count = self.said.shape[1]
        if settings.last_share is None or count == 1:
            return np.asarray(self.said[at].mean(axis=1))
        rest = (1.0 - settings.last_share) / (count - 1)
        return np.asarray(self.said[at] @ np.array([rest] * (count - 1) + [settings.last_share]))

    def covariance(self, one: np.ndarray, other: np.ndarray, settings: ExpertSettings) -> np.ndarray:
        """Prior covariance (rows, columns) of two index arrays' log times, noise left out."""
        weights = settings.trust**2 * self.said[one] @ self.said[other].T
        alike = np.exp(-cdist(self.places[one], self.places[other], metric="cityblock") / settings.reach)
        return np.asarray(LEVEL_SD**2 + weights + settings.sd**2 * alike)

    def variance(self, at: np.ndarray, settings: ExpertSettings) -> np.ndarray:
        """Its diagonal (n,)."""
        return np.asarray(LEVEL_SD**2 + settings.trust**2 * (self.said[at] ** 2).sum(axis=1) + settings.sd**2)

    def posterior(
        self, seen: np.ndarray, log_us: np.ndarray, at: np.ndarray, settings: ExpertSettings
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation (n,) at the configs `at`, given log times measured at `seen`; without any, the prior."""
        prior = self.prior(at, settings)
        if not len(seen):
            return prior, np.sqrt(self.variance(at, settings))
        off = log_us - self.prior(seen, settings)
        level = float(off.mean())
        within = self.covariance(seen, seen, settings) + settings.noise**2 * np.eye(len(seen))
        factor = cho_factor(within, lower=True)
        across = self.covariance(at, seen, settings)
        mean = level + prior + across @ cho_solve(factor, off - level)
        explained = np.einsum("ij,ji->i", across, cho_solve(factor, across.T))
        return mean, np.sqrt(np.maximum(self.variance(at, settings) - explained, 1e-12))


def expected_improvement(mean: np.ndarray, sd: np.ndarray, best: float) -> np.ndarray:
    """E[max(best - y, 0)] for y ~ N(mean, sd^2), (n,)."""
    z = (best - mean) / sd
    return np.asarray(sd * (z * ndtr(z) + np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)))


def places(template: Template, configs: Sequence[dict[str, int]]) -> np.ndarray:
    """Each value's place among its knob's values, (n, knobs), from 0 to 1."""
    columns = []
    for knob in template.knobs:
        steps = max(1, len(knob.values) - 1)
        place = {value: i / steps for i, value in enumerate(knob.values)}
        columns.append([place[config[knob.name]] for config in configs])
    return np.array(columns, dtype=float).T


@dataclass
class Experts:
    """The strategy. `risk(workload, configs)`: how likely each config fails, (n,). `candidates`: what an open world offers."""

    experts: Sequence[LogTime]
    settings: ExpertSettings
    risk: LogTime | None = None
    candidates: Callable[[Task, np.random.Generator], list[dict[str, int]]] | None = None
    name: str = "experts"
    _tables: dict[str, "_Table"] = field(default_factory=dict, repr=False)

    def propose(
        self, task: Task, history: Sequence[Measurement], n: int, rng: np.random.Generator
    ) -> list[dict[str, int]]:
        """The next n, best first."""
        table = self._table(task, rng)
        left = np.ones(len(table.configs), dtype=bool)
        seen, log_us = [], []
        for m in history:
            place = table.index.get(config_text(m.config))
            if place is not None:
                left[place] = False
                if m.time_us is not None:
                    seen.append(place)
                    log_us.append(float(np.log(m.time_us)))
        return [table.configs[i] for i in self._batch(table, seen, log_us, np.flatnonzero(left), n)]

    def _batch(self, table: "_Table", seen: list[int], log_us: list[float], open_: np.ndarray, n: int) -> list[int]:
        picks: list[int] = []
        while len(picks) < n and len(open_):
            score = self._score(table, np.array(seen, dtype=int), np.array(log_us), open_)
            best_first = open_[np.argsort(-score, kind="stable")[: max(SHORTLIST, n)]]
            picked, open_ = int(best_first[0]), best_first[1:]
            believed, _ = table.opinions.posterior(
                np.array(seen, dtype=int), np.array(log_us), np.array([picked]), self.settings
            )
            seen, log_us = [*seen, picked], [*log_us, float(believed[0])]
            picks.append(picked)
        return picks

    def _score(self, table: "_Table", seen: np.ndarray, log_us: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Higher is better, (n,): how fast before anything ran, expected improvement afterwards; less for what may fail."""
        mean, sd = table.opinions.posterior(seen, log_us, at, self.settings)
        works = 1.0 - table.risk[at]
        if not len(seen):
            return np.asarray(np.log(works) - mean)
        return np.asarray(expected_improvement(mean, sd, float(log_us.min())) * works)

    def _table(self, task: Task, rng: np.random.Generator) -> "_Table":
        key = f"{task.workload}@{task.device.name}/{'open' if task.pool is None else len(task.pool)}"
        if key not in self._tables:
            offered = list(task.pool) if task.pool is not None else self.candidates(task, rng) if self.candidates else []
            configs = distinct(offered)
            said = np.stack([np.asarray(expert(task.workload, configs), dtype=float) for expert in self.experts], axis=1)
            risk = np.zeros(len(configs)) if self.risk is None else np.clip(self.risk(task.workload, configs), 0.0, 0.95)
            opinions = Opinions(said - said.mean(axis=0), places(task.template, configs))
            index = {config_text(config): i for i, config in enumerate(configs)}
            self._tables[key] = _Table(configs, index, opinions, risk)
        return self._tables[key]


@dataclass(frozen=True)
class _Table:
    configs: list[dict[str, int]]
    index: dict[str, int]
    opinions: Opinions
    risk: np.ndarray
