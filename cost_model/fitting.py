"""Fit on training workloads, judge on held-out ones: the work of the stage `fit`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pandas as pd

from cost_model.ablation import ablate, sampled
from cost_model.model import CostModel, CostModelSettings
from cost_model.report import Score, mean_of, ranking, scores
from datasets import split
from datasets.device import Device
from templates.errors import InputError


@dataclass(frozen=True)
class FitSettings:
    """report_test: score the test workloads too. ablation: also fit with groups of features left out, on `ablation_rows` rows
    of each workload.
    """

    report_test: bool = False
    ablation: bool = False
    ablation_rows: int = 300


@dataclass(frozen=True)
class FitReport:
    """The model, how it does per split and workload, and per variant of the features where asked."""

    model: CostModel
    rows: int
    scores: dict[str, list[Score]]
    ablation: dict[str, list[Score]] = field(default_factory=dict)


def fit(
    frame: pd.DataFrame,
    device: Device,
    model: CostModelSettings | None = None,
    settings: FitSettings | None = None,
    seed: int = 0,
) -> FitReport:
    """Fit on the rows of the training workloads and score on the others'. InputError where there is nothing to learn from."""
    model, settings = model or CostModelSettings(), settings or FitSettings()
    if frame.empty:
        raise InputError("fit: no timings of this template on this GPU; run `make collect`")
    parts = by_split(frame)
    if parts["train"].empty:
        raise InputError("fit: no timings of a training workload; run `make collect`")
    fitted = CostModel.fit(parts["train"], device, model, seed)
    judged = ("validation", "test") if settings.report_test else ("validation",)
    found = {name: scores(parts[name], ranking(fitted, device)) for name in judged}
    ablation: dict[str, list[Score]] = {}
    if settings.ablation:
        train, held_out = (sampled(parts[name], settings.ablation_rows, seed) for name in ("train", "validation"))
        ablation = ablate(train, held_out, device, model, seed)
    return FitReport(fitted, len(fitted.data.target), found, ablation)


def by_split(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each split's workloads; rows of unlisted shapes are in none."""
    lists = split.workloads(str(frame["op"].iloc[0]))
    return {name: frame[frame["workload"].isin([str(w) for w in items])] for name, items in lists.items()}


def report_rows(report: FitReport) -> list[list[str]]:
    """Rows of the printed table: split or variant, workload, configs, Spearman, regret at 1 and at 10."""
    rows = []
    for name, found in report.scores.items():
        rows += [[name, str(s.workload), str(s.configs), *_numbers((s.spearman, s.regret_1, s.regret_10))] for s in found]
        if found:
            rows.append([name, "mean", "", *_numbers(mean_of(found))])
    rows += [["features", name, "", *_numbers(mean_of(found))] for name, found in report.ablation.items() if found]
    return rows


def _numbers(values: Sequence[float]) -> list[str]:
    return [f"{value:.3f}" for value in values]


def summary(report: FitReport) -> dict[str, Any]:
    """The report as JSON."""

    def plain(found: list[Score]) -> list[dict[str, Any]]:
        return [asdict(score) | {"workload": str(score.workload)} for score in found]

    return {
        "op": report.model.template.op,
        "template_version": report.model.template.version,
        "rows": report.rows,
        "failures": len(report.model.data.failed),
        "scores": {name: plain(found) for name, found in report.scores.items()},
        "ablation": {name: plain(found) for name, found in report.ablation.items()},
    }
