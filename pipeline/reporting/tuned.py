"""Kernels that `make tune` picked: times beside naive, expert and vendor, and what the pick is based on."""

import json
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from pipeline.reporting.drawing import BLUE, MUTED, figure, scaled_rows
from pipeline.reporting.section import Picture, Section, Table, label, times, us
from pipeline.reporting.sources import Material, parsed
from templates.errors import InputError
from templates.workload import Workload

SCHEMA = 1


@dataclass(frozen=True)
class Kernel:
    """One entry of kernels.json; microseconds, None where there is no time."""

    workload: str
    config: str
    measurements: int
    reason: str
    time_us: float | None = None
    predicted_us: float | None = None
    naive_us: float | None = None
    expert_us: float | None = None
    vendor_us: float | None = None
    interval_us: Any = None

    def ratio(self, other_us: float | None) -> float | None:
        """How many times as long the other takes."""
        return other_us / self.time_us if other_us and self.time_us else None


def section(material: Material) -> Section:
    """A table of the kernels; bars where they were timed."""
    path = material.run("tune").folder / "kernels.json"
    try:
        content = json.loads(path.read_text())
        version, entries = content["schema"], content["kernels"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: damaged or missing ({type(error).__name__}); run `make tune` again") from error
    if version != SCHEMA or not isinstance(entries, list):
        raise InputError(f"{path}: schema {version!r}, this program reads {SCHEMA}; run `make tune` again")
    found = [parsed(Kernel, entry, f"{path}: kernels[{i}]") for i, entry in enumerate(entries)]
    if not found:
        raise InputError(f"{path}: holds no kernel; run `make tune` again")
    kind = {"gpu": "measured on the GPU", "replay": "recorded timings", "predicted": "predicted, nothing was measured"}
    source = str(content.get("source", ""))
    lead = f"Picked for {content.get('gpu', 'an unnamed GPU')} ({content.get('arch', '?')}): {kind.get(source, source)}."
    timed = [kernel for kernel in found if kernel.time_us and kernel.ratio(kernel.naive_us)]
    table = _table(found)
    if not timed:
        return Section("tuned", "Tuned kernels", lead, tables=[table])
    return Section("tuned", "Tuned kernels", lead, [_picture(timed, table)])


def _table(found: list[Kernel]) -> Table:
    header = ["workload", "time us", "interval us", "predicted us", "naive", "expert", "vendor", "measured", "based on", "config"]
    rows = [
        [k.workload, us(k.time_us), _interval(k.interval_us), us(k.predicted_us), times(k.ratio(k.naive_us)),
         times(k.ratio(k.expert_us)), times(k.ratio(k.vendor_us)), str(k.measurements), k.reason, k.config]
        for k in found
    ]  # fmt: skip
    return Table("Tuned kernels; naive, expert, vendor: times as long as ours", header, rows, fold=False)


def _interval(found: Any) -> str:
    if isinstance(found, list) and len(found) == 2 and all(isinstance(end, int | float) for end in found):
        return f"{us(found[0])} to {us(found[1])}"
    return "-"


def _picture(timed: list[Kernel], table: Table) -> Picture:
    def draw(narrow: bool) -> Figure:
        labels = [label(Workload.parse(kernel.workload), 18 if narrow else 30) for kernel in timed]
        made, axes = figure(narrow, 0.6 + scaled_rows(labels, narrow, 0.28))
        ratios = [kernel.ratio(kernel.naive_us) for kernel in timed]
        axes.barh(range(len(timed)), ratios, color=BLUE, height=0.6)
        axes.axvline(1, color=MUTED, linewidth=0.8)
        axes.set_yticks(range(len(timed)), labels)
        axes.set(xlabel="times faster than naive", ylim=(len(timed) - 0.4, -0.6))
        axes.grid(axis="x")
        return made

    alt = f"Speed-up over naive of {len(timed)} tuned kernels."
    return Picture("tuned", "Speed-up over naive", alt, draw, table)
