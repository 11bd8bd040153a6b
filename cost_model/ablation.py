"""What each group of features is worth: the same trees, fitted with some columns left out or added."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xgboost as xgb
from numpy.typing import NDArray

from cost_model.features import matrix, names
from cost_model.model import CostModelSettings, grow
from cost_model.report import Rank, Score, scores
from cost_model.source import NAMES, source_features
from cost_model.training import TrainingSet, assemble, columns_in, timed
from datasets.device import Device
from templates.knob import parse_config
from templates.render import render
from templates.template import Template, load_template
from templates.workload import Workload

VARIANTS: dict[str, tuple[str, ...]] = {
    "all": (),
    "without launch_": ("launch_",),
    "without d_": ("d_",),
    "knobs and shape only": ("launch_", "d_", "roofline_", "device_"),
    "with ast_": (),
}
"""Feature groups left out, by the variant's name."""


def sampled(frame: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """At most `rows` timed rows of each workload: the syntax trees take a parse per config."""
    kept = [group.sample(min(rows, len(group)), random_state=seed) for _, group in timed(frame).groupby("workload", sort=True)]
    return pd.concat(kept, ignore_index=True)


def ablate(
    train: pd.DataFrame, held_out: pd.DataFrame, device: Device, settings: CostModelSettings, seed: int
) -> dict[str, list[Score]]:
    """Scores on the held-out rows by variant of the features."""
    template = load_template(str(train["op"].iloc[0]))
    data = assemble(train, device)
    order = pd.concat([group for _, group in timed(train).groupby("workload", sort=True)])
    with_source = np.hstack([data.features, _source_rows(template, order["config"])])
    return {name: _variant(name, template, data, with_source, held_out, device, settings, seed) for name in VARIANTS}


def _variant(
    name: str, template: Template, data: TrainingSet, with_source: NDArray[np.float32], held_out: pd.DataFrame,
    device: Device, settings: CostModelSettings, seed: int,
) -> list[Score]:  # fmt: skip
    columns = [*names(template), *(f"ast_{count}" for count in NAMES)]
    dropped = (*VARIANTS[name], *(() if "ast_" in name else ("ast_",)))
    kept = [i for i, column in enumerate(columns) if not column.startswith(dropped)] if dropped else list(range(len(columns)))
    chosen = TrainingSet(with_source[:, kept], data.target, data.weight, data.failed, data.means)
    members = [grow(chosen, settings, seed * 1000 + i) for i in range(settings.members)]
    return scores(held_out, _rank(members, template, kept, device))


def _rank(members: Sequence[xgb.Booster], template: Template, kept: list[int], device: Device) -> Rank:
    def rank(workload: Workload, rows: pd.DataFrame) -> NDArray[np.float64]:
        found = matrix(template, workload, columns_in(rows, template), device)
        if kept[-1] >= found.shape[1]:
            found = np.hstack([found, _source_rows(template, rows["config"])])
        mean: NDArray[np.float64] = np.mean([member.inplace_predict(found[:, kept]) for member in members], axis=0)
        return mean

    return rank


def _source_rows(template: Template, configs: "pd.Series[str]") -> NDArray[np.float32]:
    """Counts of the syntax tree, float32 (n, len(NAMES))."""
    rows = [list(source_features(render(template, parse_config(text))).values()) for text in configs]
    return np.array(rows, dtype=np.float32)
