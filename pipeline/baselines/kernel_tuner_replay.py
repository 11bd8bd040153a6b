"""Kernel Tuner's own strategies on a measured space, without a GPU: its simulation mode. Needs `pip install kernel-tuner`.

A strategy measures one config after another and knows of no other GPU. Repeats are counted once, as it does itself.
"""

import contextlib
import io
import random
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from datasets.kernel_tuner_export import config_key, write_cache
from datasets.measured_space import MeasuredSpace, Value
from templates.errors import InputError

STRATEGIES = (
    "adaptive_tabu_greywolf", "basinhopping", "bayes_opt", "diff_evo", "dual_annealing", "firefly_algorithm",
    "genetic_algorithm", "greedy_ils", "greedy_mls", "hybrid_vndx", "minimize", "mls", "ordered_greedy_mls", "pso",
    "random_sample", "simulated_annealing",
)  # fmt: skip
"""All that 1.5.0 ships for one objective and that need no further package."""

Visited = list[tuple[tuple[Value, ...], float | None]]
"""Distinct configs in the order of measuring, with their time in microseconds; None where it failed."""


def simulate(space: MeasuredSpace, cache: Path, strategy: str, evaluations: int, seed: int) -> Visited:
    """What a strategy measures on the space, whose cache file `cache` is (see `cached`). InputError without Kernel Tuner."""
    try:
        from constraint import FunctionConstraint  # type: ignore[import-not-found]  # comes with Kernel Tuner
        from kernel_tuner import tune_kernel  # type: ignore[import-not-found]  # not among our requirements
    except ImportError:
        raise InputError("Kernel Tuner is not installed: pip install kernel-tuner") from None
    random.seed(seed)
    np.random.seed(seed)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results, _ = tune_kernel(
            space.kernel, f"__global__ void {space.kernel}() {{}}", list(space.problem) or 1, [],
            {parameter.name: list(parameter.values) for parameter in space.parameters},
            restrictions=[FunctionConstraint(restriction(space), assigned=False)], cache=str(cache), simulation_mode=True,
            strategy=strategy,
            strategy_options={"max_fevals": min(evaluations, len(space.rows))}, quiet=True, lang="CUDA", iterations=1, seed=seed,
        )  # fmt: skip
    visited: dict[str, tuple[tuple[Value, ...], float | None]] = {}
    known = {config_key(row.values): row for row in space.rows}
    for result in results:
        key = config_key(tuple(result[name] for name in space.names))
        if key in known:
            visited.setdefault(key, (known[key].values, known[key].time_us))
    return list(visited.values())[:evaluations]


def cached(space: MeasuredSpace, folder: str) -> Path:
    """The space as a cache file that Kernel Tuner reads quickly: without samples."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "cache.json"
    write_cache(replace(space, rows=tuple(replace(row, samples_us=()) for row in space.rows)), path)
    return path


def restriction(space: MeasuredSpace) -> Callable[..., bool]:
    """Whether some row agrees with the values given, the missing ones passed over: what leaves just the space's configs.

    Kernel Tuner would list the product of all values, which for our templates never ends, were it not told of partial configs.
    """
    everything = (1 << len(space.rows)) - 1
    having: list[dict[Value, int]] = [{} for _ in space.names]  # per parameter and value: its rows as bits
    for place, row in enumerate(space.rows):
        for rows_with, value in zip(having, row.values, strict=True):
            rows_with[value] = rows_with.get(value, 0) | 1 << place

    def occurs(*values: Any) -> bool:
        left = everything
        for rows_with, value in zip(having, values, strict=True):
            if isinstance(value, int | float | str):
                left &= rows_with.get(value, 0)
        return left != 0

    return occurs


def strategies(wanted: Sequence[str]) -> list[str]:
    """Names checked; InputError for one it does not ship."""
    for name in wanted:
        if name not in STRATEGIES:
            raise InputError(f"Kernel Tuner's strategy {name!r} is unknown; known: {', '.join(STRATEGIES)}")
    return list(wanted)
