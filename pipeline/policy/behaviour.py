"""Ways to act in a search: at random, greedily with noise, towards a known-good config, or as the policy says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from datasets.episodes import Episodes
from pipeline.policy import action
from pipeline.policy.action import Choice, Moves
from pipeline.policy.env import Search
from templates.knob import columns_of


class Behaviour(Protocol):
    """Chooses for the searches `rows`, given their legal moves."""

    def choose(self, search: Search, rows: np.ndarray, moves: Moves, rng: np.random.Generator) -> Choice: ...


class Actor(Protocol):
    """A policy as behaviour needs it."""

    def sample_actions(self, states: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
        """(states, n, a)."""

    def q(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """(states,)."""


def run(search: Search, behaviour: Behaviour, rng: np.random.Generator) -> Episodes:
    """Play all searches to their end."""
    while len(rows := search.active()):
        moves = search.moves(rows)
        search.step(rows, moves, behaviour.choose(search, rows, moves, rng))
    return search.episodes()


@dataclass(frozen=True)
class Blind:
    """A random category, knob and value; measures with a fixed chance."""

    measure_rate: float = 0.2

    def choose(self, search: Search, rows: np.ndarray, moves: Moves, rng: np.random.Generator) -> Choice:
        """Uniform over categories, then knobs, then values, as M5's hierarchy has it: scores drawn at random."""
        wild = rng.uniform(-1, 1, (len(rows), search.scene.vocab.size))
        measure = search.may_measure(rows) & (rng.random(len(rows)) < self.measure_rate)
        choice = action.decode(search.scene.vocab, wild, moves, np.zeros(len(rows), dtype=bool))
        return Choice(measure | choice.measure, choice.move)


@dataclass(frozen=True)
class NoisyGreedy:
    """The edit the cost model likes best among a few drawn ones, its opinion blurred; measures where none promises more."""

    noise: float = 0.1
    breadth: int = 12
    measure_rate: float = 0.1

    def choose(self, search: Search, rows: np.ndarray, moves: Moves, rng: np.random.Generator) -> Choice:
        """Gumbel noise, so that the choice is a draw from a softmax of the predicted log times over the noise."""
        order = np.where(moves.legal, rng.random(moves.legal.shape), np.inf).argsort(axis=1)[:, : self.breadth]
        place = np.arange(len(rows))[:, None]
        columns = {name: column[place, order].ravel() for name, column in moves.after.items()}
        level = search.naive_log_time - search.scene.log_times(columns).mean(axis=0).reshape(order.shape)
        level = level + search.memory.offset[rows, None] + self.noise * rng.gumbel(size=order.shape)
        level[~moves.legal[place, order]] = -np.inf
        best = level.argmax(axis=1)
        done = (level.max(axis=1) <= search.memory.level[rows]) | (rng.random(len(rows)) < self.measure_rate)
        nothing = ~moves.legal.any(axis=1)
        return Choice((search.may_measure(rows) & done) | nothing, order[np.arange(len(rows)), best])


@dataclass(frozen=True)
class Towards:
    """Walks to a goal config per search and measures there, or where no legal edit gets nearer."""

    goals: Sequence[dict[str, int]]
    wander: float = 0.1

    def choose(self, search: Search, rows: np.ndarray, moves: Moves, rng: np.random.Generator) -> Choice:
        """Now and then a random edit instead, so that the way back from a wrong turn is in the data too."""
        goals = columns_of([self.goals[row] for row in rows], search.scene.template.names)
        nearer, move = action.towards(moves, search.at(rows), goals)
        wild = Blind(0.0).choose(search, rows, moves, rng)
        stray = (rng.random(len(rows)) < self.wander) | (~nearer & ~search.may_measure(rows))
        return Choice(np.where(stray, wild.measure, ~nearer), np.where(stray, wild.move, move))


@dataclass(frozen=True)
class Acting:
    """The policy: `samples` actions drawn per state, the one with the highest Q taken; now and then a random one.

    A Gaussian blurs several good edits into one mean; drawing and letting Q choose repairs that (Hansen-Estruch et al., IDQL,
    arXiv:2304.10573, section 4.2). Actions are judged as they would be executed: decoded, then encoded.
    """

    policy: Actor
    samples: int = 4
    explore: float = 0.0

    def choose(self, search: Search, rows: np.ndarray, moves: Moves, rng: np.random.Generator) -> Choice:
        """A legal choice per search."""
        vocab, states, may = search.scene.vocab, search.states(rows), search.may_measure(rows)
        drawn = self.policy.sample_actions(states, self.samples, rng)
        choices = [action.decode(vocab, drawn[:, i], moves, may) for i in range(self.samples)]
        best = np.zeros(len(rows), dtype=int)
        if self.samples > 1:
            at = search.at(rows)
            meant = np.concatenate([action.encode(vocab, moves, at, choice) for choice in choices])
            best = self.policy.q(np.tile(states, (self.samples, 1)), meant).reshape(self.samples, -1).argmax(axis=0)
        each = np.arange(len(rows))
        measure = np.stack([choice.measure for choice in choices])[best, each]
        move = np.stack([choice.move for choice in choices])[best, each]
        stray = rng.random(len(rows)) < self.explore
        wild = Blind().choose(search, rows, moves, rng)
        return Choice(np.where(stray, wild.measure, measure), np.where(stray, wild.move, move))
