"""Plain-text tables of an evaluation: methods by number of measurements, workloads in microseconds, wins and losses."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.records import Cell, Record

Row = Sequence[str]


def table(header: Row, rows: Iterable[Row]) -> str:
    """A Markdown table, columns padded so that it also reads as text; the first column to the left, the others to the right."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Row) -> str:
        padded = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (width + 2) if i == 0 else "-" * (width + 1) + ":" for i, width in enumerate(widths)) + "|"
    return "\n".join([line(cells[0]), rule, *(line(row) for row in cells[1:])])


def methods_table(cells: Sequence[Cell]) -> str:
    """Methods down, measurements across: mean [interval] worst."""
    ks = sorted({cell.measurements for cell in cells})
    found = {(cell.method, cell.measurements): cell for cell in cells}
    rows = [
        [method, *(_cell(found.get((method, k))) for k in ks)] for method in dict.fromkeys(cell.method for cell in cells)
    ]
    return table(["fraction of best known: mean [95 % CI] worst", *(f"k = {k}" for k in ks)], rows)


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    return f"{cell.mean:.3f} [{cell.low:.3f} {cell.high:.3f}] {cell.worst:.3f}"


def operators_table(by_operator: Mapping[str, Sequence[Cell]], methods: Sequence[str]) -> str:
    """Operators down, some methods by measurements across: mean / worst."""
    ks = sorted({cell.measurements for cells in by_operator.values() for cell in cells})
    rows = []
    for op, cells in by_operator.items():
        found = {(cell.method, cell.measurements): cell for cell in cells}
        rows.append([op, *(_brief(found.get((method, k))) for k in ks for method in methods)])
    return table(["mean / worst fraction of best known", *(f"{method} k = {k}" for k in ks for method in methods)], rows)


def _brief(cell: Cell | None) -> str:
    return "-" if cell is None else f"{cell.mean:.3f} / {cell.worst:.3f}"


@dataclass(frozen=True)
class Line:
    """One workload: times in microseconds (None: not known or does not run) and its arithmetic in FLOPs."""

    workload: str
    naive_us: float
    expert_us: float | None
    best_us: float
    vendor_us: float | None
    policy_us: dict[int, float | None]
    flops: float


def workloads_table(lines: Sequence[Line]) -> str:
    """Workloads down: microseconds of naive, expert, best known, the policy and the vendor; TFLOP/s of the best known."""
    ks = sorted({k for line in lines for k in line.policy_us})
    rows = [
        [
            line.workload,
            *(_us(value) for value in (line.naive_us, line.expert_us, line.best_us)),
            *(_us(line.policy_us.get(k)) for k in ks),
            _us(line.vendor_us),
            f"{tflops(line.flops, line.best_us):.1f}",
        ]
        for line in lines
    ]
    policy = [f"policy k={k}" for k in ks]
    return table(["microseconds", "naive", "expert", "best known", *policy, "vendor", "best TFLOP/s"], rows)


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def tflops(flops: float, time_us: float) -> float:
    """10^12 floating-point operations a second."""
    return flops / time_us * 1e-6


@dataclass(frozen=True)
class Duel:
    """On how many workloads a method was faster than, as fast as, or slower than another at the same number of measurements."""

    method: str
    against: str
    measurements: int
    wins: int
    ties: int
    losses: int


def duels(records: Sequence[Record], method: str, tie: float) -> list[Duel]:
    """`method` against every other one at each number of measurements, by the medians over seeds.

    A tie is a difference of at most `tie` of the slower time; two choices that do not run tie. An opponent that was not
    asked at some number of measurements enters with its last choice before.
    """
    fractions = {(r.method, r.workload, r.measurements): r.fraction_of_best for r in records}
    workloads = list(dict.fromkeys(r.workload for r in records if r.method == method))
    ks = sorted({r.measurements for r in records if r.method == method})
    result: list[Duel] = []
    for other in dict.fromkeys(r.method for r in records if r.method != method):
        for k in ks:
            asked = [n for name, _, n in fractions if name == other and n <= k]
            pairs = [
                (fractions[method, w, k], fractions[other, w, max(asked)])
                for w in workloads
                if asked and (other, w, max(asked)) in fractions and (method, w, k) in fractions
            ]
            if pairs:
                result.append(_duel(method, other, k, np.array(pairs), tie))
    return result


def _duel(method: str, other: str, k: int, pairs: np.ndarray, tie: float) -> Duel:
    difference = pairs[:, 0] - pairs[:, 1]
    ties = np.abs(difference) <= tie * pairs.max(axis=1)
    wins = int(((difference > 0) & ~ties).sum())
    return Duel(method, other, k, wins, int(ties.sum()), int(len(pairs) - wins - ties.sum()))


def duels_table(found: Sequence[Duel]) -> str:
    """Opponents down, measurements across: wins / ties / losses."""
    ks = sorted({duel.measurements for duel in found})
    by = {(duel.against, duel.measurements): duel for duel in found}
    rows = [
        [other, *(_score(by.get((other, k))) for k in ks)] for other in dict.fromkeys(duel.against for duel in found)
    ]
    return table([f"{found[0].method} wins / ties / loses on workloads against", *(f"k = {k}" for k in ks)], rows)


def _score(duel: Duel | None) -> str:
    return "-" if duel is None else f"{duel.wins} / {duel.ties} / {duel.losses}"
