"""Local search on a cheap score: the best edits of the best configs, until a number of evaluations is spent."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pipeline.strategy import Task
from templates import space
from templates.knob import columns_of, configs_of

Score = Callable[[list[dict[str, int]]], np.ndarray]
"""n configs -> float array (n,), lower is better: a predicted log time."""

WIDTH = 8
"""Configs expanded at once: enough to fill one vectorised call of the score, few enough to stay greedy."""

PARENTS = 24
"""Configs that mutate: single edits stall on this kind of space, where tile sizes must change together."""


def local_search(
    task: Task, score: Score, starts: Sequence[dict[str, int]], evaluations: int, rng: np.random.Generator
) -> list[tuple[float, dict[str, int]]]:
    """Everything scored, as (score, config), best (lowest) first; at most `evaluations` configs are scored.

    Each round scores all legal single edits of the best configs not yet expanded, and as many random changes of two or
    three knobs among the best. A closed world (`task.pool`) is scored whole instead: there is nothing else to find.
    """
    if task.pool is not None:
        return _sorted(zip(score(list(task.pool)).tolist(), task.pool, strict=True)) if task.pool else []
    scored: dict[tuple[int, ...], tuple[float, dict[str, int]]] = {}
    expanded: set[tuple[int, ...]] = set()
    fresh = _unseen(task, starts, scored)
    while fresh and len(scored) < evaluations:
        fresh = fresh[: evaluations - len(scored)]
        for value, config in zip(np.asarray(score(fresh)).tolist(), fresh, strict=True):
            scored[_key(task, config)] = (value, config)
        best = sorted(scored, key=lambda key: scored[key][0])
        frontier = [key for key in best if key not in expanded][:WIDTH]
        expanded.update(frontier)
        neighbours = [move[2] for key in frontier for move in _edits(task, scored[key][1])]
        mutants = mutate(task, [scored[key][1] for key in best[:PARENTS]], 8 * max(64, len(neighbours)), rng)
        fresh = _unseen(task, _alternate(neighbours, mutants[: max(32, len(neighbours))]), scored)
    return _sorted(scored.values())


def mutate(task: Task, parents: Sequence[dict[str, int]], n: int, rng: np.random.Generator) -> list[dict[str, int]]:
    """Up to n legal configs that differ from a random parent in two or three knobs, drawn blindly and filtered."""
    template = task.template
    names, values = template.names, [np.array(knob.values) for knob in template.knobs]
    chosen = [parents[i] for i in rng.integers(len(parents), size=n)]
    columns = columns_of(chosen, names)
    order = rng.random((n, len(names))).argsort(axis=1)
    changes = order < rng.integers(2, 4, size=n)[:, None]
    drawn = {
        name: np.where(changes[:, i], rng.choice(values[i], size=n), columns[name]) for i, name in enumerate(names)
    }
    fixed = space.canonical(template, drawn)
    keep = space.legal(template, fixed, task.workload, task.limits)
    return configs_of({name: column[keep] for name, column in fixed.items()})


def _edits(task: Task, config: dict[str, int]) -> list[tuple[str, int, dict[str, int]]]:
    return space.edits(task.template, config, task.workload, task.limits)


def _key(task: Task, config: dict[str, int]) -> tuple[int, ...]:
    return tuple(config[name] for name in task.template.names)


def _unseen(
    task: Task, configs: Iterable[dict[str, int]], scored: dict[tuple[int, ...], tuple[float, dict[str, int]]]
) -> list[dict[str, int]]:
    found = {_key(task, config): config for config in configs}
    return [config for key, config in found.items() if key not in scored]


def _alternate(first: list[dict[str, int]], second: list[dict[str, int]]) -> list[dict[str, int]]:
    """Both lists, one from each in turn: a budget that ends midway cuts both alike."""
    pairs = [config for pair in zip(first, second, strict=False) for config in pair]
    shared = min(len(first), len(second))
    return pairs + first[shared:] + second[shared:]


def _sorted(pairs: Iterable[tuple[float, dict[str, int]]]) -> list[tuple[float, dict[str, int]]]:
    return sorted(pairs, key=lambda pair: pair[0])
