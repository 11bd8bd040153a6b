"""The episode: a search on one workload that edits a config, measures it when it chooses to, and goes on from the best.

Many searches run in lockstep, so that features, legality and the cost model are asked about all of them at once. Level is
the log speed-up over naive as known: measured where the config was, elsewhere the prediction shifted by the last
measurement's surprise. A step's reward is the change of level (less the penalty of a failure), so that an episode's rewards add
up to what the search gained; after a measurement it goes on from the best config measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from datasets.device import Device
from datasets.episodes import Episodes, concatenate
from pipeline.policy import action, state
from pipeline.policy.action import Choice, Moves, Vocabulary
from pipeline.policy.memory import Memory
from pipeline.policy.reward import Outcome, RewardSettings, penalty
from pipeline.policy.state import Layout
from pipeline.policy.world import Pool, TimeModel, World, config_at, config_key
from templates.knob import columns_of
from templates.template import Template
from templates.workload import Workload


@dataclass(frozen=True)
class EpisodeSettings:
    """Length of a search: steps (edits and measurements) and measurements in it; for how many steps a choice that compiled too
    slowly is set aside; how far a stored value strays within its cell, 0 to below 1.
    """

    steps: int = 12
    measurements: int = 3
    aside_steps: int = 6
    jitter: float = 0.8


@dataclass(frozen=True)
class Scene:
    """What does not change during a search. `guide` is the cost model that the policy is shown."""

    template: Template
    workload: Workload
    device: Device
    guide: TimeModel
    layout: Layout
    vocab: Vocabulary

    def log_times(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        """The guide's predictions, (members, n)."""
        return np.asarray(self.guide.log_time(self.workload, columns, self.device), dtype=float)


class Search:
    """n searches on one scene and one world. `starts` are legal configs; `world` is None when nothing will be measured.

    `memory` is what the searches know already (nothing, by default), `source` (n, s) the AST counts to show: those of the
    starts, by default. They stay the starts': parsing every config on the way would take most of the time.
    """

    def __init__(
        self,
        scene: Scene,
        world: World | None,
        starts: Sequence[dict[str, int]],
        settings: EpisodeSettings,
        reward: RewardSettings,
        rng: np.random.Generator,
        memory: Memory | None = None,
        source: np.ndarray | None = None,
    ) -> None:
        n, template = len(starts), scene.template
        self.scene, self.world, self.settings, self.reward, self.rng = scene, world, settings, reward, rng
        self.pool = None if world is None or world.pool is None else Pool(template, world.pool)
        self.columns = columns_of(list(starts), template.names)
        self.best_columns = {name: column.copy() for name, column in self.columns.items()}
        self.memory = memory or Memory(n, None if world is None else world.baseline)
        self.ended = np.zeros(n, dtype=bool)
        self.aside = np.zeros((n, len(action.steps(template.op).knob)), dtype=int)
        self.last_move = np.zeros(n, dtype=int)
        self.naive_log_time = float(scene.log_times(columns_of([template.naive], template.names)).mean())
        self.features = state.feature_rows(template, scene.workload, self.columns, scene.device)
        self.source = state.source_rows(scene.layout, template, starts) if source is None else source
        self.records: list[Episodes] = []
        self._refresh(np.arange(n))
        self.memory.start_level = self.memory.level.copy()

    # What a behaviour asks

    def active(self) -> np.ndarray:
        """Rows of the searches that go on."""
        return np.flatnonzero(~self.ended)

    def moves(self, rows: np.ndarray) -> Moves:
        """Legal edits of these searches, those set aside left out."""
        scene = self.scene
        found = action.moves_of(scene.template, self.at(rows), scene.workload, scene.device.limits)
        return Moves(found.steps, found.legal & (self.aside[rows] <= self.memory.steps[rows, None]), found.after)

    def may_measure(self, rows: np.ndarray) -> np.ndarray:
        """Bool (rows,): something is left to measure with, and the current config was not tried yet."""
        may: np.ndarray = ~self.memory.is_tried[rows] & (self.memory.measured[rows] < self.settings.measurements)
        return may

    def states(self, rows: np.ndarray) -> np.ndarray:
        """Float32 (rows, d)."""
        template, settings = self.scene.template, self.settings
        best = {name: column[rows] for name, column in self.best_columns.items()}
        known = self.memory.feedback(rows, template, self.at(rows), best, settings.steps, settings.measurements)
        return self.scene.layout.assemble(template, self.features[rows], self.source[rows], known)

    def at(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Columns of the current configs of these searches."""
        return {name: column[rows] for name, column in self.columns.items()}

    def episodes(self) -> Episodes:
        """All transitions so far; `episode` is the search's row."""
        return concatenate(self.records, renumber=False)

    # What happens

    def observe(self, rows: np.ndarray, outcomes: Sequence[Outcome]) -> None:
        """Tell searches what their current config came to, outside an episode's steps: a start that was measured before."""
        for row, outcome in zip(rows.tolist(), outcomes, strict=True):
            self._learn(row, outcome)
        self._return_to_best(rows)
        self.memory.start_level[rows] = self.memory.level[rows]

    def put(self, rows: np.ndarray, configs: Sequence[dict[str, int]]) -> None:
        """Place these searches at other configs."""
        for name, column in self.columns.items():
            column[rows] = [config[name] for config in configs]
        self._refresh(rows)

    def edit(self, rows: np.ndarray, moves: Moves, move: np.ndarray) -> None:
        """Take one edit in each of these searches; `moves` are theirs, `move` (rows,) indexes them."""
        place = np.arange(len(rows))
        for name, column in moves.after.items():
            self.columns[name][rows] = column[place, move]
        self.last_move[rows] = move
        self._refresh(rows)

    def step(self, rows: np.ndarray, moves: Moves, choice: Choice) -> None:
        """One decision of each of these searches; the last step of an episode measures what it has come to.

        A closed world first walks, edit by edit, to the nearest config it has, so that what is stored is what was done.
        """
        last = self.memory.steps[rows] + 1 >= self.settings.steps
        measure = choice.measure | (last & self.may_measure(rows))
        if self.pool is not None and measure.any():
            self._walk_to_pool(rows[measure], self.pool)
            moves = self.moves(rows)
        self._transition(rows, moves, Choice(measure, choice.move), counted=True)

    def _walk_to_pool(self, rows: np.ndarray, pool: Pool) -> None:
        """Edits, outside the count of steps, that lead each search to the nearest config of the pool it has not tried."""
        taken = [{pool.place[key] for key in self.memory.levels[row] if key in pool.place} for row in rows]
        places = pool.nearest([config_at(self.columns, row) for row in rows], taken)
        goals = columns_of([pool.configs[place] for place in places], self.scene.template.names)
        walking = np.arange(len(rows))
        while len(walking):
            moves, goal = self.moves(rows[walking]), {name: column[walking] for name, column in goals.items()}
            nearer, move = action.towards(moves, self.at(rows[walking]), goal)
            walking = walking[nearer]
            if len(walking):
                edit = Choice(np.zeros(len(walking), dtype=bool), move[nearer])
                self._transition(rows[walking], moves.of(nearer), edit, counted=False)
        level = self.memory.level[rows].copy()
        self.put(rows, [pool.configs[place] for place in places])  # where no legal path led all the way, the rest is one jump
        self.memory.level[rows] = level  # the measurement that follows accounts for the jump

    def _transition(self, rows: np.ndarray, moves: Moves, choice: Choice, counted: bool) -> None:
        before, level, memory = self.states(rows), self.memory.level[rows].copy(), self.memory
        actions = action.encode(self.scene.vocab, moves, self.at(rows), choice, self.settings.jitter, self.rng)
        memory.steps[rows] += counted
        self.edit(rows[~choice.measure], moves.of(~choice.measure), choice.move[~choice.measure])
        cost = np.zeros(len(rows))
        cost[choice.measure] = self._measure(rows[choice.measure])
        if counted:
            spent = memory.measured[rows] >= self.settings.measurements
            self.ended[rows] = spent | (memory.steps[rows] >= self.settings.steps)
            self._return_to_best(rows[self.ended[rows]])  # what a search hands out is something it has measured
        rewards = (memory.level[rows] - level - cost).astype(np.float32)
        op = np.full(len(rows), self.scene.layout.ops.index(self.scene.template.op))
        self.records.append(Episodes(before, actions, rewards, self.states(rows), self.ended[rows].copy(), rows.copy(), op))

    def _measure(self, rows: np.ndarray) -> list[float]:
        """Measure the current configs, a penalty each. Each search then stands at its best, at its start while it has none."""
        if not len(rows):
            return []
        if self.world is None:
            raise AssertionError("a search without a world cannot measure")
        outcomes = self.world.measure([config_at(self.columns, row) for row in rows])
        for row, outcome in zip(rows.tolist(), outcomes, strict=True):
            self.memory.measured[row] += 1
            if outcome.status == "compile_timeout":
                self.aside[row, self.last_move[row]] = self.memory.steps[row] + self.settings.aside_steps
            self._learn(row, outcome)
        self._return_to_best(rows)
        return [penalty(outcome, self.scene.workload, self.reward) for outcome in outcomes]

    def _learn(self, row: int, outcome: Outcome) -> None:
        """Take in the outcome of the current config; remember it where it is the best."""
        config = config_at(self.columns, row)
        if self.memory.learn(row, config_key(self.scene.template, config), outcome):
            for name, column in self.best_columns.items():
                column[row] = config[name]

    def _return_to_best(self, rows: np.ndarray) -> None:
        for name, column in self.best_columns.items():
            self.columns[name][rows] = column[rows]
        self._refresh(rows)

    def _refresh(self, rows: np.ndarray) -> None:
        """Bring features, predictions and levels up to date with the configs of these rows."""
        if not len(rows):
            return
        scene, columns = self.scene, self.at(rows)
        self.features[rows] = state.feature_rows(scene.template, scene.workload, columns, scene.device)
        by_member = scene.log_times(columns)
        self.memory.predicted[rows] = self.naive_log_time - by_member.mean(axis=0)
        self.memory.spread[rows] = by_member.std(axis=0)
        for row in rows.tolist():
            self.memory.place(row, config_key(scene.template, config_at(self.columns, row)))
