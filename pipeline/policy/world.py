"""Worlds: what answers when a search measures - a member of the cost model's ensemble gone its own way, or a real measurer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.spatial.distance import cdist

from datasets.device import Device
from datasets.measurement import Candidate, Measurement, Origin, Status
from pipeline.measure.measurer import Measurer
from pipeline.policy.action import positions
from pipeline.policy.reward import Outcome, outcome_of
from templates.knob import Columns, Config, columns_of, config_text
from templates.template import Template
from templates.workload import Workload


class TimeModel(Protocol):
    """The cost model as the policy uses it."""

    def log_time(self, workload: Workload, configs: Columns, device: Device) -> np.ndarray:
        """(members, n): log of microseconds, each member up to a constant per workload."""


class RiskModel(TimeModel, Protocol):
    """A time model that also says how likely a config is to fail."""

    def failure_probability(self, workload: Workload, configs: Columns, device: Device) -> np.ndarray:
        """(n,): between 0 and 1."""


class Remembered:
    """A time model that is asked about every config once. A call of the trees costs as much for one config as for hundreds."""

    def __init__(self, model: TimeModel, template: Template) -> None:
        self.model, self.template = model, template
        self.seen: dict[tuple[str, str], dict[bytes, np.ndarray]] = {}

    def log_time(self, workload: Workload, configs: Columns, device: Device) -> np.ndarray:
        """(members, n), as the model behind has it."""
        seen = self.seen.setdefault((str(workload), device.name), {})
        rows = np.stack([np.asarray(configs[name], dtype=np.int64) for name in self.template.names], axis=1)
        keys = [row.tobytes() for row in rows]
        new = {key: i for i, key in enumerate(keys) if key not in seen}
        if new:
            fresh = {name: rows[list(new.values()), i] for i, name in enumerate(self.template.names)}
            answers = np.asarray(self.model.log_time(workload, fresh, device), dtype=float)
            seen.update(zip(new, answers.T, strict=True))
        return np.stack([seen[key] for key in keys], axis=1)


class World(Protocol):
    """One workload on one device, measurable. `baseline` is the naive config's log time, None while nobody measured it."""

    @property
    def baseline(self) -> float | None: ...

    @property
    def pool(self) -> Sequence[dict[str, int]] | None:
        """The only configs that can be measured; None when all legal ones can."""

    def measure(self, configs: Sequence[dict[str, int]]) -> list[Outcome]:
        """An outcome per config, in order."""


@dataclass(frozen=True)
class WorldSettings:
    """How far simulated worlds stray from the cost model's mean, in log time.

    disagreement: factor on the chosen member's difference from the mean. tilt: standard deviation of a random preference per
    knob, over the knob's range: what the model gets wrong everywhere in the same way. noise: standard deviation per config.
    fail_rate: fraction of configs that turn out not to run. baseline_rate: fraction of worlds whose naive time is known.
    """

    disagreement: float = 1.5
    tilt: float = 0.05
    noise: float = 0.03
    fail_rate: float = 0.02
    baseline_rate: float = 0.5


class SimulatedWorld:
    """A world made from the cost model: one member's opinion, exaggerated, tilted and noisy, the same at every repeat."""

    pool = None

    def __init__(
        self,
        model: TimeModel,
        template: Template,
        workload: Workload,
        device: Device,
        settings: WorldSettings,
        rng: np.random.Generator,
    ) -> None:
        self.model, self.template, self.workload, self.device, self.settings = model, template, workload, device, settings
        self.member_draw = float(rng.random())
        self.tilt = settings.tilt * rng.normal(size=len(template.knobs)) / 2  # positions span 2
        self.seed = int(rng.integers(2**31))
        self.answers: dict[tuple[int, ...], Outcome] = {}
        self.baseline: float | None = None
        if rng.random() < settings.baseline_rate:
            self.baseline = float(self.log_times([dict(template.naive)])[0])

    def log_times(self, configs: Sequence[dict[str, int]]) -> np.ndarray:
        """(n,): log time of each config here, before noise."""
        columns = columns_of(list(configs), self.template.names)
        by_member = np.asarray(self.model.log_time(self.workload, columns, self.device), dtype=float)
        mean, member = by_member.mean(axis=0), by_member[int(self.member_draw * len(by_member))]
        tilted: np.ndarray = mean + self.settings.disagreement * (member - mean) + positions(self.template, columns) @ self.tilt
        return tilted

    def measure(self, configs: Sequence[dict[str, int]]) -> list[Outcome]:
        """Noise and failures depend on the world and the config only."""
        keys = [config_key(self.template, config) for config in configs]
        new = [i for i, key in enumerate(keys) if key not in self.answers]
        if new:
            for i, log_time in zip(new, self.log_times([configs[i] for i in new]), strict=True):
                self.answers[keys[i]] = self._answer(keys[i], float(log_time))
        return [self.answers[key] for key in keys]

    def _answer(self, key: tuple[int, ...], log_time: float) -> Outcome:
        rng = np.random.default_rng([self.seed, *(value % 2**32 for value in key)])
        if rng.random() < self.settings.fail_rate:
            failures: tuple[Status, ...] = ("compile_timeout", "crash", "wrong_answer")
            return Outcome(failures[rng.integers(len(failures))], None)
        return Outcome("ok", log_time + self.settings.noise * float(rng.normal()))


class MeasuredWorld:
    """A world behind a measurer. What a config came to is remembered, so that no search pays for it twice."""

    def __init__(self, measurer: Measurer, workload: Workload, baseline: float | None = None) -> None:
        self.measurer, self.workload, self.baseline = measurer, workload, baseline
        known = measurer.known(workload)
        # In an order that says nothing: a replay lists the fastest first, and ties would fall to it.
        self.pool = None if known is None else sorted((dict(config) for config in known if config), key=config_text)
        self.seen: dict[str, Measurement] = {}

    def ask(self, configs: Sequence[dict[str, int]], origin: Origin = "policy") -> list[Measurement]:
        """A measurement per config, in order."""
        fresh = {config_text(config): config for config in configs if config_text(config) not in self.seen}
        candidates = [Candidate(self.workload, config, origin) for config in fresh.values()]
        self.seen.update(zip(fresh, self.measurer.measure(candidates), strict=True))
        return [self.seen[config_text(config)] for config in configs]

    def measure(self, configs: Sequence[dict[str, int]]) -> list[Outcome]:
        """Outcomes of `ask`."""
        return [outcome_of(measurement) for measurement in self.ask(configs)]


class Pool:
    """The configs of a closed world, and which of them is nearest to a config (by knob distance, as `space.distance`)."""

    def __init__(self, template: Template, configs: Sequence[dict[str, int]]) -> None:
        self.template, self.configs = template, configs
        self.positions = positions(template, columns_of(list(configs), template.names))
        self.place = {config_key(template, config): i for i, config in enumerate(configs)}

    def nearest(self, configs: Sequence[dict[str, int]], taken: Sequence[set[int]] | None = None) -> list[int]:
        """Index of the nearest member for each config; `taken[i]` are members that config i may not become."""
        gaps = cdist(positions(self.template, columns_of(list(configs), self.template.names)), self.positions, "cityblock")
        for i, some in enumerate(taken or ()):
            if len(some) < gaps.shape[1]:
                gaps[i, list(some)] = np.inf
        nearest: list[int] = gaps.argmin(axis=1).tolist()
        return nearest


def config_key(template: Template, config: Config) -> tuple[int, ...]:
    """A config's values in the template's order."""
    return tuple(int(config[name]) for name in template.knob)


def config_at(columns: Columns, row: int) -> dict[str, int]:
    """One config out of columns."""
    return {name: int(column[row]) for name, column in columns.items()}


