"""The methods of an evaluation by name, made from what training left."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from cost_model.model import CostModel
from datasets.device import Device
from datasets.measurement import Measurement
from datasets.schema import frame_of
from pipeline.evaluation import EvaluateSettings
from pipeline.policy.propose import PolicyStrategy
from pipeline.strategies.admission import untried
from pipeline.strategies.known_good import KnownGood
from pipeline.strategies.ranked import CostModelRanked, CostModelRefit, RandomRanked
from pipeline.strategies.simple import FairPools, Random, expert, naive
from pipeline.strategies.transfer import LogTime, Nearest, OneConfig
from pipeline.strategy import Strategy, Task
from templates.knob import Config, columns_of, config_text
from templates.workload import Workload

if TYPE_CHECKING:
    from pipeline.policy.iql import Policy


@dataclass(frozen=True)
class Ingredients:
    """What the methods are made from; `fair_pools` is what a closed world's random search may draw from."""

    device: Device
    known: KnownGood
    cost_model: CostModel
    policy: "Policy | None"
    fair_pools: FairPools


def factories(parts: Ingredients, settings: EvaluateSettings) -> Mapping[str, Callable[[], Strategy]]:
    """A maker of fresh strategies for every method of the settings but `vendor`, which chooses nothing."""
    log_time = mean_log_time(parts.cost_model, parts.device)
    refit = refitter(parts)

    def policy() -> Strategy:
        return PolicyStrategy(parts.policy, parts.cost_model, parts.known, settings.propose)

    makers: dict[str, Callable[[], Strategy]] = {
        "naive": naive,
        "expert": expert,
        "random": lambda: Random(parts.fair_pools),
        "random_ranked": lambda: RandomRanked(log_time, parts.fair_pools),
        "one_config": lambda: OneConfig(parts.known, log_time),
        "nearest": lambda: Nearest(parts.known),
        "cost_model": lambda: CostModelRanked(log_time, parts.known, settings.search),
        "cost_model_refit": lambda: CostModelRefit(log_time, refit, parts.known, settings.search),
        "policy_zero_shot": lambda: Unadapted(policy(), max(settings.ks)),
        "policy": policy,
    }
    return {name: makers[name] for name in settings.methods if name in makers}


def refitter(parts: Ingredients, kept: int = 8) -> Callable[[Sequence[Measurement]], LogTime]:
    """Refits the cost model to a history. In a closed world seeds share histories, so the last few models are kept."""
    models: OrderedDict[tuple[str, ...], LogTime] = OrderedDict()

    def refit(history: Sequence[Measurement]) -> LogTime:
        key = (str(history[0].workload), *(config_text(m.config) for m in history))
        if key not in models:
            models[key] = mean_log_time(parts.cost_model.refit(frame_of(history), parts.device), parts.device)
        models.move_to_end(key)
        if len(models) > kept:
            models.popitem(last=False)
        return models[key]

    return refit


def mean_log_time(cost_model: CostModel, device: Device) -> LogTime:
    """The ensemble's mean, with the chance of failure as a surcharge: log(t) - log(1 - p)."""

    def log_time(workload: Workload, configs: Sequence[Config]) -> np.ndarray:
        columns = columns_of([*configs], cost_model.template.names)
        risk = np.clip(cost_model.failure_probability(workload, columns, device), 0.0, 0.95)
        return np.asarray(cost_model.log_time(workload, columns, device).mean(axis=0) - np.log1p(-risk))

    return log_time


@dataclass
class Unadapted:
    """A strategy's ranking from before the first measurement, followed to the end: what its feedback is worth."""

    inner: Strategy
    length: int
    name: str = "policy_zero_shot"
    _ranking: dict[str, list[dict[str, int]]] = field(default_factory=dict, repr=False)

    def propose(
        self, task: Task, history: Sequence[Measurement], n: int, rng: np.random.Generator
    ) -> list[dict[str, int]]:
        """The next n of the ranking."""
        key = str(task.workload)
        if key not in self._ranking:
            self._ranking[key] = self.inner.propose(task, [], max(1, self.length), rng)
        return untried(self._ranking[key], history, n)
