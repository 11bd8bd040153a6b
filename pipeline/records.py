"""Records: what each method reached on each workload after k measurements, per seed and over the seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from math import inf, isfinite, isnan
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from datasets.split import split_of
from templates.workload import Workload


@dataclass(frozen=True)
class Pick:
    """What a method chose with one seed after `measurements` measurements, and the true time of that choice.

    `time_us` is None when the choice does not run: with nothing measured, nothing could fall back.
    """

    workload: Workload
    method: str
    seed: int
    measurements: int
    config: str
    time_us: float | None
    status: str


@dataclass(frozen=True)
class Yardstick:
    """What a workload's times are compared with: the best known time and config, and the naive and expert times."""

    best_us: float
    best_config: str
    naive_us: float
    expert_us: float | None = None
    vendor_us: float | None = None


@dataclass(frozen=True)
class Record:
    """One line of summary.json: the median over seeds, with the range of the fractions as `spread`.

    `fraction_of_best` is best known time / time, `speedup_over_naive` naive time / time; both 0 for a choice that does not
    run. `measurements` counts what was measured before choosing.
    """

    op: str
    workload: str
    split: str
    method: str
    measurements: int
    time_us: float | None
    fraction_of_best: float
    speedup_over_naive: float
    source: str
    seeds: int
    spread: tuple[float, float]


def fraction(best_us: float, time_us: float | None) -> float:
    """best / time, 0 where there is no time."""
    return 0.0 if time_us is None else best_us / time_us


def records(picks: Iterable[Pick], yardsticks: dict[Workload, Yardstick], source: str) -> list[Record]:
    """One record per workload, method and number of measurements, in the order the picks name them."""
    groups: dict[tuple[Workload, str, int], list[Pick]] = {}
    for pick in picks:
        groups.setdefault((pick.workload, pick.method, pick.measurements), []).append(pick)
    return [_record(group, yardsticks[key[0]], source) for key, group in groups.items()]


def _record(group: Sequence[Pick], yardstick: Yardstick, source: str) -> Record:
    first = group[0]
    fractions = [fraction(yardstick.best_us, pick.time_us) for pick in group]
    time_us = median(inf if pick.time_us is None else pick.time_us for pick in group)
    return Record(
        op=first.workload.op,
        workload=str(first.workload),
        split=split_of(first.workload),
        method=first.method,
        measurements=first.measurements,
        time_us=time_us if isfinite(time_us) else None,
        fraction_of_best=median(fractions),
        speedup_over_naive=yardstick.naive_us / time_us,
        source=source,
        seeds=len(group),
        spread=(min(fractions), max(fractions)),
    )


def write_seed_records(picks: Iterable[Pick], yardsticks: dict[Workload, Yardstick], source: str, path: Path) -> None:
    """One Parquet row per seed: the record's columns plus `seed`, `config` and `status`."""
    rows: list[dict[str, Any]] = []
    for pick in picks:
        record = asdict(_record([pick], yardsticks[pick.workload], source))
        del record["seeds"], record["spread"]
        rows.append({**record, "seed": pick.seed, "config": pick.config, "status": pick.status})
    pd.DataFrame(rows).to_parquet(path, index=False)


def read_seed_records(path: Path) -> list[Pick]:
    """The picks of what `write_seed_records` wrote."""
    rows = pd.read_parquet(path).to_dict("records")
    return [
        Pick(
            Workload.parse(row["workload"]), row["method"], int(row["seed"]), int(row["measurements"]), row["config"],
            None if row["time_us"] is None or isnan(row["time_us"]) else float(row["time_us"]), row["status"],
        )
        for row in rows
    ]  # fmt: skip


def fractions_by_seed(
    picks: Iterable[Pick], yardsticks: dict[Workload, Yardstick], method: str, measurements: int
) -> np.ndarray:
    """Fractions of the best known, shape (workloads, seeds), for one method after so many measurements."""
    rows: dict[Workload, dict[int, float]] = {}
    for pick in picks:
        if (pick.method, pick.measurements) == (method, measurements):
            best_us = yardsticks[pick.workload].best_us
            rows.setdefault(pick.workload, {})[pick.seed] = fraction(best_us, pick.time_us)
    return np.array([[row[seed] for seed in sorted(row)] for row in rows.values()])


def confidence_interval(
    fractions: np.ndarray, rng: np.random.Generator, level: float = 0.95, draws: int = 2000
) -> tuple[float, float]:
    """Percentile bootstrap of the mean: workloads drawn anew, then seeds within each (Efron and Tibshirani, An Introduction
    to the Bootstrap, 1993, section 13.3). `fractions` has shape (workloads, seeds).
    """
    workloads, seeds = fractions.shape
    rows = rng.integers(workloads, size=(draws, workloads, 1))
    columns = rng.integers(seeds, size=(draws, workloads, seeds))
    means = fractions[rows, columns].mean(axis=(1, 2))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Cell:
    """One method after so many measurements: the mean fraction of the best known over workloads and seeds, its 95 %
    confidence interval, and the worst workload's median over seeds. `flips`: how often two seeds choose different configs.
    """

    method: str
    measurements: int
    mean: float
    low: float
    high: float
    worst: float
    worst_workload: str
    flips: float


def cells(picks: Sequence[Pick], yardsticks: dict[Workload, Yardstick]) -> list[Cell]:
    """One cell per method and number of measurements, in the order the picks name them."""
    rng = np.random.default_rng(0)
    groups = dict.fromkeys((pick.method, pick.measurements) for pick in picks)
    return [_cell(picks, yardsticks, method, k, rng) for method, k in groups]


def _cell(
    picks: Sequence[Pick], yardsticks: dict[Workload, Yardstick], method: str, k: int, rng: np.random.Generator
) -> Cell:
    mine = [pick for pick in picks if (pick.method, pick.measurements) == (method, k)]
    workloads = list(dict.fromkeys(pick.workload for pick in mine))
    fractions = fractions_by_seed(mine, yardsticks, method, k)
    medians = np.median(fractions, axis=1)
    worst = int(medians.argmin())
    low, high = confidence_interval(fractions, rng)
    flips = float(np.mean([flip_rate([p.config for p in mine if p.workload == w]) for w in workloads]))
    return Cell(method, k, float(fractions.mean()), low, high, float(medians[worst]), str(workloads[worst]), flips)


def flip_rate(configs: Sequence[str]) -> float:
    """The share of pairs of seeds that chose different configs; 0 for a single seed."""
    pairs = list(combinations(configs, 2))
    return sum(one != other for one, other in pairs) / len(pairs) if pairs else 0.0
