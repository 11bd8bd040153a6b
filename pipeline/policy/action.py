"""Actions: an edit of the config, category first, or measuring it - as the vectors IQL takes and as the moves it means.

A vector in [-1, 1] holds a score per category (and one for measuring), a score per knob, and a value position per knob. It is
read hierarchically: the best category that has a legal move, in it the best knob, of that the legal value next to the
position. What a learner stores is the encoding of the move that was executed, so every stored action means what was done.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from templates import space
from templates.knob import CATEGORIES, Columns
from templates.template import Limits, Template, load_template, operators
from templates.workload import Workload

MEASURE = len(CATEGORIES)
"""Place of the score for measuring, after the categories'."""


@dataclass(frozen=True)
class Vocabulary:
    """Knob names over all operators, sorted: the same action vector serves every operator."""

    knobs: tuple[str, ...]

    @property
    def size(self) -> int:
        """Length of an action vector."""
        return MEASURE + 1 + 2 * len(self.knobs)

    def names(self) -> list[str]:
        """What each dimension of an action vector stands for."""
        heads = [f"category_{name}" for name in (*CATEGORIES, "measure")]
        return heads + [f"knob_{name}" for name in self.knobs] + [f"value_{name}" for name in self.knobs]

    def scores_at(self, template: Template) -> np.ndarray:
        """Places of the template's knob scores, in the template's order."""
        return MEASURE + 1 + np.array([self.knobs.index(name) for name in template.names])

    def values_at(self, template: Template) -> np.ndarray:
        """Places of the template's value positions, in the template's order."""
        return self.scores_at(template) + len(self.knobs)


def vocabulary(ops: Sequence[str] | None = None) -> Vocabulary:
    """The knobs of these operators; of all of them by default."""
    chosen = operators() if ops is None else ops
    return Vocabulary(tuple(sorted({name for op in chosen for name in load_template(op).names})))


@dataclass(frozen=True)
class Steps:
    """Every (knob, value) of a template, legal or not, in the knobs' order: m moves."""

    template: Template

    @cached_property
    def knob(self) -> np.ndarray:
        """Int (m,): index of the move's knob in the template's order."""
        return np.array([i for i, knob in enumerate(self.template.knobs) for _ in knob.values])

    @cached_property
    def value(self) -> np.ndarray:
        """Int (m,): the value the knob is set to."""
        return np.array([value for knob in self.template.knobs for value in knob.values])

    @cached_property
    def position(self) -> np.ndarray:
        """Float (m,): the value's place among its knob's values, scaled to [-1, 1]."""
        return np.concatenate([_spread(len(knob.values)) for knob in self.template.knobs])

    @cached_property
    def category(self) -> np.ndarray:
        """Int (m,): index of the knob's category."""
        return np.array([CATEGORIES.index(self.template.knobs[i].category) for i in self.knob])


@lru_cache
def steps(op: str) -> Steps:
    """The moves of an operator's template."""
    return Steps(load_template(op))


@lru_cache
def _spread(count: int) -> np.ndarray:
    return np.linspace(-1.0, 1.0, count) if count > 1 else np.zeros(1)


def positions(template: Template, columns: Columns) -> np.ndarray:
    """Float (n, knobs): each value's place among its knob's values, scaled to [-1, 1]."""
    places = [table[np.asarray(columns[name])] for name, table in zip(template.knob, _tables(template), strict=True)]
    return np.stack(places, axis=-1)


def _tables(template: Template) -> list[np.ndarray]:
    """Position by value, an array per knob, NaN where the knob has no such value: indexing is many times faster than a search."""
    return _tables_of(tuple(knob.values for knob in template.knobs))


@lru_cache
def _tables_of(knobs: tuple[tuple[int, ...], ...]) -> list[np.ndarray]:
    tables = []
    for values in knobs:
        table = np.full(values[-1] + 1, np.nan)
        table[list(values)] = _spread(len(values))
        tables.append(table)
    return tables


@dataclass(frozen=True)
class Moves:
    """The m moves of n configs: `legal` (n, m), and the configs they lead to, canonical, as columns of shape (n, m)."""

    steps: Steps
    legal: np.ndarray
    after: dict[str, np.ndarray]

    def of(self, rows: np.ndarray) -> "Moves":
        """The moves of some of the configs (indices or a bool mask)."""
        return Moves(self.steps, self.legal[rows], {name: column[rows] for name, column in self.after.items()})

    def taken(self, move: np.ndarray) -> dict[str, np.ndarray]:
        """Columns (n,) after one move each; `move` is int (n,)."""
        rows = np.arange(len(move))
        return {name: column[rows, move] for name, column in self.after.items()}


def moves_of(template: Template, columns: Columns, workload: Workload, limits: Limits) -> Moves:
    """Which single edits of n configs are legal. The vectorised form of `templates.space.edits`."""
    all_steps = steps(template.op)
    n, m = len(columns[template.names[0]]), len(all_steps.knob)
    tried = {name: np.repeat(np.asarray(columns[name])[:, None], m, axis=1) for name in template.names}
    possible = np.empty((n, m), dtype=bool)
    for i, name in enumerate(template.names):
        at = all_steps.knob == i
        possible[:, at] = tried[name][:, at] != all_steps.value[at]
        tried[name][:, at] = all_steps.value[at]
    fixed = space.canonical(template, {name: column.ravel() for name, column in tried.items()})
    after = {name: column.reshape(n, m) for name, column in fixed.items()}
    for i, name in enumerate(template.names):
        at = all_steps.knob == i
        possible[:, at] &= after[name][:, at] == all_steps.value[at]
    legal = possible.ravel()
    # The constraints are the costly part: ask them only about edits that have an effect.
    legal[legal] = space.legal(template, {name: column[legal] for name, column in fixed.items()}, workload, limits)
    return Moves(all_steps, legal.reshape(n, m), after)


@dataclass(frozen=True)
class Choice:
    """What n searches do next: `measure` bool (n,) the current config, or else take `move`, int (n,)."""

    measure: np.ndarray
    move: np.ndarray


def decode(vocab: Vocabulary, actions: np.ndarray, moves: Moves, may_measure: np.ndarray) -> Choice:
    """The legal choice that each action vector (n, a) means. Where nothing is legal the choice is to measure."""
    n = len(actions)
    rows = np.arange(n)[:, None]
    s, template = moves.steps, moves.steps.template
    open_categories = np.zeros((n, MEASURE + 1), dtype=bool)
    for category in range(MEASURE):
        open_categories[:, category] = moves.legal[:, s.category == category].any(axis=1)
    open_categories[:, MEASURE] = may_measure | ~open_categories.any(axis=1)
    category = np.where(open_categories, actions[:, : MEASURE + 1], -np.inf).argmax(axis=1)
    usable = moves.legal & (s.category == category[:, None])
    scores = np.where(usable, actions[:, vocab.scores_at(template)[s.knob]], -np.inf)
    best_knob = s.knob[scores.argmax(axis=1)]
    wanted = actions[rows, vocab.values_at(template)[s.knob][None, :]]
    away = np.where(usable & (s.knob == best_knob[:, None]), np.abs(wanted - s.position), np.inf)
    return Choice(category == MEASURE, away.argmin(axis=1))


def encode(
    vocab: Vocabulary, moves: Moves, columns: Columns, choice: Choice, jitter: float = 0.0, rng: np.random.Generator | None = None
) -> np.ndarray:
    """Float32 (n, a): the vectors of choices made at `columns`; chosen scores are 1, others -1, values those after the move.

    `jitter` in [0, 1) moves each value at random within its cell, which decodes to the same value: a Gaussian policy fitted
    to exact positions would shrink its spread to nothing and then never try the neighbouring values.
    """
    s, template = moves.steps, moves.steps.template
    n = len(choice.move)
    taken = moves.taken(choice.move)
    after = {name: np.where(choice.measure, np.asarray(columns[name]), taken[name]) for name in template.names}
    places = positions(template, after)
    if rng is not None and jitter > 0:
        cell = np.array([1.0 / max(1, len(knob.values) - 1) for knob in template.knobs])
        places = np.clip(places + jitter * cell * rng.uniform(-1, 1, places.shape), -1, 1)
    vectors = np.zeros((n, vocab.size), dtype=np.float32)
    vectors[:, : MEASURE + 1 + len(vocab.knobs)] = -1.0
    vectors[:, vocab.values_at(template)] = places
    rows = np.arange(n)
    vectors[rows, np.where(choice.measure, MEASURE, s.category[choice.move])] = 1.0
    edited = rows[~choice.measure]
    vectors[edited, vocab.scores_at(template)[s.knob[choice.move[edited]]]] = 1.0
    return vectors


def towards(moves: Moves, here: Columns, goals: Columns) -> tuple[np.ndarray, np.ndarray]:
    """The legal move that brings each of n configs nearest to its goal, by knob distance: (nearer, move), bool and int (n,).

    Only moves that set a knob to the goal's value count; `nearer` is False where none of them is legal or gets nearer.
    """
    template, n = moves.steps.template, len(moves.legal)
    target = positions(template, goals)
    gap = np.abs(positions(template, here) - target).sum(axis=1)
    wanted = moves.legal & (moves.steps.value == np.stack([goals[name] for name in template.names], axis=1)[:, moves.steps.knob])
    rows, which = np.nonzero(wanted)
    after = positions(template, {name: column[rows, which] for name, column in moves.after.items()})
    gaps = np.full(moves.legal.shape, np.inf)
    gaps[rows, which] = np.abs(after - target[rows]).sum(axis=1)
    move = gaps.argmin(axis=1)
    return gaps[np.arange(n), move] < gap - 1e-9, move
