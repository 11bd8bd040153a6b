"""What knobs do to the time, read from random configs alone: each by itself, and in pairs."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from cost_model.training import columns_in
from pipeline.reporting.sources import Material
from templates.errors import InputError
from templates.knob import Knob
from templates.template import Template

ROWS_NEEDED = 5
"""A mean over fewer rows is left out."""


@dataclass(frozen=True)
class Sample:
    """Random configs: knob columns (n,), log time less the workload's mean (n,), the workload's number (n,), and for each knob
    the rows in which it has an effect.
    """

    template: Template
    columns: dict[str, np.ndarray]
    residual: np.ndarray
    workload: np.ndarray
    active: dict[str, np.ndarray]


def sample(material: Material) -> Sample:
    """The random rows as a `Sample`; InputError where there are too few of each workload."""
    rows: pd.DataFrame = material.fair
    rows = rows[rows.groupby("workload")["time_us"].transform("size") >= 2 * ROWS_NEEDED]
    if rows.empty:
        op = material.template.op
        raise InputError(f"fewer than {2 * ROWS_NEEDED} random configs of each workload: run `make collect ARGS=op={op}`")
    log_us = np.log(rows["time_us"].to_numpy(dtype=float))
    number, _ = pd.factorize(rows["workload"])
    means = np.bincount(number, weights=log_us) / np.bincount(number)
    columns = columns_in(rows, material.template)
    active = {knob.name: _active(knob, columns) for knob in material.template.knobs}
    return Sample(material.template, columns, log_us - means[number], number, active)


def _active(knob: Knob, columns: dict[str, np.ndarray]) -> np.ndarray:
    found = True if knob.active is None else knob.active(columns)
    return np.broadcast_to(np.asarray(found, dtype=bool), columns[knob.name].shape)


@dataclass(frozen=True)
class Effect:
    """One value of a knob: times over the workload's geometric mean, averaged over workloads, with the range of the middle 80 %
    of them; `best`: the least time with this value over the least with any, the same average. `rows`: how many it rests on.
    """

    value: int
    mean: float
    low: float
    high: float
    best: float
    rows: int


def effects(found: Sample, knob: Knob) -> list[Effect]:
    """An effect per value that has rows enough on some workload, over the rows in which the knob matters."""
    active, column = found.active[knob.name], found.columns[knob.name]
    lines = []
    each = [found.workload == w for w in np.unique(found.workload)]
    for value in knob.values:
        rows = active & (column == value)
        enough = [here for here in each if (rows & here).sum() >= ROWS_NEEDED]
        if enough:
            means = [found.residual[rows & here].mean() - found.residual[active & here].mean() for here in enough]
            bests = [found.residual[rows & here].min() - found.residual[here].min() for here in enough]
            low, high = np.exp(np.quantile(means, (0.1, 0.9))).tolist()
            mean, best = float(np.exp(np.mean(means))), float(np.exp(np.mean(bests)))
            lines.append(Effect(value, mean, low, high, best, int(rows.sum())))
    return lines


def importance(lines: list[Effect]) -> float:
    """Largest over least mean of a knob's values; 1: it does nothing on average."""
    return max(e.mean for e in lines) / min(e.mean for e in lines) if lines else 1.0


@dataclass(frozen=True)
class Pair:
    """Two knobs: mean times over the mean of all, (values of `down`, values of `across`), NaN where too few rows. `interaction`:
    share of the variance of log time that the two explain together beyond the sum of their own effects.
    """

    down: Knob
    across: Knob
    table: np.ndarray
    interaction: float


def pairs(found: Sample, most: int) -> list[Pair]:
    """The pairs that interact most, strongest first."""
    every = [_pair(found, one, other) for one, other in combinations(found.template.knobs, 2)]
    return sorted((pair for pair in every if pair is not None), key=lambda pair: -pair.interaction)[:most]


def _pair(found: Sample, down: Knob, across: Knob) -> Pair | None:
    rows = found.active[down.name] & found.active[across.name]
    if rows.sum() < ROWS_NEEDED * len(down.values) * len(across.values):
        return None
    i = np.searchsorted(down.values, found.columns[down.name][rows])
    j = np.searchsorted(across.values, found.columns[across.name][rows])
    y = found.residual[rows] - found.residual[rows].mean()
    shape = len(down.values), len(across.values)
    count = np.bincount(i * shape[1] + j, minlength=shape[0] * shape[1]).reshape(shape)
    total = np.bincount(i * shape[1] + j, weights=y, minlength=shape[0] * shape[1]).reshape(shape)
    if (count >= ROWS_NEEDED).sum() < 4:
        return None
    mean = total / np.maximum(count, 1)
    a, b = np.zeros(shape[0]), np.zeros(shape[1])
    for _ in range(20):  # backfitting: the additive part of a table with unequal counts
        a = ((mean - b) * count).sum(axis=1) / np.maximum(count.sum(axis=1), 1)
        b = ((mean - a[:, None]) * count).sum(axis=0) / np.maximum(count.sum(axis=0), 1)
    interaction = (count * (mean - a[:, None] - b) ** 2 * (count >= ROWS_NEEDED)).sum() / max(1e-12, float((y**2).sum()))
    # Chance alone gives each cell 1/n of the rows' variance: weak pairs of many values must not look strong.
    interaction -= (count >= ROWS_NEEDED).sum() / len(y)
    return Pair(down, across, np.where(count >= ROWS_NEEDED, np.exp(mean), np.nan), float(interaction))
