"""Fine-tuning: the policy searches for real, on all its operators in turn, and learns from what it measures.

The stage round it is `pipeline.finetune`.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cost_model.model import CostModel
from datasets import schema, split
from datasets.device import Device
from datasets.episodes import Episodes, concatenate
from datasets.measurement import Candidate, Measurement, Origin
from pipeline.ledger import Ledger
from pipeline.policy import behaviour
from pipeline.policy.behaviour import Acting
from pipeline.policy.env import EpisodeSettings, Scene, Search
from pipeline.policy.propose import PolicyStrategy, ProposeSettings
from pipeline.policy.reward import RewardSettings
from pipeline.policy.world import MeasuredWorld, Remembered
from pipeline.run_folder import read_json, write_json
from pipeline.scalars import mean_regret, note_losses, tensorboard
from pipeline.strategies.admission import admit
from pipeline.strategies.known_good import KnownGood, borrowed, distinct
from pipeline.strategy import Task
from templates import space
from templates.errors import InputError
from templates.knob import Config
from templates.template import Template
from templates.workload import Workload

if TYPE_CHECKING:
    from pipeline.policy.iql import Policy, Prepared

log = logging.getLogger("finetune")
Advance = Callable[[int, str], None]


@dataclass(frozen=True)
class FinetuneSettings:
    """measurements, seconds: the budget, of which the tables before and after take a part (0 seconds: no limit).

    episodes: searches side by side on one workload. perturb_share: rounds on a shape near the training workload, where any
    config can be measured. explore: share of random decisions. updates: IQL steps per round, `fresh_share` of each batch from
    real episodes. refit_every: rounds between refits of the cost models.
    """

    measurements: int = 500
    seconds: float = 0.0
    episodes: int = 8
    perturb_share: float = 0.5
    explore: float = 0.1
    samples: int = 4
    updates: int = 40
    fresh_share: float = 0.5
    refit_every: int = 4
    episode: EpisodeSettings = field(default_factory=EpisodeSettings)
    reward: RewardSettings = field(default_factory=RewardSettings)
    propose: ProposeSettings = field(default_factory=ProposeSettings)

    def __post_init__(self) -> None:
        if self.measurements < 1 or self.episodes < 1 or self.seconds < 0 or self.refit_every < 1:
            raise InputError("finetune.measurements, episodes and refit_every must be 1 or more, finetune.seconds 0 or more")


@dataclass(frozen=True)
class Line:
    """One workload in the table at the end; microseconds, None where there is no time. before, after: the pick with nothing
    measured, by the policy as it came and as it left; best: the best of all that was measured.
    """

    workload: str
    split: str
    naive_us: float | None
    expert_us: float | None
    before_us: float | None
    after_us: float | None
    best_us: float | None


@dataclass(frozen=True)
class FinetuneResult:
    """What fine-tuning came to."""

    policy: "Policy"
    lines: list[Line]
    rounds: int
    measurements: int
    seconds: float
    statuses: dict[str, int]


@dataclass
class Subject:
    """An operator that is fine-tuned on. `train` may be measured and learnt from, `watched` is only looked at before and after.

    `model` is refitted from time to time, always from `base`, the one that came.
    """

    model: CostModel
    known: KnownGood
    train: Sequence[Workload]
    watched: Sequence[Workload]

    def __post_init__(self) -> None:
        self.base = self.model

    @property
    def template(self) -> Template:
        """The operator's."""
        return self.model.template

    def refit(self, rows: Sequence[Measurement], device: Device) -> None:
        """The cost model as it came learns these rows, but for those of other operators and on watched shapes."""
        usable = [m for m in rows if m.workload.op == self.template.op and m.workload not in set(self.watched)]
        if usable:
            self.model = self.base.refit(schema.frame_of(usable), device)


@dataclass
class Tuner:
    """A fine-tuning under way: one policy, its operators in turn, one budget.

    `policy`, the subjects' models and what stands under them change from round to round; everything else is given.
    """

    policy: "Policy"
    subjects: Sequence[Subject]
    ledger: Ledger
    offline: Episodes
    settings: FinetuneSettings
    seed: int
    round: int = 0
    refitted_rows: int = 0
    idle_rounds: int = 0
    fresh: list[Episodes] = field(default_factory=list)
    prepared: "Prepared | None" = None
    losses: dict[str, float] = field(default_factory=dict)

    def tabled(self) -> list[Workload]:
        """The workloads of the table, an operator's watched ones first: four measurements each, at most half the budget."""
        by_operator = [[*subject.watched, *subject.train] for subject in self.subjects]
        in_turn = [w for group in zip_longest(*by_operator) for w in group if w is not None]
        fair = set(in_turn[: max(1, self.settings.measurements // 8)])
        return [w for workloads in by_operator for w in workloads if w in fair]

    def subject(self, workload: Workload) -> Subject:
        """The operator of a workload."""
        return next(subject for subject in self.subjects if subject.template.op == workload.op)

    def pick(self, workload: Workload) -> dict[str, int]:
        """The policy's config for a workload with nothing measured there."""
        subject = self.subject(workload)
        strategy = PolicyStrategy(self.policy, subject.model, subject.known, self.settings.propose)
        return strategy.propose(self.task(workload), [], 1, np.random.default_rng([self.seed, 7]))[0]

    def task(self, workload: Workload) -> Task:
        """The workload as strategies see it."""
        pool = MeasuredWorld(self.ledger, workload).pool
        template = self.subject(workload).template
        return Task(template, workload, self.ledger.device, None if pool is None else tuple(pool))

    def times_us(self, asked: Sequence[tuple[Workload, Config, Origin]]) -> list[float | None]:
        """Measured times, all asked for at once so that they compile side by side.

        None for a failure, and where a closed world lacks that very config.
        """
        candidates = [
            Candidate(w, space.canonical_config(self.subject(w).template, config), origin) for w, config, origin in asked
        ]
        pools = {w: self.task(w).pool for w, _, _ in asked}
        there = [c for c in candidates if (pool := pools[c.workload]) is None or c.config in pool]
        times = iter([m.time_us for m in self.ledger.measure(there)])
        return [next(times) if c in there else None for c in candidates]

    def left(self) -> int:
        """Measurements left, less what the table at the end may take."""
        return self.settings.measurements - len(self.ledger.spent) - len(self.tabled())

    def play(self) -> int:
        """One round: searches on one workload, IQL steps, now and then a refit. Number of searches, 0 for no budget."""
        settings, rng = self.settings, np.random.default_rng([self.seed, 11, self.round])
        subject = self.subjects[self.round % len(self.subjects)]
        workload = self._workload(subject, rng)
        task = self.task(workload)
        starts = self._starts(task, rng)
        if self.idle_rounds > 2 * sum(len(s.train) for s in self.subjects):
            return 0  # a closed world that has nothing new to say
        spent = len(self.ledger.spent)
        n = min(settings.episodes, (self.left() - len(starts) - 1) // settings.episode.measurements)
        if n < 1:
            return 0
        (naive_us,) = self.times_us([(workload, subject.template.naive, "naive")])
        world = MeasuredWorld(self.ledger, workload, None if naive_us is None else float(np.log(naive_us)))
        chosen = [starts[i % len(starts)] for i in range(n)]
        guide = Remembered(subject.model, subject.template)
        scene = Scene(subject.template, workload, self.ledger.device, guide, self.policy.layout, self.policy.vocab)
        search = Search(scene, world, chosen, settings.episode, settings.reward, rng)
        search.observe(np.arange(n), world.measure(chosen))
        self.fresh.append(behaviour.run(search, Acting(self.policy, settings.samples, settings.explore), rng))
        self._learn()
        self.round += 1
        self.idle_rounds = self.idle_rounds + 1 if len(self.ledger.spent) == spent else 0
        if self.round % settings.refit_every == 0:
            self.refit(len(self.ledger.spent))
        return n

    def _workload(self, subject: Subject, rng: np.random.Generator) -> Workload:
        """Training workloads in a fresh random order each time round; in an open world often a shape nearby instead."""
        turn, place = divmod(self.round // len(self.subjects), len(subject.train))
        order = np.random.default_rng([self.seed, 13, turn]).permutation(len(subject.train))
        workload = subject.train[order[place]]
        closed = self.ledger.known(workload) is not None
        return split.perturbed(workload, rng) if not closed and rng.random() < self.settings.perturb_share else workload

    def _starts(self, task: Task, rng: np.random.Generator) -> list[dict[str, int]]:
        """The best config measured here so far, the expert's, the nearest workloads' best, and a random one."""
        timed = [m for m in self.ledger.paid() if m.workload == task.workload and m.time_us is not None]
        best = [dict(min(timed, key=lambda m: m.time_us or 0.0).config)] if timed else []
        known = self.subject(task.workload).known
        drawn = space.sample(task.template, task.workload, task.limits, 1, rng)
        wanted = [dict(task.template.expert(task.workload)), *borrowed(known, task.workload)[:2], *drawn]
        return distinct([*best, *(admit(task, config) for config in wanted)])

    def _learn(self) -> None:
        settings = self.settings
        if self.prepared is None:
            self.prepared = self.policy.prepare(self.offline, settings.reward)
        real = self.policy.prepare(concatenate(self.fresh), settings.reward)
        self.losses = self.policy.train(self.prepared, settings.updates, self.seed, fresh=real, fresh_share=settings.fresh_share)

    def refit(self, rows: int) -> None:
        """The cost models as they came learn the first `rows` measurements."""
        self.refitted_rows = rows
        for subject in self.subjects:
            subject.refit(self.ledger.paid()[:rows], self.ledger.device)


def finetune(tuner: Tuner, folder: Path, advance: Advance = lambda n, note: None) -> FinetuneResult:
    """Play rounds until the budget is spent; the table before and after. Continues from the folder's last whole round.

    Leaves policy/ and cost_model/<op>/ in the folder; every measurement is there already, in measurements/.
    """
    settings, started = tuner.settings, time.monotonic()
    before, elapsed = resume(tuner, folder)
    advance(len(tuner.ledger.spent), "")
    if not before:
        before = table_before(tuner, advance)
        checkpoint(tuner, folder, before, elapsed + time.monotonic() - started)
    with tensorboard(folder, tuner.round) as note:
        while not 0 < settings.seconds <= elapsed + time.monotonic() - started:
            spent = len(tuner.ledger.spent)
            if not tuner.play():
                break
            advance(len(tuner.ledger.spent) - spent, f"round {tuner.round}")
            checkpoint(tuner, folder, before, elapsed + time.monotonic() - started)
            gain = float(tuner.fresh[-1].returns().mean())
            note_losses(folder / "losses.csv", tuner.policy.steps, tuner.losses)
            note(tuner.round, {"returns/mean": gain} | {f"losses/{name}": value for name, value in tuner.losses.items()})
            log.info("round %d: %d measurements, mean gain %.3f", tuner.round, len(tuner.ledger.spent), gain)
        tuner.refit(len(tuner.ledger.spent))
        spent = len(tuner.ledger.spent)
        lines = table_after(tuner, before)
        best_us, picks = [line.best_us for line in lines], {"before": [line.before_us for line in lines]}
        picks["after"] = [line.after_us for line in lines]
        regrets = {f"regret/{when}": mean_regret(best_us, picked) for when, picked in picks.items()}
        note(tuner.round, {name: regret for name, regret in regrets.items() if regret is not None})
    advance(len(tuner.ledger.spent) - spent, "")
    tuner.policy.save(folder / "policy")
    for subject in tuner.subjects:
        subject.model.save(folder / "cost_model" / subject.template.op)
    statuses = Counter(str(m.status) for m in tuner.ledger.paid())
    seconds = elapsed + time.monotonic() - started
    return FinetuneResult(tuner.policy, lines, tuner.round, len(tuner.ledger.spent), seconds, dict(statuses))


Before = dict[str, list[float | None]]
"""Workload -> times of naive, expert, and the policy's pick before any fine-tuning; microseconds."""


def table_before(tuner: Tuner, advance: Advance) -> Before:
    """Measure naive, expert and the pick of the policy as it came."""
    workloads, spent = tuner.tabled(), len(tuner.ledger.spent)
    naive = tuner.times_us([(w, tuner.subject(w).template.naive, "naive") for w in workloads])
    expert = tuner.times_us([(w, tuner.subject(w).template.expert(w), "expert") for w in workloads])
    picked = tuner.times_us([(w, tuner.pick(w), "policy") for w in workloads])
    advance(len(tuner.ledger.spent) - spent, "before")
    return {str(w): list(times) for w, *times in zip(workloads, naive, expert, picked, strict=True)}


def table_after(tuner: Tuner, before: Before) -> list[Line]:
    """A line per workload: the pick of the policy as it is now, and the best of all that was measured there."""
    workloads = tuner.tabled()
    after = tuner.times_us([(w, tuner.pick(w), "policy") for w in workloads])
    lines = []
    for w, after_us in zip(workloads, after, strict=True):
        times = [m.time_us for m in tuner.ledger.paid() if m.workload == w and m.time_us is not None]
        naive, expert, first = before[str(w)]
        lines.append(Line(str(w), split.split_of(w), naive, expert, first, after_us, min(times, default=None)))
    return lines


def checkpoint(tuner: Tuner, folder: Path, before: Before, seconds: float) -> None:
    """State after a whole round: policy and real episodes, then the file that says where they are."""
    place = folder / f"round-{tuner.round % 2}"  # two in turn: a run killed while saving still has the other
    tuner.policy.save(place)
    if tuner.fresh:
        tuner.fresh[-1].save(folder / f"episodes-{tuner.round:04d}.npz")
    state = {
        "place": place.name,
        "round": tuner.round,
        "spent": len(tuner.ledger.spent),
        "refitted_rows": tuner.refitted_rows,
        "idle_rounds": tuner.idle_rounds,
        "seconds": seconds,
        "before": before,
    }
    write_json(folder / "checkpoint.json", state)


def resume(tuner: Tuner, folder: Path) -> tuple[Before, float]:
    """Put the tuner where the last whole round left it. The table before, empty where there is none yet, and the seconds used."""
    from pipeline.policy.iql import Policy

    path = folder / "checkpoint.json"
    if not path.exists():
        return {}, 0.0
    state = read_json(path)
    tuner.policy = Policy.load(folder / state["place"])
    tuner.round, tuner.idle_rounds = int(state["round"]), int(state["idle_rounds"])
    tuner.ledger.forget_after(int(state["spent"]))
    tuner.fresh = [Episodes.load(folder / f"episodes-{i:04d}.npz") for i in range(1, tuner.round + 1)]
    if state["refitted_rows"]:
        tuner.refit(int(state["refitted_rows"]))
    log.info("continues after round %d with %d measurements", tuner.round, len(tuner.ledger.spent))
    return dict(state["before"]), float(state["seconds"])
