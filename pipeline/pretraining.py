"""Pretraining: searches in simulated worlds, and IQL on them. The stage round it is `pipeline.pretrain`."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from cost_model.model import CostModel
from datasets import split
from datasets.device import Device
from datasets.episodes import Episodes, concatenate
from pipeline.policy import action, behaviour, state
from pipeline.policy.behaviour import Acting, Behaviour, Blind, NoisyGreedy, Towards
from pipeline.policy.env import EpisodeSettings, Scene, Search
from pipeline.policy.iql_settings import IqlSettings
from pipeline.policy.reward import RewardSettings
from pipeline.policy.state import Layout
from pipeline.policy.world import Remembered, SimulatedWorld, TimeModel, WorldSettings
from pipeline.progress import Progress, progress
from pipeline.scalars import note_losses, tensorboard
from pipeline.strategies.known_good import KnownGood, borrowed, known_good
from templates import space
from templates.errors import InputError
from templates.knob import columns_of
from templates.template import Template
from templates.workload import Workload

if TYPE_CHECKING:
    from pipeline.policy.iql import Losses, Policy

log = logging.getLogger("pretrain")
Advance = Callable[[int, str], None]
Show = Callable[[int, str], AbstractContextManager[Progress]]
"""Opens a display of progress over a number of units of work of one kind."""


@dataclass(frozen=True)
class PretrainSettings:
    """searches: simulated worlds, shared out evenly among the operators (at least one each); each is a synthetic workload with
    `episodes` searches in lockstep. *_share: of the worlds, how many are explored blindly and how many by walking to a good
    config of that world; the rest is noisy-greedy. bank: random configs that searches start from, few enough to parse.
    use_source: AST counts in the state. chunk: worlds per file.
    """

    searches: int = 160
    episodes: int = 24
    bank: int = 256
    blind_share: float = 0.4
    towards_share: float = 0.2
    use_source: bool = True
    chunk: int = 16
    episode: EpisodeSettings = field(default_factory=EpisodeSettings)
    reward: RewardSettings = field(default_factory=RewardSettings)
    world: WorldSettings = field(default_factory=WorldSettings)
    iql: IqlSettings = field(default_factory=IqlSettings)

    def __post_init__(self) -> None:
        if min(self.searches, self.episodes, self.chunk) < 1:
            raise InputError("pretrain.searches, pretrain.episodes and pretrain.chunk must be 1 or more")


@dataclass(frozen=True)
class PretrainResult:
    """`gains`: what a search gains in log time in fresh simulated worlds, by operator and behaviour."""

    policy: "Policy"
    episodes: Episodes
    losses: "Losses"
    gains: dict[str, dict[str, float]]
    seconds: dict[str, float]


@dataclass(frozen=True)
class Lesson:
    """One operator to be taught: its cost model, and measured rows of its training workloads (known-good configs, shapes)."""

    model: CostModel
    frame: pd.DataFrame

    @cached_property
    def workloads(self) -> list[Workload]:
        """The training workloads; InputError where the rows are of workloads that are for evaluation."""
        found = sorted({Workload.parse(text) for text in self.frame["workload"].unique()})
        for workload in found:
            if split.split_of(workload) in ("validation", "test"):
                raise InputError(f"pretrain was given rows of {workload}, which is for evaluation: pass training rows only")
        return found


@dataclass(frozen=True)
class Simulator:
    """Everything a simulated search of one operator needs but its number."""

    template: Template
    model: CostModel
    device: Device
    known: KnownGood
    train: Sequence[Workload]
    settings: PretrainSettings
    seed: int

    @staticmethod
    def of(lesson: Lesson, device: Device, settings: PretrainSettings, seed: int) -> "Simulator":
        """The simulator of a lesson."""
        template = lesson.model.template
        known = known_good(lesson.frame, template, top=8)
        return Simulator(template, lesson.model, device, known, lesson.workloads, settings, seed)

    @cached_property
    def bank(self) -> list[dict[str, int]]:
        """Random configs, each legal on some training workload, that searches start from."""
        rng = np.random.default_rng([self.seed, 3])
        each = -(-self.settings.bank // len(self.train))
        drawn = [space.sample(self.template, workload, self.device.limits, each, rng) for workload in self.train]
        return [config for configs in drawn for config in configs][: self.settings.bank]

    @cached_property
    def layout(self) -> Layout:
        """What states hold."""
        return state.layout(use_source=self.settings.use_source)

    def scene(self, workload: Workload, model: TimeModel) -> Scene:
        """The scene of one workload."""
        return Scene(self.template, workload, self.device, model, self.layout, action.vocabulary())

    def search(self, number: int) -> tuple[Search, SimulatedWorld, np.random.Generator]:
        """World number `number`: the same at every call. In half of the worlds the starts were measured before."""
        rng = np.random.default_rng([self.seed, number])
        workload = synthetic(self.template, self.train, rng)
        model = Remembered(self.model, self.template)
        world = SimulatedWorld(model, self.template, workload, self.device, self.settings.world, rng)
        starts = self._starts(workload, rng)
        search = Search(self.scene(workload, model), world, starts, self.settings.episode, self.settings.reward, rng)
        if rng.random() < 0.5:
            search.observe(np.arange(len(starts)), world.measure(starts))
        return search, world, rng

    def _starts(self, workload: Workload, rng: np.random.Generator) -> list[dict[str, int]]:
        """A third each: random, the expert's, borrowed from related workloads; now and then naive."""
        n, naive = self.settings.episodes, [dict(self.template.naive)]
        random = legal_here(self.template, self.bank, workload, self.device) or naive
        expert = space.canonical_config(self.template, self.template.expert(workload))
        fixed = legal_here(self.template, [expert, *borrowed(self.known, workload)[:16]], workload, self.device)
        pool = [random, fixed[:1] or naive, fixed or naive, naive]
        kinds = rng.choice(4, size=n, p=[0.35, 0.3, 0.3, 0.05])
        return [pool[kind][rng.integers(len(pool[kind]))] for kind in kinds]

    def behaviour(self, number: int, world: SimulatedWorld, rng: np.random.Generator) -> Behaviour:
        """What explores world `number`."""
        settings, draw = self.settings, rng.random()
        if draw < settings.blind_share:
            return Blind()
        if draw < settings.blind_share + settings.towards_share:
            return Towards(self._goals(world, rng))
        return NoisyGreedy(noise=float(np.exp(rng.uniform(np.log(0.02), np.log(0.3)))))

    def _goals(self, world: SimulatedWorld, rng: np.random.Generator) -> list[dict[str, int]]:
        """The best of 256 random and the borrowed configs of this world, one per search."""
        drawn = space.sample(self.template, world.workload, self.device.limits, 256, rng)
        drawn += legal_here(self.template, borrowed(self.known, world.workload)[:32], world.workload, self.device)
        order = world.log_times(drawn).argsort(kind="stable")[: self.settings.episodes]
        return [drawn[order[i % len(order)]] for i in range(self.settings.episodes)]

    def episodes(self, number: int) -> Episodes:
        """The transitions of one world."""
        search, world, rng = self.search(number)
        return behaviour.run(search, self.behaviour(number, world, rng), rng)


def legal_here(template: Template, configs: list[dict[str, int]], workload: Workload, device: Device) -> list[dict[str, int]]:
    """Those of the configs that are legal on this workload and device."""
    if not configs:
        return []
    keep = space.legal(template, columns_of(list(configs), template.names), workload, device.limits)
    return [config for config, good in zip(configs, keep, strict=True) if good]


def synthetic(template: Template, train: Sequence[Workload], rng: np.random.Generator) -> Workload:
    """A workload like the training ones, never one that is evaluated on and never larger than they are in any dimension.

    A training workload itself, one nearby, or one whose extents lie between those of two of them, rounded to some power of two;
    extents that the template fixes are the first one's.
    """
    one, other = train[int(rng.integers(len(train)))], train[int(rng.integers(len(train)))]
    kind = rng.random()
    if kind < 0.5:
        return one if kind < 0.25 else split.perturbed(one, rng)
    for _ in range(100):
        between = 2 ** rng.uniform(*np.sort([template.log_extents(one), template.log_extents(other)], axis=0))
        dims = []
        for (name, extent), wanted in zip(one.dims, between.tolist(), strict=True):
            step = int(2 ** rng.integers(0, 8))
            largest = max(workload[name] for workload in train)
            dims.append((name, extent if name in template.fixed else min(largest, max(1, round(wanted / step) * step))))
        found = Workload(one.op, one.dtype, tuple(dims))
        if not template.flaw(found) and split.split_of(found) in ("train", "unlisted"):
            return found
    return one


def simulate(simulators: Sequence[Simulator], folder: Path, advance: Advance = lambda n, note: None) -> Episodes:
    """Episodes of all worlds, operators in turn, kept in chunks under the folder; chunks that are there are not made again."""
    folder.mkdir(parents=True, exist_ok=True)
    settings, chunks = simulators[0].settings, []
    worlds = max(settings.searches, len(simulators))
    for first in range(0, worlds, settings.chunk):
        path = folder / f"chunk-{first:05d}.npz"
        numbers = range(first, min(first + settings.chunk, worlds))
        if not path.exists():
            parts = []
            for number in numbers:
                simulator = simulators[number % len(simulators)]
                parts.append(simulator.episodes(number))
                advance(1, simulator.template.op)
            concatenate(parts).save(path)
        else:
            advance(len(numbers), "")
        chunks.append(Episodes.load(path))
    return concatenate(chunks)


def learn(
    policy: "Policy",
    episodes: Episodes,
    settings: PretrainSettings,
    seed: int,
    folder: Path,
    advance: Advance = lambda n, note: None,
) -> "Losses":
    """IQL steps up to settings.iql.steps, with a checkpoint and a line of losses.csv every `checkpoint_every`."""
    prepared = policy.prepare(episodes, settings.reward)
    losses: dict[str, float] = {}
    advance(policy.steps, "")
    with tensorboard(folder, policy.steps) as note:
        while policy.steps < settings.iql.steps:
            steps = min(settings.iql.checkpoint_every, settings.iql.steps - policy.steps)
            losses = policy.train(prepared, steps, seed, after_step=lambda step, found: advance(1, ""))
            policy.save(folder / "policy")
            note_losses(folder / "losses.csv", policy.steps, losses)
            note(policy.steps, {f"losses/{name}": value for name, value in losses.items()})
            log.info("step %d: %s", policy.steps, ", ".join(f"{name} {value:.4f}" for name, value in losses.items()))
    return losses


def gains_of(simulator: Simulator, behaviours: dict[str, Behaviour], searches: int = 6) -> dict[str, float]:
    """Mean gain of a search, log time, in worlds that no episode was drawn from; the same worlds for every behaviour."""
    gains = {}
    for name, chosen in behaviours.items():
        returns = []
        for number in range(searches):
            search, _, rng = simulator.search(1_000_000 + number)
            returns.append(behaviour.run(search, chosen, rng).returns())
        gains[name] = float(np.concatenate(returns).mean())
    return gains


def pretrain(
    lessons: Sequence[Lesson],
    device: Device,
    settings: PretrainSettings,
    seed: int,
    folder: Path,
    show: Show = progress,
) -> PretrainResult:
    """Simulate, learn, look at what was learnt: one policy for the operators of all lessons.

    Continues what an interrupted call left in the folder, to the same result. InputError for rows of evaluation workloads.
    """
    from pipeline.policy.iql import Policy

    if not lessons:
        raise InputError("pretrain: no operator to learn; run `make fit` for one")
    simulators = [Simulator.of(lesson, device, settings, seed) for lesson in lessons]
    started = time.monotonic()
    with show(max(settings.searches, len(simulators)), "simulating") as bar:
        episodes = simulate(simulators, folder / "episodes", bar.advance)
    simulated = time.monotonic()
    if (folder / "policy" / "policy.json").exists():
        policy = Policy.load(folder / "policy")
    else:
        taught = [str(workload) for lesson in lessons for workload in lesson.workloads]
        policy = Policy.create(simulators[0].layout, action.vocabulary(), settings.iql, episodes.states, seed, taught)
    with show(settings.iql.steps, "learning") as bar:
        losses = learn(policy, episodes, settings, seed, folder, bar.advance)
    seconds = {"simulating": simulated - started, "learning": time.monotonic() - simulated}
    behaviours: dict[str, Behaviour] = {"random": Blind(), "greedy": NoisyGreedy(noise=0.02), "policy": Acting(policy, samples=4)}
    gains = {simulator.template.op: gains_of(simulator, behaviours) for simulator in simulators}
    with tensorboard(folder, policy.steps) as note:
        note(policy.steps, {f"returns/{op}/{name}": gain for op, found in gains.items() for name, gain in found.items()})
    return PretrainResult(policy, episodes, losses, gains, seconds)
