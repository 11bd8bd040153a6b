"""Strategies that learn nothing: one fixed config, and random draws."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from datasets.measurement import Measurement
from pipeline.strategies.admission import admit, expert_config, naive_config, untried
from pipeline.strategy import Task
from templates import space
from templates.knob import config_text


@dataclass(frozen=True)
class Fixed:
    """Always the same config: `naive`, `expert`. It has nothing more to propose once that is measured."""

    name: str
    config: Callable[[Task], dict[str, int]]

    def propose(
        self, task: Task, history: Sequence[Measurement], n: int, rng: np.random.Generator
    ) -> list[dict[str, int]]:
        """The config, or nothing when it was measured."""
        return untried([admit(task, self.config(task))], history, n)


def naive() -> Fixed:
    """The baseline of every speed-up."""
    return Fixed("naive", naive_config)


def expert() -> Fixed:
    """The config chosen by hand, without a search."""
    return Fixed("expert", expert_config)


FairPools = Mapping[str, Sequence[dict[str, int]]]
"""Workload text -> the recorded configs that were drawn at random: the rest of a pool was picked for being good."""


@dataclass(frozen=True)
class Random:
    """Uniform draws without replacement over the legal space, or over a closed world's random draws."""

    fair_pools: FairPools = field(default_factory=dict)
    name: str = "random"

    def propose(
        self, task: Task, history: Sequence[Measurement], n: int, rng: np.random.Generator
    ) -> list[dict[str, int]]:
        """n fresh draws."""
        return untried(draw(task, n + len(history), self.fair_pools, rng), history, n)


def draw(task: Task, n: int, fair_pools: FairPools, rng: np.random.Generator) -> list[dict[str, int]]:
    """Up to n distinct random configs: legal ones, or in a closed world of its fair pool (all of it, where none is known)."""
    if task.pool is None:
        return space.sample(task.template, task.workload, task.limits, n, rng)
    allowed = {config_text(config) for config in task.pool}  # rows of one's own may lie beside the recording
    fair = [config for config in fair_pools.get(str(task.workload), task.pool) if config_text(config) in allowed]
    return [fair[i] for i in rng.permutation(len(fair))[:n]]
