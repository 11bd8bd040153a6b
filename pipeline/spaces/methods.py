"""The methods of a transfer study by name, each made from what the known GPUs say and a seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cost_model.model import CostModelSettings
from cost_model.space_model import SpaceModel, Timed
from datasets.device import Device
from datasets.measured_space import MeasuredSpace
from datasets.measurement import Measurement
from pipeline.policy.propose import PolicyStrategy, ProposeSettings
from pipeline.spaces.known import LeftOut
from pipeline.strategies.expert_fit import Case, fitted, sampled
from pipeline.strategies.experts import Experts, Opinions, places
from pipeline.strategies.ranked import CostModelRanked, CostModelRefit
from pipeline.strategies.round_robin import RoundRobin
from pipeline.strategies.simple import Random
from pipeline.strategies.transfer import LogTime, Nearest
from pipeline.strategy import Strategy
from templates.knob import Columns, Config, configs_of
from templates.workload import Workload

METHODS = (
    "random", "known_best", "average", "cost_model", "cost_model_refit", "round_robin", "turns", "experts", "experts_model",
)  # fmt: skip


@dataclass(frozen=True)
class Knowledge:
    """Everything the methods of one left-out GPU and one seed share; each part is worked out when first asked for."""

    left_out: LeftOut
    model_settings: CostModelSettings
    seed: int

    @cached_property
    def model(self) -> SpaceModel:
        """The cost model of the known GPUs."""
        return self._model(self.left_out.known, self.model_settings)

    def _model(self, spaces: Sequence[MeasuredSpace], settings: CostModelSettings) -> SpaceModel:
        return SpaceModel.fit(self.left_out.template, [timed(self.left_out, space) for space in spaces], settings, self.seed)

    def strategy(self, name: str) -> Strategy:
        """A fresh strategy."""
        here = self.left_out
        match name:
            case "random":
                return Random()
            case "known_best":
                return Nearest(here.lent, name)
            case "average":
                return CostModelRanked(average(here.experts), here.lent, name=name)
            case "cost_model":
                return CostModelRanked(self.with_risk(self.model), here.lent, name=name)
            case "cost_model_refit":
                return CostModelRefit(self.with_risk(self.model), self._refit, here.lent, name=name)
            case "round_robin":
                return RoundRobin([*here.experts, self.with_risk(self.model)], name)
            case "turns":
                return PolicyStrategy(None, _Both(self), here.lent, ProposeSettings(use_policy=False), name)
            case "experts":
                return Experts(here.experts, fitted(self.cases(with_model=False)), here.risk, name=name)
            case "experts_model":
                experts = [*here.experts, self.model.log_time]
                return Experts(experts, fitted(self.cases(with_model=True)), here.risk, name=name)
        raise AssertionError(name)

    def with_risk(self, model: SpaceModel) -> LogTime:
        """Predicted log time with the chance of failure as a surcharge, as in evaluate."""

        def log_time(workload: Workload, configs: Sequence[Config]) -> np.ndarray:
            return np.asarray(model.log_time(workload, configs) - np.log1p(-self.left_out.risk(workload, configs)))

        return log_time

    def _refit(self, history: Sequence[Measurement]) -> LogTime:
        ok = [(m.config, m.time_us) for m in history if m.time_us is not None]
        if not ok:
            return self.with_risk(self.model)
        return self.with_risk(self.model.refit([config for config, _ in ok], np.log([time_us for _, time_us in ok])))

    def cases(self, with_model: bool) -> list[Case]:
        """Each known GPU with the others as experts: where the experts' settings are fitted."""
        found, spaces = [], self.left_out.known
        for i, space in enumerate(spaces if len(spaces) > 1 else ()):
            others = spaces[:i] + spaces[i + 1 :]
            inner = LeftOut(space, tuple(others), self.left_out.codes)
            experts = list(inner.experts)
            if with_model:
                experts.append(self._model(others, quicker(self.model_settings)).log_time)
            configs = [inner.config(row) for row in space.rows]
            log_us = np.array([np.nan if row.time_us is None else np.log(row.time_us) for row in space.rows])
            said = np.stack([expert(inner.workload, configs) for expert in experts], axis=1)
            opinions = Opinions(said - said.mean(axis=0), places(self.left_out.template, configs))
            found.append(sampled(opinions, log_us, np.random.default_rng([self.seed, i])))
        return found


def timed(left_out: LeftOut, space: MeasuredSpace) -> Timed:
    """A known GPU's configs that ran, and their log times."""
    ok = [(left_out.config(row), np.log(row.time_us)) for row in space.rows if row.time_us is not None]
    return [config for config, _ in ok], np.array([log_us for _, log_us in ok])


def quicker(settings: CostModelSettings) -> CostModelSettings:
    """One member: for models that are made only to see how much the others can be trusted."""
    return type(settings)(**{**vars(settings), "members": 1})


def average(experts: Sequence[LogTime]) -> LogTime:
    """The experts' mean, each about its own mean over the configs asked for."""

    def log_time(workload: Workload, configs: Sequence[Config]) -> np.ndarray:
        said = [np.asarray(expert(workload, configs)) for expert in experts]
        return np.asarray(np.mean([s - s.mean() for s in said], axis=0))

    return log_time


@dataclass(frozen=True)
class _Both:
    """Model and risk as the policy's strategy wants them."""

    knowledge: Knowledge

    def log_time(self, workload: Workload, configs: Columns, device: Device) -> np.ndarray:
        return self.knowledge.model.by_member(configs)

    def failure_probability(self, workload: Workload, configs: Columns, device: Device) -> np.ndarray:
        return self.knowledge.left_out.risk(workload, configs_of(configs))
