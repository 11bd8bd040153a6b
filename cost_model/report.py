"""How good a cost model is on workloads it did not see: rank correlation, and what trusting its ranking costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import spearmanr

from cost_model.model import CostModel
from cost_model.training import columns_in, timed
from datasets.device import Device
from templates.workload import Workload

Rank = Callable[[Workload, pd.DataFrame], NDArray[np.float64]]
"""A workload and its rows -> a score per row, lowest first."""


@dataclass(frozen=True)
class Score:
    """One workload. Regrets are 1 - t_best / t_found, where found is the fastest of the first 1 or 10 of the ranking and best
    the fastest of all `configs` measured ones; 0 is perfect.
    """

    workload: Workload
    configs: int
    spearman: float
    regret_1: float
    regret_10: float


def scores(frame: pd.DataFrame, rank: Rank) -> list[Score]:
    """Score a ranking on every workload of a frame, over its distinct timed configs; with fewer than three nothing is ranked."""
    found = []
    for text, rows in timed(frame).groupby("workload", sort=True):
        rows = rows.groupby("config", as_index=False).first()
        workload, time_us = Workload.parse(str(text)), rows["time_us"].to_numpy(dtype=float)
        if len(rows) < 3 or np.ptp(time_us) == 0:
            continue
        predicted = rank(workload, rows)
        order = time_us[np.argsort(predicted, kind="stable")]
        correlation = float(spearmanr(predicted, time_us).statistic) if np.ptp(predicted) > 0 else 0.0
        regrets = [float(1 - time_us.min() / order[:k].min()) for k in (1, 10)]
        found.append(Score(workload, len(rows), correlation, *regrets))
    return found


def ranking(model: CostModel, device: Device) -> Rank:
    """The ensemble's mean."""

    def rank(workload: Workload, rows: pd.DataFrame) -> NDArray[np.float64]:
        mean: NDArray[np.float64] = model.log_time(workload, columns_in(rows, model.template), device).mean(axis=0)
        return mean

    return rank


def mean_of(found: Sequence[Score]) -> tuple[float, float, float]:
    """Mean Spearman, regret at 1 and regret at 10."""
    rank, one, ten = np.mean([(score.spearman, score.regret_1, score.regret_10) for score in found], axis=0).tolist()
    return rank, one, ten
