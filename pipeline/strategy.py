"""A strategy: whatever decides which config to measure next, and which one to give the user.

random, nearest, the cost model, the policy, Kernel Tuner's searches: all follow this protocol, so that collect, finetune,
tune and evaluate compare them at the same number of measurements.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from datasets.device import Device
from datasets.measurement import Measurement
from templates.template import Limits, Template
from templates.workload import Workload


@dataclass(frozen=True)
class Task:
    """One workload to tune on one device. `pool` lists the only configs that can be measured (replay), None: all legal ones."""

    template: Template
    workload: Workload
    device: Device
    pool: tuple[dict[str, int], ...] | None = None

    @property
    def limits(self) -> Limits:
        """What the device accepts of a launch."""
        return self.device.limits


class Strategy(Protocol):
    """Proposes configs from what was measured so far on this task."""

    @property
    def name(self) -> str:
        """The `method` in records and tables."""

    def propose(
        self, task: Task, history: Sequence[Measurement], n: int, rng: np.random.Generator
    ) -> list[dict[str, int]]:
        """n distinct legal configs (of the pool, where there is one), best first, none of them in `history`.

        With an empty history and n = 1 it is the zero-shot pick. Fewer than n only when nothing is left to measure.
        """
