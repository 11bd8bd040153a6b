"""The cost model for a kernel of which only parameters are known: the same trees on the knobs alone, one GPU after another.

The target is log time minus the GPU's mean, as `model` has the workload's; a refit grows more trees on the new GPU's rows. No
feature tells GPUs apart: the files say nothing of them but a name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import xgboost
from numpy.typing import NDArray

from cost_model.features import Configs, as_columns
from cost_model.model import CostModelSettings, grow, grow_on
from cost_model.training import TrainingSet
from templates.knob import Config
from templates.template import Template
from templates.workload import Workload

Timed = tuple[Sequence[Config], NDArray[np.float64]]
"""n configs and their log times (n,) on one GPU."""


@dataclass(frozen=True)
class SpaceModel:
    """An ensemble."""

    template: Template
    settings: CostModelSettings
    members: tuple[xgboost.Booster, ...]
    data: TrainingSet
    seed: int = 0

    @staticmethod
    def fit(template: Template, known: Sequence[Timed], settings: CostModelSettings, seed: int = 0) -> "SpaceModel":
        """Fit on the known GPUs' rows; those of each count alike, however many there are."""
        x = np.concatenate([knob_features(template, configs) for configs, _ in known])
        y = np.concatenate([log_us - log_us.mean() for _, log_us in known]).astype(np.float32)
        most = max(len(log_us) for _, log_us in known)
        weight = np.concatenate([np.full(len(log_us), most / len(log_us), np.float32) for _, log_us in known])
        data = TrainingSet(x, y, weight, x[:0], [])
        members = tuple(grow(data, settings, seed * 1000 + i) for i in range(settings.members))
        return SpaceModel(template, settings, members, data, seed)

    def log_time(self, workload: Workload, configs: Sequence[Config]) -> NDArray[np.float64]:
        """The members' mean (n,): log time up to a constant."""
        return np.asarray(self.by_member(configs).mean(axis=0))

    def by_member(self, configs: Configs) -> NDArray[np.float64]:
        """Shape (members, n)."""
        x = knob_features(self.template, configs)
        return np.stack([member.inplace_predict(x) for member in self.members]).astype(np.float64)

    def refit(self, configs: Sequence[Config], log_us: NDArray[np.float64]) -> "SpaceModel":
        """A model that has also learnt these rows of the new GPU, weighted as `CostModel.refit` weighs new rows."""
        x = knob_features(self.template, configs)
        said = np.mean([member.inplace_predict(x) for member in self.members], axis=0)
        y = (log_us - (log_us - said).mean()).astype(np.float32)
        new = TrainingSet(x, y, np.ones_like(y), x[:0], [])
        return replace(self, members=grow_on(self.members, self.data, new, self.settings, self.seed))


def knob_features(template: Template, configs: Configs) -> NDArray[np.float32]:
    """(n, knobs): log2 where all of a knob's values are positive, as they are otherwise."""
    columns = as_columns(template, configs)
    scaled = [np.log2(columns[knob.name]) if knob.values[0] > 0 else columns[knob.name] for knob in template.knobs]
    return np.stack(scaled, axis=1).astype(np.float32)
