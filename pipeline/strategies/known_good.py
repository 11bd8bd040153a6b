"""The best configs of the training workloads: what a shape nobody measured can borrow."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from templates.errors import InputError
from templates.knob import parse_config
from templates.template import ELEMENT_BYTES, Template, load_template
from templates.workload import Workload


@dataclass(frozen=True)
class Known:
    """One training workload: its best configs, fastest first, and their times."""

    workload: Workload
    configs: tuple[dict[str, int], ...]
    times_us: tuple[float, ...]


KnownGood = tuple[Known, ...]

OTHER_DTYPE = 0.25
"""Distance between two dtypes of one size, in octaves of a shape."""


def known_good(frame: pd.DataFrame, template: Template, top: int = 32) -> KnownGood:
    """The `top` fastest configs of every workload in the frame; rows of other templates' knobs are left out.

    InputError where there is none: transfer needs at least one measured training workload.
    """
    rows = frame[(frame["op"] == template.op) & (frame["status"] == "ok") & (frame["config"] != "")]
    found = [_known(str(text), group, template, top) for text, group in rows.groupby("workload", sort=True)]
    usable = tuple(known for known in found if known.configs)
    if not usable:
        raise InputError(f"{template.op}: no measured training workload; run collect first")
    return usable


def _known(text: str, group: pd.DataFrame, template: Template, top: int) -> Known:
    best = group.groupby("config")["time_us"].min().nsmallest(top)
    pairs = [(parse_config(str(config)), float(time_us)) for config, time_us in best.items()]
    pairs = [(config, time_us) for config, time_us in pairs if set(config) == set(template.names)]
    return Known(Workload.parse(text), tuple(c for c, _ in pairs), tuple(t for _, t in pairs))


def shape_distance(one: Workload, other: Workload) -> float:
    """Euclidean distance of the extents' binary logarithms; between dtypes a bit more, and 1 for every factor 2 in their size.

    Infinite between operators.
    """
    if one == other:
        return 0.0  # also where there is no template to ask, as of a kernel of which only timings are known
    if one.op != other.op:
        return float("inf")
    template = load_template(one.op)
    size = abs(np.log2(ELEMENT_BYTES[one.dtype] / ELEMENT_BYTES[other.dtype])) + OTHER_DTYPE * (one.dtype != other.dtype)
    return float(np.linalg.norm(template.log_extents(one) - template.log_extents(other)) + size)


def nearest_first(known: KnownGood, workload: Workload) -> list[Known]:
    """Training workloads by shape distance, nearest first."""
    return sorted(known, key=lambda k: (shape_distance(workload, k.workload), str(k.workload)))


def borrowed(known: KnownGood, workload: Workload) -> list[dict[str, int]]:
    """Every known-good config in the order to try: the nearest workload's best, then its second and the next one's best, ..."""
    near = nearest_first(known, workload)
    places = [(rank + place, place, rank) for place, k in enumerate(near) for rank in range(len(k.configs))]
    return distinct([near[place].configs[rank] for _, place, rank in sorted(places)])


def distinct(configs: Sequence[dict[str, int]]) -> list[dict[str, int]]:
    """The configs without repeats, order kept."""
    return list({tuple(sorted(config.items())): config for config in configs}.values())
