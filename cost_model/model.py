"""The cost model: gradient-boosted trees that predict log time from compile-free features, averaged over an ensemble.

The target is log time minus the workload's mean: what ranks configs, with the easy part taken out. `log_time` adds an estimate
of that mean back, so that its values read as log microseconds; the estimate is rough, and cancels wherever two configs of one
workload are compared, as in log(t_baseline / t_candidate).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import xgboost as xgb
from numpy.typing import NDArray

from cost_model.features import Configs, floor_us, matrix, names
from cost_model.training import TrainingSet, assemble
from datasets.device import Device
from templates.errors import InputError
from templates.template import Template, load_template
from templates.workload import Workload

FORMAT = 1
FAILURES_NEEDED = 20
"""With fewer failures in the data than this there is nothing to learn about them."""


@dataclass(frozen=True)
class CostModelSettings:
    """How the trees are grown. `threads` 0: all cores. `refit_*`: how strongly and how long new rows are learnt online."""

    members: int = 5
    trees: int = 300
    depth: int = 8
    learning_rate: float = 0.08
    subsample: float = 0.7
    colsample: float = 0.5
    min_child_weight: float = 2.0
    max_bin: int = 64
    threads: int = 0
    refit_trees: int = 40
    refit_weight: float = 5.0
    refit_background: int = 2000

    def __post_init__(self) -> None:
        if min(self.members, self.trees, self.depth) < 1:
            raise InputError("cost model: members, trees and depth must be 1 or more")
        shares = (self.learning_rate, self.subsample, self.colsample)
        if not all(0 < share <= 1 for share in shares) or self.min_child_weight < 0 or self.max_bin < 2:
            raise InputError(
                "cost model: learning_rate, subsample and colsample lie in (0, 1], min_child_weight from 0, max_bin from 2 up"
            )


@dataclass(frozen=True)
class CostModel:
    """An ensemble for one operator. Two predictions: log time, and the probability that a config fails."""

    template: Template
    settings: CostModelSettings
    members: tuple[xgb.Booster, ...]
    failures: xgb.Booster | None
    data: TrainingSet = field(repr=False)
    seed: int = 0

    @staticmethod
    def fit(frame: pd.DataFrame, device: Device, settings: CostModelSettings | None = None, seed: int = 0) -> "CostModel":
        """Fit on the rows of one operator and one GPU; the same rows, settings and seed give the same trees.

        InputError where there are no ok rows, or rows of several operators or another template version.
        """
        settings = settings or CostModelSettings()
        data = assemble(frame, device)
        template = load_template(str(frame["op"].iloc[0]))
        members = tuple(grow(data, settings, seed * 1000 + i) for i in range(settings.members))
        return CostModel(template, settings, members, _failure_model(data, settings, seed), data, seed)

    def log_time(self, workload: Workload, configs: Configs, device: Device) -> NDArray[np.float64]:
        """Natural log of microseconds, one row per member: shape (members, n).

        Each row is right up to a constant of the workload; the naive config's value, asked of the same member, has the same
        one, so their difference is a log speed-up.
        """
        features = matrix(self.template, workload, configs, device)
        return self._centred(features) + self.offset(workload, device)

    def _centred(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Predicted log time minus the workload's mean, shape (members, n)."""
        return np.stack([member.inplace_predict(features) for member in self.members]).astype(np.float64)

    def failure_probability(self, workload: Workload, configs: Configs, device: Device) -> NDArray[np.float64]:
        """Shape (n,): how likely a legal config fails to build, launch or be right; zero where the data held no failures."""
        features = matrix(self.template, workload, configs, device)
        if self.failures is None:
            return np.zeros(len(features))
        return np.asarray(self.failures.inplace_predict(features), dtype=np.float64)

    def offset(self, workload: Workload, device: Device) -> float:
        """Estimate of the workload's mean log time (us): the roofline's floor plus the gap to it that similar shapes show."""
        gap = np.array([mean - np.log(floor_us(self.template, w, device)) for w, mean in self.data.means])
        place = self.template.log_extents(workload)
        away = np.array([np.abs(self.template.log_extents(w) - place).sum() for w, _ in self.data.means])
        weight = 1.0 / (away + 0.1) ** 2
        return float(np.log(floor_us(self.template, workload, device)) + (gap * weight).sum() / weight.sum())

    def refit(self, extra: pd.DataFrame, device: Device, weight: float | None = None) -> "CostModel":
        """A model that has also learnt `extra` rows, measured since: more trees on them and a sample of the old rows.

        Each extra row counts `weight` (settings.refit_weight) old ones. Rows without a time are passed over; the model
        itself comes back where none has one. Takes a fraction of a second.
        """
        settings = self.settings
        rows = extra[extra["status"] == "ok"]
        if rows.empty:
            return self
        new = assemble(rows, device, lambda features: self._centred(features).mean(axis=0))
        settings = settings if weight is None else replace(settings, refit_weight=weight)
        return replace(self, members=grow_on(self.members, self.data, new, settings, self.seed))

    def save(self, folder: Path) -> None:
        """Write UBJ trees, the training set for `refit` as plain arrays, and model.json; nothing is pickled."""
        folder.mkdir(parents=True, exist_ok=True)
        for i, member in enumerate(self.members):
            (folder / f"member-{i}.ubj").write_bytes(member.save_raw("ubj"))  # ours to write: a full disk is an OSError
        if self.failures is not None:
            (folder / "failures.ubj").write_bytes(self.failures.save_raw("ubj"))
        arrays: Any = self.data.arrays()
        np.savez_compressed(folder / "training.npz", **arrays)
        about = {
            "format": FORMAT,
            "op": self.template.op,
            "template_version": self.template.version,
            "features": names(self.template),
            "means": {str(workload): mean for workload, mean in self.data.means},
            "failures": self.failures is not None,
            "seed": self.seed,
            "settings": asdict(self.settings),
        }
        (folder / "model.json").write_text(json.dumps(about, indent=2) + "\n")

    @staticmethod
    def load(folder: Path, threads: int | None = None) -> "CostModel":
        """Read what `save` wrote. InputError where it is missing, damaged, or made for other features or another template."""
        about = _about(folder)
        try:
            settings = CostModelSettings(**about["settings"])
            settings = settings if threads is None else replace(settings, threads=threads)
            members = tuple(_booster(folder / f"member-{i}.ubj", settings) for i in range(settings.members))
            failures = _booster(folder / "failures.ubj", settings) if about["failures"] else None
            with np.load(folder / "training.npz", allow_pickle=False) as arrays:
                means = [(Workload.parse(text), mean) for text, mean in about["means"].items()]
                data = TrainingSet.of_arrays(arrays, means)
            return CostModel(load_template(about["op"]), settings, members, failures, data, int(about["seed"]))
        except (xgb.core.XGBoostError, OSError, EOFError, BadZipFile, ValueError, KeyError, TypeError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputError(f"{folder}: damaged cost model ({reason}); run `make fit` again") from error


def _about(folder: Path) -> dict[str, Any]:
    """The content of model.json, checked against this program."""
    try:
        about: dict[str, Any] = json.loads((folder / "model.json").read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: no cost model here; run `make fit`") from error
    if not isinstance(about, dict) or not {"format", "op", "template_version", "features"} <= about.keys():
        raise InputError(f"{folder}: damaged cost model (model.json); run `make fit` again")
    if about["format"] != FORMAT:
        raise InputError(f"{folder}: cost model format {about['format']}, this program reads {FORMAT}; run `make fit` again")
    template = load_template(about["op"])
    if about["template_version"] != template.version:
        raise InputError(
            f"{folder}: fitted to version {about['template_version']} of the {template.op} template, which is now "
            f"{template.version}; run `make fit` again"
        )
    if about["features"] != names(template):
        odd = sorted(set(about["features"]) ^ set(names(template))) or ["their order"]
        raise InputError(f"{folder}: fitted with other features ({odd[0]} differs); run `make fit` again")
    return about


def _booster(path: Path, settings: CostModelSettings) -> xgb.Booster:
    booster = xgb.Booster(model_file=path)
    booster.set_param({"nthread": settings.threads})
    return booster


def _parameters(settings: CostModelSettings, seed: int) -> dict[str, Any]:
    return {
        "max_depth": settings.depth,
        "eta": settings.learning_rate,
        "subsample": settings.subsample,
        "colsample_bytree": settings.colsample,
        "min_child_weight": settings.min_child_weight,
        "tree_method": "hist",
        "max_bin": settings.max_bin,
        "nthread": settings.threads,
        "seed": seed,
        "seed_per_iteration": True,  # else the draws depend on what was trained before in this process
        "verbosity": 1,
    }


def grow(data: TrainingSet, settings: CostModelSettings, seed: int) -> xgb.Booster:
    """One member of the ensemble.

    Random row weights (the Bayesian bootstrap: Rubin, Annals of Statistics 9(1), 1981) make members differ where the data is
    thin, so that their spread says something.
    """
    weight = data.weight * np.random.default_rng(seed).exponential(size=len(data.target))
    matrix = xgb.DMatrix(data.features, data.target, weight=weight, nthread=settings.threads)
    return xgb.train(_parameters(settings, seed), matrix, settings.trees)


def grow_on(
    members: Sequence[xgb.Booster], data: TrainingSet, new: TrainingSet, settings: CostModelSettings, seed: int
) -> tuple[xgb.Booster, ...]:
    """More trees for each member, on new rows and a sample of the old ones."""
    rng = np.random.default_rng(seed)
    kept = rng.choice(len(data.target), size=min(settings.refit_background, len(data.target)), replace=False)
    x = np.concatenate([data.features[kept], new.features])
    y = np.concatenate([data.target[kept], new.target])
    w = np.concatenate([np.ones(len(kept)), np.full(len(new.target), settings.refit_weight)])
    more = xgb.DMatrix(x, y, weight=w, nthread=settings.threads)
    return tuple(
        xgb.train(_parameters(settings, seed * 1000 + i), more, settings.refit_trees, xgb_model=member)
        for i, member in enumerate(members)
    )


def _failure_model(data: TrainingSet, settings: CostModelSettings, seed: int) -> xgb.Booster | None:
    """A small classifier of failed against ok; None where too few failed."""
    if len(data.failed) < FAILURES_NEEDED:
        return None
    x = np.concatenate([data.features, data.failed])
    y = np.concatenate([np.zeros(len(data.features)), np.ones(len(data.failed))])
    parameters = _parameters(settings, seed) | {"objective": "binary:logistic", "max_depth": 4}
    return xgb.train(parameters, xgb.DMatrix(x, y, nthread=settings.threads), 100)
