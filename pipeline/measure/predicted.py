"""The cost model as a measurer: simulated times for pretraining, tests and machines without a GPU."""

from collections.abc import Iterator, Sequence

import numpy as np

from cost_model.model import CostModel
from datasets.device import Device
from datasets.measurement import Candidate, Measurement
from templates.space import violations
from templates.workload import Workload


class PredictedMeasurer:
    """Implements `Measurer`. `member`: one simulated world out of the ensemble (None: their mean); `noise`: standard deviation
    of the log time, drawn from `seed`.

    Times are microseconds, right up to a factor per workload (see `cost_model.model`), which log speed-ups do not see.
    """

    source = "cost_model"

    def __init__(
        self, cost_model: CostModel, device: Device, member: int | None = None, noise: float = 0.0, seed: int = 0
    ) -> None:
        if member is not None and not 0 <= member < len(cost_model.members):
            raise AssertionError(f"member {member} of {len(cost_model.members)}")
        self.cost_model = cost_model
        self.device = device
        self.member = member
        self.noise = noise
        self.rng = np.random.default_rng(seed)

    def known(self, workload: Workload) -> Sequence[dict[str, int]] | None:
        """None: every legal config has a prediction."""
        return None

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Measurement]:
        """One prediction per candidate, all candidates of a workload in one go."""
        times: dict[Workload, Iterator[float]] = {}
        for workload in dict.fromkeys(candidate.workload for candidate in candidates):
            configs = [candidate.config for candidate in candidates if candidate.workload == workload]
            times[workload] = iter(self._times_us(workload, configs))
        for candidate in candidates:
            yield self._measurement(candidate, next(times[candidate.workload]))

    def _times_us(self, workload: Workload, configs: list[dict[str, int]]) -> list[float]:
        every = self.cost_model.log_time(workload, configs, self.device)
        log_us = every.mean(axis=0) if self.member is None else every[self.member]
        times: list[float] = np.exp(log_us + self.noise * self.rng.standard_normal(len(configs))).tolist()
        return times

    def _measurement(self, candidate: Candidate, time_us: float) -> Measurement:
        template = self.cost_model.template
        reasons = violations(template, candidate.config, candidate.workload, self.device.limits)
        return Measurement(
            workload=candidate.workload,
            config=candidate.config,
            status="illegal" if reasons else "ok",
            message="; ".join(reasons),
            time_us=None if reasons else time_us,
            origin=candidate.origin,
            source="cost_model",
            gpu=self.device.name,
            template_version=template.version,
        )

    def close(self) -> None:
        """Nothing is held."""
