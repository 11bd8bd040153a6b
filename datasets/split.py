"""Which workloads are learnt from and which are only evaluated on: the lists in conf/op/<op>.yaml.

The split is a property of the workload, never of a row: a random split of rows would leak.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import yaml  # type: ignore[import-untyped]

from templates.errors import InputError, NothingToDo
from templates.template import load_template, operators
from templates.workload import Workload

CONF = Path(__file__).parent.parent / "conf" / "op"
SPLITS = ("train", "validation", "test")
STEP = 8
"""A perturbation moves an extent by -2 to 2 of these: 4096 becomes 4088 or 4112, a tail for every tile, rows still aligned."""


def workloads(op: str) -> dict[str, list[Workload]]:
    """The workloads of an operator by split; InputError for an unknown operator or a faulty list."""
    return {split: list(items) for split, items in _lists(op, CONF / f"{op}.yaml").items()}


@cache
def _lists(op: str, path: Path) -> dict[str, tuple[Workload, ...]]:
    if not path.is_file():
        known = ", ".join(name for name in operators() if (CONF / f"{name}.yaml").is_file())
        raise InputError(f"operator {op!r} has no list of workloads ({path.name}); known: {known}")
    content = yaml.safe_load(path.read_text())
    if not isinstance(content, dict) or not all(content.get(split) for split in SPLITS):
        raise InputError(f"{path}: needs the lists {', '.join(SPLITS)}")
    template = load_template(op)
    lists = {split: tuple(template.check_workload(Workload.parse(text)) for text in content[split]) for split in SPLITS}
    every = [workload for items in lists.values() for workload in items]
    if len(set(every)) < len(every):
        twice = next(workload for workload in every if every.count(workload) > 1)
        raise InputError(f"{path}: {twice} is listed twice; a workload has one split")
    return lists


def named(op: str, texts: Sequence[str], setting: str) -> list[Workload]:
    """Those of the workloads named in a setting that are the operator's; NothingToDo where none of several is, InputError for
    what is no workload.
    """
    every = [Workload.parse(text) for text in texts]
    mine = [load_template(op).check_workload(workload) for workload in every if workload.op == op]
    if every and not mine:
        raise NothingToDo(f"{setting}: {every[0]} belongs to {every[0].op}, not to {op}")
    return mine


def split_of(workload: Workload) -> str:
    """"train", "validation" or "test", and "unlisted" for a shape in none of the lists, e.g. a user's own."""
    return next((split for split, items in workloads(workload.op).items() if workload in items), "unlisted")


def perturbed(workload: Workload, rng: np.random.Generator) -> Workload:
    """A shape nearby: each extent of 8 and more that the template does not fix moved by a small multiple of 8, never a
    validation or test workload.

    Different from `workload` wherever one of its extents can move.
    """
    template = load_template(workload.op)
    lists = workloads(workload.op)
    kept = set(lists["validation"]) | set(lists["test"]) | {workload}
    for _ in range(100):
        moves = STEP * rng.integers(-2, 3, size=len(workload.dims))
        dims = tuple(
            (name, extent if extent < STEP or name in template.fixed else max(STEP, extent + int(move)))
            for (name, extent), move in zip(workload.dims, moves, strict=True)
        )
        candidate = Workload(workload.op, workload.dtype, dims)
        if candidate not in kept and not template.flaw(candidate):
            return candidate
    return workload
