"""Local search on a cheap score: changed and crossed configs of the best, and all their edits where that stalls."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pipeline.strategy import Task
from templates import space
from templates.knob import columns_of, configs_of

Score = Callable[[list[dict[str, int]]], np.ndarray]
"""n configs -> float array (n,), lower is better: a predicted log time."""

Scored = dict[tuple[int, ...], tuple[float, dict[str, int]]]
"""Knob values in the template's order -> score and config."""

PARENTS = 16
CHILDREN = 32
BLIND = 12
"""Children drawn for each one kept: most of them break a constraint, or were scored before."""


def local_search(
    task: Task, score: Score, starts: Sequence[dict[str, int]], evaluations: int, rng: np.random.Generator
) -> list[tuple[float, dict[str, int]]]:
    """Everything scored, as (score, config), best (lowest) first; at most `evaluations` configs are scored.

    Each round scores children of the best configs, and after a round that found nothing better all legal single edits of
    the best config not yet expanded. Edits alone cost 50 evaluations a step and stall, for tile sizes must change
    together. A closed world (`task.pool`) is scored whole instead: there is nothing else to find.
    """
    if task.pool is not None:
        return _sorted(zip(score(list(task.pool)).tolist(), task.pool, strict=True)) if task.pool else []
    scored: Scored = {}
    expanded: set[tuple[int, ...]] = set()
    fresh, lowest = _unseen(task, starts, scored), np.inf
    while fresh and len(scored) < evaluations:
        fresh = fresh[: evaluations - len(scored)]
        for value, config in zip(np.asarray(score(fresh)).tolist(), fresh, strict=True):
            scored[_key(task, config)] = (value, config)
        best = sorted(scored, key=lambda key: scored[key][0])
        parents = [scored[key][1] for key in best[:PARENTS]]
        fresh = _unseen(task, children(task, parents, BLIND * CHILDREN, rng), scored)[:CHILDREN]
        stalled, lowest = scored[best[0]][0] >= lowest, scored[best[0]][0]
        if stalled or not fresh:
            fresh = _unseen(task, [*fresh, *_edits_of_next(task, scored, best, expanded)], scored)
    return _sorted(scored.values())


def children(task: Task, parents: Sequence[dict[str, int]], n: int, rng: np.random.Generator) -> list[dict[str, int]]:
    """Up to n legal configs: a parent, or half the time two parents mixed knob by knob, with one to three knobs redrawn."""
    template = task.template
    shape = (n, len(template.names))
    columns = columns_of([*parents], template.names)
    one, other = rng.integers(len(parents), size=(2, n))
    crossed = (rng.random(shape) < 0.5) & (rng.random((n, 1)) < 0.5)
    redrawn = rng.random(shape).argsort(axis=1) < rng.integers(1, 4, size=(n, 1))
    drawn = {}
    for i, knob in enumerate(template.knobs):
        inherited = np.where(crossed[:, i], columns[knob.name][other], columns[knob.name][one])
        drawn[knob.name] = np.where(redrawn[:, i], rng.choice(np.array(knob.values), size=n), inherited)
    fixed = space.canonical(template, drawn)
    keep = space.legal(template, fixed, task.workload, task.limits)
    return configs_of({name: column[keep] for name, column in fixed.items()})


def _edits_of_next(
    task: Task, scored: Scored, best: Sequence[tuple[int, ...]], expanded: set[tuple[int, ...]]
) -> list[dict[str, int]]:
    """All edits of the best config whose edits were not scored yet; it is marked as expanded."""
    key = next((key for key in best if key not in expanded), None)
    if key is None:
        return []
    expanded.add(key)
    return [config for _, _, config in space.edits(task.template, scored[key][1], task.workload, task.limits)]


def _key(task: Task, config: dict[str, int]) -> tuple[int, ...]:
    return tuple(config[name] for name in task.template.names)


def _unseen(task: Task, configs: Iterable[dict[str, int]], scored: Scored) -> list[dict[str, int]]:
    found = {_key(task, config): config for config in configs}
    return [config for key, config in found.items() if key not in scored]


def _sorted(pairs: Iterable[tuple[float, dict[str, int]]]) -> list[tuple[float, dict[str, int]]]:
    return sorted(pairs, key=lambda pair: pair[0])
