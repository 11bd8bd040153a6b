"""The cost model's predictions beside the measured times, on workloads it was not fitted to."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from cost_model.model import CostModel
from cost_model.training import columns_in
from datasets.split import split_of
from pipeline.reporting.drawing import BLUE, MUTED, VERMILION, panels, plain_log
from pipeline.reporting.section import Picture, Section, Table, label
from pipeline.reporting.sources import Material
from templates.errors import InputError
from templates.workload import Workload

POINTS = 100
"""Dots per workload, drawn at random: a page must load."""
RANGE = (1, 2, 5, 10, 20, 50)


@dataclass(frozen=True)
class Compared:
    """One workload: measured and predicted times over the workload's least of each; (n,). Numbers are over all n configs."""

    workload: Workload
    split: str
    measured: np.ndarray
    predicted: np.ndarray

    @property
    def spearman(self) -> float:
        """Rank correlation."""
        return float(spearmanr(self.predicted, self.measured).statistic) if np.ptp(self.predicted) > 0 else 0.0

    def regret(self, k: int) -> float:
        """1 - best / the best of the k that the model ranks first."""
        return float(1 - self.measured.min() / self.measured[np.argsort(self.predicted, kind="stable")[:k]].min())


def compared(material: Material) -> list[Compared]:
    """Held-out workloads with three timed configs or more. InputError without a cost model or without such rows."""
    model = CostModel.load(material.run("fit").folder / "cost_model")
    fitted = {workload for workload, _ in model.data.means}
    found = []
    for text, group in material.timed.groupby("workload"):
        workload = Workload.parse(str(text))
        rows: pd.DataFrame = group.groupby("config", as_index=False).first()
        if workload in fitted or len(rows) < 3:
            continue
        log_us = model.log_time(workload, columns_in(rows, material.template), material.device).mean(axis=0)
        time_us = rows["time_us"].to_numpy(dtype=float)
        found.append(Compared(workload, split_of(workload), time_us / time_us.min(), np.exp(log_us - log_us.min())))
    if not found:
        raise InputError("no timings of a workload that the cost model was not fitted to: run `make collect`")
    return sorted(found, key=lambda c: (c.split != "test", c.split, str(c.workload)))


def section(material: Material) -> Section:
    """A panel of dots per held-out workload."""
    found = compared(material)
    rng = np.random.default_rng(0)
    shown = [rng.permutation(len(c.measured))[:POINTS] for c in found]

    def draw(narrow: bool) -> Figure:
        made, every = panels(len(found), narrow, (4, 2), 1.7)
        for axes, one, dots in zip(every, found, shown, strict=True):
            most = 1.3 * max(one.measured[dots].max(), one.predicted[dots].max())
            axes.plot([1, most], [1, most], color=MUTED, linewidth=0.8)
            axes.plot(one.measured[dots], one.predicted[dots], ".", color=BLUE, markersize=2.5, alpha=0.6)
            first = int(one.predicted.argmin())
            axes.plot(one.measured[first], one.predicted[first], "P", color=VERMILION, markersize=5)
            axes.set(xscale="log", yscale="log", xlim=(0.9, most), ylim=(0.9, most))
            for axis in (axes.xaxis, axes.yaxis):
                plain_log(axis, [tick for tick in RANGE if tick <= most])
            axes.set_title(label(one.workload, 26), fontsize=6.5)
            axes.text(0.04, 0.96, f"rank {one.spearman:.2f}", transform=axes.transAxes, va="top", fontsize=7)
        made.supxlabel("measured time / the workload's best", fontsize=8)
        made.supylabel("predicted / least predicted", fontsize=8)
        return made

    mean = float(np.mean([c.spearman for c in found]))
    rows = [
        [str(c.workload), c.split, str(len(c.measured)), *(f"{value:.3f}" for value in (c.spearman, c.regret(1), c.regret(10)))]
        for c in found
    ]
    header = ["workload", "split", "configs", "Spearman", "regret at 1", "regret at 10"]
    table = Table("Rank correlation and regret", header, rows)
    alt = f"Predicted against measured time on {len(found)} held-out workloads, both relative; mean rank correlation {mean:.2f}."
    lead = (
        "The cost model ranks configs without compiling them. Each dot is a config of a workload it was not fitted to; on the "
        f"line it is right. The cross is the one it ranks first. At most {POINTS} dots a workload, the numbers are over all "
        "configs."
    )
    picture = Picture("predictions", "Held-out workloads", alt, draw, table)
    return Section("predictions", "Predicted against measured", lead, [picture])
