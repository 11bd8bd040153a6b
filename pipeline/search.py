"""Guided search: what to measure next, by a quick model of everything measured so far.

Each batch: boosted trees fitted on this operator's rows (those of the workloads in question weighted up), a local search on
their prediction from the best configs measured here and on other workloads; mostly what looks fastest to the most hopeful of
the models, some of it from further down, some of it at random. It finds the "best known" of a workload, everybody's yardstick.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import xgboost

from cost_model import features
from datasets.measurement import Measurement
from pipeline.archive import Archive
from pipeline.strategies.local_search import local_search
from pipeline.strategy import Task
from templates import space
from templates.knob import Config, columns_of
from templates.workload import Workload

NOTHING_LEARNT = 8
"""Below so many timed rows the model says nothing, and known-good and random configs are measured instead."""


@dataclass(frozen=True)
class GuidedSettings:
    """How a batch is chosen.

    trees, depth, members: the boosted trees and how many models average. rows: most rows to fit on; own_weight: the weight of
    a row of the workloads searched for. parents: best measured configs the search starts from; borrowed: best ones of each
    other workload; fresh: random ones. evaluations: configs scored in all. explore: share of the batch drawn among the
    best tenth of the candidates, and again that share drawn from the whole legal space. threads: for the trees.
    """

    trees: int = 150
    depth: int = 8
    members: int = 2
    rows: int = 12000
    own_weight: float = 3.0
    parents: int = 24
    borrowed: int = 3
    fresh: int = 256
    evaluations: int = 3000
    explore: float = 0.15
    threads: int = 4


class Model:
    """Boosted trees on an archive, for the workloads given: predicted log time, and how likely a config fails."""

    def __init__(
        self, archive: Archive, workloads: Sequence[Workload], settings: GuidedSettings, rng: np.random.Generator
    ) -> None:
        self.archive = archive
        x, y, weight = _training_rows(archive, workloads, settings, rng)
        timed = np.isfinite(y)
        self.members = [
            _fit(x[timed], y[timed], weight[timed], "reg:squarederror", settings, int(rng.integers(2**31)))
            for _ in range(settings.members)
        ]
        failed = (~timed).astype(float)
        enough = failed.sum() >= 2 * NOTHING_LEARNT
        self.failing = _fit(x, failed, weight, "binary:logistic", settings, 0, trees=40, depth=5) if enough else None

    def log_time(self, workload: Workload, configs: Sequence[Config]) -> np.ndarray:
        """Predictions (members, n), each made worse by the chance that the config fails."""
        template, device = self.archive.template, self.archive.device
        x = features.matrix(template, workload, columns_of(list(configs), template.names), device)
        times = np.stack([member.inplace_predict(x) for member in self.members])
        if self.failing is None:
            return times
        return np.asarray(times - np.log(np.clip(1.0 - self.failing.inplace_predict(x), 0.05, 1.0)))

    def score(self, workload: Workload, configs: list[dict[str, int]]) -> np.ndarray:
        """(n,), lower is better: the most hopeful member's prediction."""
        return np.asarray(self.log_time(workload, configs).min(axis=0))


def _training_rows(
    archive: Archive, workloads: Sequence[Workload], settings: GuidedSettings, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, targets and weights: all rows of the workloads, and a random part of the other workloads' up to `rows`."""
    known = [w for w in list(archive.rows) if archive.rows[w].configs]
    parts = [archive.table(w) for w in known]
    x, y = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    mine = np.concatenate([np.full(len(p[1]), w in workloads) for p, w in zip(parts, known, strict=True)])
    share = max(0.0, settings.rows - mine.sum()) / max(1, (~mine).sum())
    keep = mine | (rng.random(len(y)) < share)
    return x[keep], y[keep], np.where(mine, settings.own_weight, 1.0)[keep]


def _fit(
    x: np.ndarray, y: np.ndarray, weight: np.ndarray, objective: str, settings: GuidedSettings, seed: int,
    trees: int | None = None, depth: int | None = None,
) -> xgboost.Booster:  # fmt: skip
    parameters = {
        "objective": objective, "max_depth": depth or settings.depth, "eta": 0.1, "subsample": 0.7, "colsample_bynode": 0.5,
        "min_child_weight": 2, "max_bin": 64, "seed": seed, "nthread": settings.threads,
    }  # fmt: skip
    data = xgboost.QuantileDMatrix(x, y, weight=weight, max_bin=64, nthread=settings.threads)
    return xgboost.train(parameters, data, num_boost_round=trees or settings.trees)


@dataclass
class GuidedSearch:
    """The strategy; what it measured on other workloads is in the archive."""

    archive: Archive
    settings: GuidedSettings = field(default_factory=GuidedSettings)
    name: str = "guided"

    def propose(self, task: Task, history: Sequence[Measurement], n: int, rng: np.random.Generator) -> list[dict[str, int]]:
        """n distinct legal configs that are not measured yet, best first; see `Strategy`."""
        self.archive.add(history)
        return self.batch(task, n, rng, self.model([task.workload], rng))

    def model(self, workloads: Sequence[Workload], rng: np.random.Generator) -> Model | None:
        """What the archive says by now, for these workloads above all; None where it says too little."""
        timed = sum(int(np.isfinite(rows.log_us).sum()) for rows in list(self.archive.rows.values()))
        return Model(self.archive, workloads, self.settings, rng) if timed >= NOTHING_LEARNT else None

    def batch(self, task: Task, n: int, rng: np.random.Generator, model: Model | None) -> list[dict[str, int]]:
        """The same as `propose`, with a model at hand."""
        ranked = self._ranked(task, model, rng)
        fresh = [c for c in ranked if not self.archive.knows(task.workload, c)]
        wild = round(n * self.settings.explore)
        tenth = fresh[n : max(4 * n, len(fresh) // 10)]
        drawn = [tenth[i] for i in rng.permutation(len(tenth))[:wild]]
        chosen = fresh[: max(1, n - 2 * wild)] + drawn + self._anything(task, n, rng)
        return list({self.archive.key(c): c for c in chosen + fresh}.values())[:n]

    def _ranked(self, task: Task, model: Model | None, rng: np.random.Generator) -> list[dict[str, int]]:
        starts = self._starts(task, rng)
        if model is None:
            return starts if task.pool is None else list(task.pool)
        score = partial(model.score, task.workload)
        return [c for _, c in local_search(task, score, starts, self.settings.evaluations, rng)]

    def _starts(self, task: Task, rng: np.random.Generator) -> list[dict[str, int]]:
        """The best configs here, those borrowed from other workloads that are legal here, and random ones."""
        others = [w for w in list(self.archive.rows) if w != task.workload]
        borrowed = [c for w in others for c in self.archive.best(w, self.settings.borrowed)]
        borrowed = [space.canonical_config(task.template, c) for c in [dict(task.template.expert(task.workload)), *borrowed]]
        legal = [c for c in borrowed if not space.violations(task.template, c, task.workload, task.limits)]
        fresh = self._anything(task, self.settings.fresh, rng)
        return self.archive.best(task.workload, self.settings.parents) + legal + fresh

    def _anything(self, task: Task, n: int, rng: np.random.Generator) -> list[dict[str, int]]:
        """Up to n unmeasured configs at random."""
        if task.pool is not None:
            drawn = [task.pool[i] for i in rng.permutation(len(task.pool))]
        else:
            drawn = space.sample(task.template, task.workload, task.limits, n, rng)
        return [c for c in drawn if not self.archive.knows(task.workload, c)][:n]
