"""What n searches know by now: levels, the best config measured, the last outcome, what is left to spend."""

import numpy as np

from pipeline.policy import action, state
from pipeline.policy.reward import Outcome
from templates.knob import Columns
from templates.template import Template


class Memory:
    """Arrays of shape (n,) over n searches. Levels are log speed-ups over naive.

    `predicted` is the cost model's, `offset` what the last measurement added to it; `levels[i]` holds what search i measured.
    """

    def __init__(self, n: int, baseline: float | None) -> None:
        self.baseline = np.full(n, 0.0 if baseline is None else baseline)
        self.baseline_known = np.full(n, baseline is not None)
        self.predicted, self.spread, self.level, self.start_level = (np.zeros(n) for _ in range(4))
        self.offset, self.best_level, self.last_level, self.surprise = (np.zeros(n) for _ in range(4))
        self.has_best, self.is_measured, self.is_tried = (np.zeros(n, dtype=bool) for _ in range(3))
        self.kind = np.zeros(n, dtype=int)
        self.registers, self.spills, self.resources_known = np.zeros(n), np.zeros(n), np.zeros(n, dtype=bool)
        self.steps, self.measured = np.zeros(n, dtype=int), np.zeros(n, dtype=int)
        self.levels: list[dict[tuple[int, ...], float | None]] = [{} for _ in range(n)]

    def repeated(self, n: int) -> "Memory":
        """n searches that all know what this single one knows, each at the start of an episode."""
        copy = Memory(n, None)
        for name, value in vars(self).items():
            repeated = [dict(value[0]) for _ in range(n)] if isinstance(value, list) else np.repeat(value[:1], n)
            setattr(copy, name, repeated)
        copy.steps[:] = 0
        return copy

    def learn(self, row: int, key: tuple[int, ...], outcome: Outcome) -> bool:
        """Take in one outcome of search `row`'s current config; True when it is the best so far."""
        self.kind[row] = kind(outcome)
        self.resources_known[row] = outcome.resources is not None
        if outcome.resources is not None:
            self.registers[row] = outcome.resources.registers / 255
            self.spills[row] = np.log2(1 + outcome.resources.spill_bytes)
        if outcome.log_time is None:
            self.levels[row].setdefault(key, None)
            return False
        if not self.baseline_known[row] and not self.has_best[row]:
            # Nobody measured naive: the first measurement confirms the prediction, later ones are read against it.
            self.baseline[row] = outcome.log_time + self.level[row]
        level = self.baseline[row] - outcome.log_time
        self.surprise[row] = level - self.level[row]
        self.offset[row], self.last_level[row] = level - self.predicted[row], level
        self.levels[row][key] = level
        if self.has_best[row] and level <= self.best_level[row]:
            return False
        self.has_best[row], self.best_level[row] = True, level
        return True

    def place(self, row: int, key: tuple[int, ...]) -> None:
        """Search `row` now stands at the config `key`, whose prediction is already in `predicted`."""
        known = self.levels[row].get(key)
        self.is_measured[row], self.is_tried[row] = known is not None, key in self.levels[row]
        self.level[row] = self.predicted[row] + self.offset[row] if known is None else known

    def feedback(
        self, rows: np.ndarray, template: Template, here: Columns, best: Columns, steps: int, measurements: int
    ) -> dict[str, np.ndarray]:
        """The columns of `state.FEEDBACK` for these searches, at current and best configs (columns over the rows)."""
        has_best, level = self.has_best[rows], self.level[rows]
        apart = np.abs(action.positions(template, here) - action.positions(template, best)).sum(axis=1) / 2
        return {
            "predicted_speedup": self.predicted[rows],
            "predicted_spread": self.spread[rows],
            "level": level,
            "is_measured": self.is_measured[rows],
            "behind_best": np.where(has_best, self.best_level[rows] - level, 0.0),
            "best_speedup": np.where(has_best, self.best_level[rows], 0.0),
            "last_speedup": self.last_level[rows],
            "last_surprise": self.surprise[rows],
            "gained": level - self.start_level[rows],
            "distance_to_best": np.where(has_best, apart, 0.0),
            "baseline_measured": self.baseline_known[rows],
            **{f"last_{name}": self.kind[rows] == i for i, name in enumerate(state.KINDS)},
            "resources_known": self.resources_known[rows],
            "registers": self.registers[rows],
            "spills": self.spills[rows],
            "measurements_left": measurements - self.measured[rows],
            "measurements_used": self.measured[rows] / max(1, measurements),
            "steps_left": 1 - self.steps[rows] / max(1, steps),
        }


def kind(outcome: Outcome) -> int:
    """Index into `state.KINDS`."""
    if outcome.log_time is not None:
        return state.KINDS.index("ok")
    if outcome.status == "wrong_answer":
        return state.KINDS.index("wrong")
    if outcome.status in ("illegal", "compile_error", "compile_timeout"):
        return state.KINDS.index("build_failure")
    return state.KINDS.index("none" if outcome.status == "contaminated" else "run_failure")
