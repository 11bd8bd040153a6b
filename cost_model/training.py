"""Measured rows -> what the cost model is fitted to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cost_model.features import matrix
from datasets.device import Device
from datasets.store import gpu_key
from templates.errors import InputError
from templates.template import Template, load_template
from templates.workload import Workload

Predict = Callable[[NDArray[np.float32]], NDArray[np.floating]]
"""Features (n, d) -> centred log times (n,)."""

FAILED = ("compile_error", "compile_timeout", "launch_error", "wrong_answer", "crash", "timeout")
"""What a config does on its own account; illegal ones are known beforehand, contaminated ones are the surroundings' fault."""

FAIR_ROWS = 30
"""With this many random rows of a workload their mean is its centre; guided rows are better than average by intent."""


@dataclass(frozen=True)
class TrainingSet:
    """Features (n, d) float32, targets and weights (n,) of the ok rows, features of the failed ones, and each workload's mean.

    The target is natural log of microseconds minus the workload's mean.
    """

    features: NDArray[np.float32]
    target: NDArray[np.float32]
    weight: NDArray[np.float32]
    failed: NDArray[np.float32]
    means: list[tuple[Workload, float]]

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """The arrays by name."""
        return {"features": self.features, "target": self.target, "weight": self.weight, "failed": self.failed}

    @staticmethod
    def of_arrays(arrays: Mapping[str, NDArray[np.float32]], means: list[tuple[Workload, float]]) -> "TrainingSet":
        """The inverse of `arrays`."""
        return TrainingSet(arrays["features"], arrays["target"], arrays["weight"], arrays["failed"], means)


def assemble(frame: pd.DataFrame, device: Device, predict: Predict | None = None) -> TrainingSet:
    """The training set of one operator's rows on one GPU.

    With `predict`, a workload's centre is what lifts these predictions to the measured times: right also for a handful
    of rows that are no fair sample. InputError: nothing to learn from, mixed operators, another GPU or template version.
    """
    frame = frame[frame["origin"] != "vendor"]
    template = _checked(frame, device)
    parts: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
    failed: list[NDArray[np.float32]] = []
    means: list[tuple[Workload, float]] = []
    for text, rows in frame.groupby("workload", sort=True):
        workload = Workload.parse(str(text))
        features = matrix(template, workload, columns_in(rows, template), device)
        ok = (rows["status"] == "ok").to_numpy()
        failed.append(features[rows["status"].isin(FAILED).to_numpy()])
        if not ok.any():
            continue
        log_us = np.log(rows["time_us"].to_numpy(dtype=float)[ok])
        if predict is None:
            fair = rows["origin"].to_numpy()[ok] == "random"
            mean = float(log_us[fair].mean() if fair.sum() >= FAIR_ROWS else log_us.mean())
        else:
            mean = float(np.mean(log_us - predict(features[ok])))
        means.append((workload, mean))
        parts.append((features[ok], (log_us - mean).astype(np.float32)))
    if not parts:
        raise InputError("cost model: not one row with a time to learn from; run `make collect` or check data_dir")
    target = np.concatenate([part for _, part in parts])
    return TrainingSet(np.concatenate([part for part, _ in parts]), target, np.ones_like(target), np.concatenate(failed), means)


def _checked(frame: pd.DataFrame, device: Device) -> Template:
    """The template of the rows, when they are all of one operator, this GPU and its present version."""
    if frame.empty:
        raise InputError("cost model: no rows to learn from; run `make collect` or check data_dir")
    if len(ops := sorted(frame["op"].unique())) > 1:
        raise InputError(f"cost model: rows of several operators ({', '.join(ops)}); choose one with op=")
    if len(gpus := {gpu_key(gpu) for gpu in frame["gpu"].unique()} - {device.key, gpu_key("")}) > 0:
        raise InputError(f"cost model: rows of {', '.join(sorted(gpus))} for a model of {device.key}; load one GPU's rows")
    template = load_template(ops[0])
    if other := set(frame["template_version"].unique()) - {template.version, ""}:
        raise InputError(
            f"cost model: rows of version {sorted(other)[0]} of the {template.op} template, which is now {template.version}; "
            "collect again or drop them"
        )
    return template


def timed(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows with a time of a config of ours; a vendor's kernel has no knobs."""
    return frame[(frame["status"] == "ok") & (frame["origin"] != "vendor")]


def columns_in(frame: pd.DataFrame, template: Template) -> dict[str, NDArray[np.int64]]:
    """The knobs of a frame's rows as int64 columns."""
    missing = [name for name in template.names if f"knob_{name}" not in frame.columns]
    if missing:
        raise InputError(f"measurements of {template.op} lack the knob {missing[0]}; they are of another template version")
    return {name: frame[f"knob_{name}"].to_numpy(dtype=np.int64) for name in template.names}
