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
    part = {name: fixed[name][left] for name in template.names}
    for constraint in template.constraints:  # each on those alone that satisfy the ones before
        holds = np.broadcast_to(np.asarray(constraint.holds(part, workload, limits), dtype=bool), left.shape)
        if not holds.all():
            left, part = left[holds], {name: column[holds] for name, column in part.items()}
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


def sample(template: Template, workload: Workload, limits: Limits, n: int, rng: np.random.Generator) -> list[dict[str, int]]:
    """n distinct legal configs, each legal config as likely as any other, without listing the space.

    Rejection sampling in batches. A draw stands for the config with its inactive knobs at their defaults, and as many draws
    for the same config as those knobs have values; so it is kept with a probability that falls as that number grows, the
    least number met so far being kept always. Fewer than n come back only where the space is (nearly) exhausted.
    """
    drawn: list[tuple[float, tuple[int, ...]]] = []
    least = np.inf
    found: dict[tuple[int, ...], None] = {}
    for batch in range(600):
        columns = {knob.name: rng.choice(np.array(knob.values), size=8192) for knob in template.knobs}
        fixed, ways = _fold(template, columns)
        keep = np.flatnonzero(legal(template, fixed, workload, limits))
        lots = ways[keep] * rng.random(len(keep))
        lower = min(least, float(np.min(ways[keep], initial=np.inf)))
        candidates = zip(lots.tolist(), zip(*(fixed[name][keep].tolist() for name in template.names), strict=True), strict=True)
        drawn += [(lot, config) for lot, config in candidates if lot < lower]
        if lower < least:
            least, drawn = lower, [(lot, config) for lot, config in drawn if lot < lower]
        found = dict.fromkeys(config for _, config in drawn)
        if batch >= 1 and len(found) >= n:
            break
    return [dict(zip(template.names, config, strict=True)) for config in list(found)[:n]]


def _fold(template: Template, columns: Columns) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Canonical columns, and for each config (n,) how many combinations of values of its inactive knobs fold into it."""
    fixed = canonical(template, columns)
    ways = np.ones(len(fixed[template.names[0]]))
    for knob in template.knobs:
        if knob.active is not None:
            ways = np.where(knob.active(fixed), ways, ways * len(knob.values))
    return fixed, ways


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
