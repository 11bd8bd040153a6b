"""The strategy that uses everything: policy, cost model, known-good configs and what the task's own measurements say.

Candidates: a closed world's pool; in an open one the policy's sampled edits, the cost model's own search, known-good configs and
the safe default. They are ranked by predicted log time, the policy's view of what is left to gain, and the residual of the
measurements so far. Measurements are shared out in turn between this ranking and two that were measured elsewhere: the nearest
training workloads' best configs, and the best on average. Each part has a switch, so that its worth is a number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from datasets.measurement import Measurement
from pipeline.policy.action import positions
from pipeline.policy.env import EpisodeSettings, Search
from pipeline.policy.residual import Residual, ResidualSettings
from pipeline.policy.rollout import prospects, remembered, roll_out, scene_of
from pipeline.policy.world import Pool, Remembered, RiskModel, config_key
from pipeline.strategies.admission import admit, safe_default, untried
from pipeline.strategies.known_good import KnownGood, borrowed, distinct
from pipeline.strategies.local_search import local_search
from pipeline.strategies.transfer import rank_on_average
from pipeline.strategy import Task
from templates import space
from templates.errors import InputError
from templates.knob import Config, columns_of
from templates.workload import Workload

if TYPE_CHECKING:
    from pipeline.policy.iql import Policy


@dataclass(frozen=True)
class ProposeSettings:
    """use_*: the parts. rollouts: sampled edit sequences per decision, at most `steps` edits each, `samples` draws per edit.

    evaluations: configs that the cost model's own search scores in an open world, from `random_starts` draws and `known_good`
    borrowed configs of either kind. pessimism: standard deviations of the ensemble that its mean is raised by: an optimum that
    only some members believe in is one of the model's errors rather than the GPU's. In log time: value_weight, what one unit of
    the policy's prospects counts; vote_weight, what the most often proposed config gains. explore: standard deviations of the
    residual by which an unexplored candidate is favoured. turns: which ranking chooses a task's first, second, ...
    measurement, over and over.
    """

    use_policy: bool = True
    use_cost_model: bool = True
    use_known_good: bool = True
    use_residual: bool = True
    rollouts: int = 256
    steps: int = 8
    samples: int = 4
    evaluations: int = 1024
    random_starts: int = 256
    known_good: int = 16
    pessimism: float = 1.0
    value_weight: float = 0.01
    vote_weight: float = 0.01
    explore: float = 0.5
    turns: list[str] = field(default_factory=lambda: ["ranking", "nearest", "one_config"])
    residual: ResidualSettings = field(default_factory=ResidualSettings)

    def __post_init__(self) -> None:
        if not (self.use_policy or self.use_cost_model or self.use_known_good):
            raise InputError("propose: switch on at least one of use_policy, use_cost_model, use_known_good")
        if not self.turns or set(self.turns) - {"ranking", "nearest", "one_config"}:
            raise InputError(f"propose.turns={list(self.turns)}: list ranking, nearest, one_config in the order of their turns")


Votes = dict[tuple[int, ...], tuple[int, dict[str, int]]]
"""Proposed configs by key: how many rollouts ended there, and the config."""


@dataclass(frozen=True)
class Ranking:
    """Candidates of one task with what each source says of them; (n,) arrays, log time, lower is better."""

    configs: list[dict[str, int]]
    positions: np.ndarray
    predicted: np.ndarray
    opinion: np.ndarray


@dataclass
class PolicyStrategy:
    """Proposes from all parts. `policy` may be None when settings.use_policy is off. One instance serves any number of tasks."""

    policy: "Policy | None"
    model: RiskModel
    known: KnownGood
    settings: ProposeSettings = field(default_factory=ProposeSettings)
    name: str = "policy"
    _guides: dict[str, Remembered] = field(default_factory=dict, repr=False)
    _admitted: dict[str, dict[str, list[dict[str, int]]]] = field(default_factory=dict, repr=False)
    _searched: dict[str, list[dict[str, int]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.policy is None and self.settings.use_policy:
            raise InputError("propose.use_policy is on, but there is no trained policy; run `make pretrain` or switch it off")

    def propose(
        self, task: Task, history: Sequence[Measurement], n: int, rng: np.random.Generator
    ) -> list[dict[str, int]]:
        """The next n, best first. A pure function of its arguments and the generator, but for a cache of the model's search."""
        return self._pick(task, self.rank(task, history, rng), history, n)

    def rank(self, task: Task, history: Sequence[Measurement], rng: np.random.Generator) -> Ranking:
        """Every candidate that was not measured yet, with what each part says of it."""
        past = self._past(task, history)
        votes = self._votes(task, past, history, rng)
        configs = untried([*self._candidates(task, rng), *by_votes(votes)], history, 1 << 30)
        columns = columns_of(list(configs), task.template.names)
        predicted = self._surcharged(task, columns) if self.settings.use_cost_model and configs else np.zeros(len(configs))
        opinion = self._opinion(task, past, configs, votes)
        return Ranking(configs, positions(task.template, columns), predicted, opinion)

    def _past(self, task: Task, history: Sequence[Measurement]) -> Search | None:
        """The policy's view of what was measured; None without a policy."""
        if self.policy is None or not self.settings.use_policy:
            return None
        guide = self._guides.setdefault(str(task.workload), Remembered(self.model, task.template))
        return remembered(scene_of(task, self.policy, guide), history, EpisodeSettings(steps=self.settings.steps))

    def _candidates(self, task: Task, rng: np.random.Generator) -> list[dict[str, int]]:
        """Everything but the policy's proposals, the safe default first; found once per workload."""
        if task.pool is not None:
            return list(task.pool)
        key = place_of(task)
        if key not in self._searched:
            starts = distinct([safe_default(task), *(config for known in self._borrowed(task).values() for config in known)])
            self._searched[key] = starts
            if self.settings.use_cost_model:
                fresh = space.sample(task.template, task.workload, task.limits, self.settings.random_starts, rng)
                columns = columns_of(list(fresh), task.template.names)
                order = self._surcharged(task, columns).argsort(kind="stable")[:16]
                starts = distinct([*starts, *(fresh[i] for i in order)])
                found = local_search(task, lambda configs: self._score(task, configs), starts, self.settings.evaluations, rng)
                self._searched[key] = distinct([*starts, *(config for _, config in found)])
        return self._searched[key]

    def _score(self, task: Task, configs: Sequence[dict[str, int]]) -> np.ndarray:
        return self._surcharged(task, columns_of(list(configs), task.template.names))

    def _by_member(self, task: Task, columns: dict[str, np.ndarray]) -> np.ndarray:
        return np.asarray(self.model.log_time(task.workload, columns, task.device), dtype=float)

    def _mean(self, task: Task, columns: dict[str, np.ndarray]) -> np.ndarray:
        mean: np.ndarray = self._by_member(task, columns).mean(axis=0)
        return mean

    def _surcharged(self, task: Task, columns: dict[str, np.ndarray]) -> np.ndarray:
        """Predicted log time with the members' disagreement and the chance of failure, log(1 - p), as surcharges."""
        by_member = self._by_member(task, columns)
        risk = np.clip(self.model.failure_probability(task.workload, columns, task.device), 0.0, 0.95)
        surcharged: np.ndarray = by_member.mean(axis=0) + self.settings.pessimism * by_member.std(axis=0) - np.log1p(-risk)
        return surcharged

    def _borrowed(self, task: Task) -> dict[str, list[dict[str, int]]]:
        """Known-good configs by ranking, best first, each moved to the nearest that can be measured here."""
        if not self.settings.use_known_good or not self.known:
            return {}
        key = place_of(task)
        if key not in self._admitted:
            rankings = {
                "nearest": borrowed(self.known, task.workload),
                "one_config": rank_on_average(task, self.known, partial(self._elsewhere, task)),
            }
            self._admitted[key] = {
                name: distinct([admit(task, config) for config in wanted[: self.settings.known_good]])
                for name, wanted in rankings.items()
            }
        return self._admitted[key]

    def _elsewhere(self, task: Task, workload: Workload, configs: Sequence[Config]) -> np.ndarray:
        """Predicted log times (n,) on another workload of the same template and device."""
        columns = columns_of([dict(config) for config in configs], task.template.names)
        return self._mean(replace(task, workload=workload), columns)

    def _votes(self, task: Task, past: Search | None, history: Sequence[Measurement], rng: np.random.Generator) -> Votes:
        """What the policy's rollouts end at (in a closed world: its nearest members), and how many of them do."""
        if past is None or self.policy is None or not self.settings.rollouts:
            return {}
        ends = roll_out(self.policy, past, self._starts(task, history), self.settings.rollouts, self.settings.samples, rng)
        if task.pool is not None:
            ends = [task.pool[i] for i in Pool(task.template, task.pool).nearest(ends)]
        votes: Votes = {}
        for config in ends:
            key = config_key(task.template, config)
            votes[key] = (votes.get(key, (0, config))[0] + 1, config)
        return votes

    def _starts(self, task: Task, history: Sequence[Measurement]) -> list[dict[str, int]]:
        """Where rollouts begin: the best measured configs, the safe default, borrowed ones and naive, all legal."""
        timed = sorted((m.time_us, i) for i, m in enumerate(history) if m.time_us is not None)
        best = [dict(history[i].config) for _, i in timed[:4]]
        open_task = replace(task, pool=None)
        nearest = self._borrowed(open_task).get("nearest", [])[:8]
        return distinct([*best, safe_default(open_task), *nearest, dict(task.template.naive)])

    def _opinion(self, task: Task, past: Search | None, configs: list[dict[str, int]], votes: Votes) -> np.ndarray:
        """The policy's part of the ranking, (n,): what it still sees to gain, less a bonus for what it proposes often."""
        opinion = np.zeros(len(configs))
        if past is None or self.policy is None or not configs:
            return opinion
        if self.settings.value_weight:
            left = prospects(self.policy, past, configs)
            opinion += self.settings.value_weight * (left - left.min())
        if votes and self.settings.vote_weight:
            most = max(count for count, _ in votes.values())
            counts = np.array([votes[key][0] if (key := config_key(task.template, c)) in votes else 0 for c in configs])
            opinion -= self.settings.vote_weight * np.log1p(counts) / np.log1p(most)
        return opinion

    def _pick(self, task: Task, ranking: Ranking, history: Sequence[Measurement], n: int) -> list[dict[str, int]]:
        """Greedy batch: each turn's best, then the best as if that had come out as expected, and so on."""
        place_in = {config_key(task.template, config): i for i, config in enumerate(ranking.configs)}
        known = {
            name: [place_in[key] for config in configs if (key := config_key(task.template, config)) in place_in]
            for name, configs in self._borrowed(task).items()
        }
        left = np.ones(len(ranking.configs), dtype=bool)
        residual, picks = self._residual(task, history), []
        for place in range(min(n, len(ranking.configs))):
            turn = self.settings.turns[(len(history) + place) % len(self.settings.turns)]
            chosen = next((i for i in known.get(turn, []) if left[i]), None)
            if chosen is None:
                # The very first pick is what a user gets when nothing can be measured: no exploring there.
                chosen = self._best(ranking, residual, left, self.settings.explore if place or history else 0.0)
            left[chosen] = False
            picks.append(ranking.configs[chosen])
            if self.settings.use_residual:
                residual = residual.believing(ranking.positions[chosen])
        return with_default(task, picks, history)

    def _best(self, ranking: Ranking, residual: Residual, left: np.ndarray, explore: float) -> int:
        """The best candidate left by ranking and, where it is used, residual."""
        score = ranking.predicted + ranking.opinion
        if self.settings.use_residual:
            mean, doubt = residual.at(ranking.positions)
            score = score + mean - explore * doubt
        return int(np.where(left, score, np.inf).argmin())

    def _residual(self, task: Task, history: Sequence[Measurement]) -> Residual:
        """The cost model's errors at what was measured and has a time."""
        timed = [m for m in history if m.time_us is not None]
        if not timed or not self.settings.use_residual:
            return Residual(np.zeros((0, len(task.template.knobs))), np.zeros(0), self.settings.residual)
        columns = columns_of([m.config for m in timed], task.template.names)
        measured = np.log([m.time_us for m in timed if m.time_us is not None])
        predicted = self._mean(task, columns) if self.settings.use_cost_model else np.zeros(len(timed))
        return Residual(positions(task.template, columns), measured - predicted, self.settings.residual)


def place_of(task: Task) -> str:
    """What the caches go by: the workload, the device, and the world's size."""
    return f"{task.workload}@{task.device.name}/{'open' if task.pool is None else len(task.pool)}"


def by_votes(votes: Votes) -> list[dict[str, int]]:
    """Proposals, the most frequent first."""
    return [config for _, config in sorted(votes.values(), key=lambda pair: -pair[0])]


def with_default(task: Task, picks: list[dict[str, int]], history: Sequence[Measurement]) -> list[dict[str, int]]:
    """The picks with the safe default in the last place of the first batch of four or more: it is never left unmeasured."""
    default = safe_default(task)
    done = default in picks or any(dict(m.config) == default for m in history)
    return picks if len(picks) < 4 or done else [*picks[:-1], default]
