"""The policy at work on a task: proposals by sampled edit sequences, and how much it still sees to gain from a config."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from datasets.measurement import Measurement
from pipeline.policy import state
from pipeline.policy.behaviour import Acting
from pipeline.policy.env import EpisodeSettings, Scene, Search
from pipeline.policy.reward import RewardSettings, outcome_of
from pipeline.policy.world import TimeModel, config_at
from pipeline.strategy import Task

if TYPE_CHECKING:
    from pipeline.policy.iql import Policy


def scene_of(task: Task, policy: "Policy", model: TimeModel) -> Scene:
    """The task as the policy's environment has it."""
    return Scene(task.template, task.workload, task.device, model, policy.layout, policy.vocab)


def remembered(scene: Scene, history: Sequence[Measurement], settings: EpisodeSettings) -> Search:
    """One search that has seen these measurements, in order, and stands at the best of them (or at the expert's config)."""
    start = dict(history[0].config) if history else dict(scene.template.expert(scene.workload))
    search = Search(scene, None, [start], settings, RewardSettings(), np.random.default_rng(0))
    row = np.zeros(1, dtype=int)
    for measurement in history:
        search.put(row, [measurement.config])
        search.observe(row, [outcome_of(measurement)])
    # The policy was taught on short searches: to it there is always one measurement left.
    search.memory.measured[:] = min(len(history), settings.measurements - 1)
    return search


def roll_out(
    policy: "Policy",
    past: Search,
    starts: Sequence[dict[str, int]],
    n: int,
    samples: int,
    rng: np.random.Generator,
) -> list[dict[str, int]]:
    """n proposals, repeats among them: from the starts in turn, edits drawn from the policy until it would measure."""
    scene, settings = past.scene, past.settings
    spread = [starts[i % len(starts)] for i in range(n)]
    search = Search(scene, None, spread, settings, RewardSettings(), rng, past.memory.repeated(n))
    search.best_columns = {name: np.repeat(column, n) for name, column in past.best_columns.items()}
    behaviour, rows = Acting(policy, samples), np.arange(n)
    for _ in range(settings.steps):
        moves = search.moves(rows)
        choice = behaviour.choose(search, rows, moves, rng)
        going = ~choice.measure
        rows, moves, move = rows[going], moves.of(going), choice.move[going]
        if not len(rows):
            break
        search.edit(rows, moves, move)
        search.memory.steps[rows] += 1
    return [config_at(search.columns, row) for row in range(n)]


def prospects(policy: "Policy", past: Search, configs: Sequence[dict[str, int]]) -> np.ndarray:
    """What the policy still sees to gain from each of n configs, float (n,): least where there is least left to improve."""
    n = len(configs)
    # All of them are shown the source of the best: parsing each would take minutes, and a constant moves none past another.
    best = state.source_row(past.scene.layout, past.scene.template, config_at(past.best_columns, 0))
    memory, source = past.memory.repeated(n), np.repeat(best[None], n, axis=0)
    search = Search(past.scene, None, configs, past.settings, RewardSettings(), np.random.default_rng(0), memory, source)
    search.best_columns = {name: np.repeat(column, n) for name, column in past.best_columns.items()}
    return policy.value(search.states(np.arange(n)))

