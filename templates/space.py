"""The legal space of a template: what is allowed, drawn at random, one edit away."""

from collections.abc import Sequence

import numpy as np

from templates.errors import InputError
from templates.knob import Columns, Config, columns_of, configs_of
from templates.template import Limits, Template
from templates.workload import Workload


def canonical(template: Template, columns: Columns) -> dict[str, np.ndarray]:
    """Columns with every inactive knob set to its default; one pass, knobs in the template's order.

    A knob's activity may depend on the knobs before it only, so one pass is enough.
    """
    result = {name: np.asarray(columns[name]) for name in template.names}
    for knob in template.knobs:
        if knob.active is not None:
            result[knob.name] = np.where(knob.active(result), result[knob.name], knob.default)
    return result


def canonical_config(template: Template, config: Config) -> dict[str, int]:
    """One config with every inactive knob at its default."""
    return configs_of(canonical(template, columns_of([config], template.names)))[0]


def complete(template: Template, partial: Config, base: Config | None = None) -> dict[str, int]:
    """A full canonical config from some knobs and a base (the naive one unless given).

    InputError for an unknown knob or a value the knob does not have.
    """
    for name, value in partial.items():
        if name not in template.knob:
            raise InputError(f"{template.op}: knob {name!r} is unknown; known: {', '.join(template.names)}")
        if value not in template.knob[name].values:
            allowed = ", ".join(map(str, template.knob[name].values))
            raise InputError(f"{template.op}: {name}={value} is not one of {allowed}")
    return canonical_config(template, {**(template.naive if base is None else base), **partial})


def legal(template: Template, columns: Columns, workload: Workload, limits: Limits) -> np.ndarray:
    """Bool array (n,): which of n configs are canonical and satisfy every constraint."""
    fixed = canonical(template, columns)
    n = len(next(iter(fixed.values())))
    left = np.flatnonzero(np.logical_and.reduce([fixed[name] == columns[name] for name in template.names]))
    for constraint in template.constraints:  # each on those alone that satisfy the ones before
        part = {name: fixed[name][left] for name in template.names}
        holds = np.asarray(constraint.holds(part, workload, limits), dtype=bool)
        left = left[np.broadcast_to(holds, left.shape)]
    result = np.zeros(n, dtype=bool)
    result[left] = True
    return result


def violations(template: Template, config: Config, workload: Workload, limits: Limits) -> list[str]:
    """Why a config is not legal here, a reason each; empty when it is."""
    fixed = canonical_config(template, config)
    reasons = [
        f"{name}={config[name]} has no effect here; {fixed[name]} stands for it"
        for name in template.names
        if config[name] != fixed[name]
    ]
    with np.errstate(divide="ignore"):
        columns = columns_of([config], template.names)
        return reasons + [c.reason for c in template.constraints if not np.all(c.holds(columns, workload, limits))]


BATCH = 8192
MOST_BATCHES = 200
ENOUGH = 50
"""Legal draws per config wanted, after which `sample` no longer waits for rare ones."""


def sample(template: Template, workload: Workload, limits: Limits, n: int, rng: np.random.Generator) -> list[dict[str, int]]:
    """n distinct legal configs, each legal config as likely as any other, without listing the space.

    Knob values are drawn at random and inactive knobs set to their defaults, so a config is drawn m times as often as one with
    no inactive knob, m being the combinations it stands for. Each draw gets a key, uniform in [0, m), and the n smallest keys
    win: below the smallest m every config has the same chance. Where such draws stay rare, larger keys fill up the rest, that is
    configs of more inactive knobs. Fewer than n come back only where the space is (nearly) exhausted.
    """
    found: dict[tuple[int, ...], float] = {}  # the smallest key of each config, in ascending order
    drawn, fewest = 0, np.inf
    for _ in range(MOST_BATCHES):
        columns = canonical(template, {knob.name: rng.choice(np.array(knob.values), size=BATCH) for knob in template.knobs})
        keep = np.flatnonzero(legal(template, columns, workload, limits))
        fixed = {name: column[keep] for name, column in columns.items()}
        stands_for = _combinations(template, fixed)
        keys = rng.random(len(keep)) * stands_for
        drawn, fewest = drawn + len(keep), min(fewest, stands_for.min(initial=np.inf))
        best = np.argsort(keys)[: 2 * n]
        rows = np.stack([fixed[name][best] for name in template.names], axis=1)
        for row, key in zip(map(tuple, rows.tolist()), keys[best].tolist(), strict=True):
            found[row] = min(key, found.get(row, np.inf))
        found = dict(sorted(found.items(), key=lambda item: item[1])[:n])
        if len(found) == n and (drawn >= ENOUGH * n or next(reversed(found.values())) <= fewest):
            break
    return [dict(zip(template.names, row, strict=True)) for row in found]


def _combinations(template: Template, columns: Columns) -> np.ndarray:
    """Float array (n,): how many combinations of knob values each of n canonical configs stands for."""
    count = np.ones(len(next(iter(columns.values()))))
    for knob in template.knobs:
        if knob.active is not None:
            count *= np.where(knob.active(columns), 1, len(knob.values))
    return count


def edits(template: Template, config: Config, workload: Workload, limits: Limits) -> list[tuple[str, int, dict[str, int]]]:
    """Every legal edit of a config: (knob, value, resulting canonical config), the config itself left out."""
    moves = [(k.name, v) for k in template.knobs for v in k.values if v != config[k.name]]
    columns = columns_of([{**config, name: value} for name, value in moves], template.names)
    fixed = canonical(template, columns)
    took = np.array([fixed[name][i] == value for i, (name, value) in enumerate(moves)])
    keep = legal(template, fixed, workload, limits) & took
    results = configs_of(fixed)
    return [(*moves[i], results[i]) for i in np.flatnonzero(keep)]


def distance(template: Template, config: Config, others: Sequence[Config]) -> np.ndarray:
    """Knob distance (n,): the summed steps between value positions, each knob scaled to [0, 1]."""
    total = np.zeros(len(others))
    for knob in template.knobs:
        place = {value: i / max(1, len(knob.values) - 1) for i, value in enumerate(knob.values)}
        total += np.abs(np.array([place[other[knob.name]] for other in others]) - place[config[knob.name]])
    return total
