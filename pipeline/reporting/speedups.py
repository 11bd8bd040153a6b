"""Per workload: how much faster than naive the expert config, the vendor's kernel, the policy's pick and the best found are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

from matplotlib.figure import Figure

from datasets.split import SPLITS, split_of
from pipeline.records import Record
from pipeline.reporting.drawing import BLUE, GREEN, GRID, MUTED, ORANGE, SKY, figure, plain_log, scaled_rows
from pipeline.reporting.section import Picture, Section, Table, label, times, us
from pipeline.reporting.sources import Material
from templates.errors import InputError
from templates.knob import config_text
from templates.space import canonical_config
from templates.workload import Workload

LOOKS = {"expert": (ORANGE, "^"), "vendor": (SKY, "s"), "policy": (BLUE, "D"), "best": (GREEN, "o")}
LABELS = {"expert": "expert, by hand", "vendor": "vendor (PyTorch)", "best": "best found"}


@dataclass(frozen=True)
class Times:
    """Microseconds on one workload; None where there is no time. `policy`: its pick after the most measurements evaluated."""

    workload: Workload
    split: str
    naive: float
    best: float
    expert: float | None = None
    vendor: float | None = None
    policy: float | None = None

    def speedup(self, who: str) -> float | None:
        """Times faster than naive."""
        time_us = getattr(self, who)
        return None if time_us is None else self.naive / time_us


def measured_times(material: Material) -> list[Times]:
    """A line per workload that has a naive time, test workloads first. InputError where nothing is measured."""
    rows, policy = material.measured(), policy_times(material)
    found = []
    for text, group in rows[rows["status"] == "ok"].groupby("workload", sort=False):
        workload = Workload.parse(str(text))
        median = group.groupby("config")["time_us"].median()
        ours = median.drop("", errors="ignore")
        configs = material.template.naive, material.template.expert(workload)
        naive, expert = (ours.get(config_text(canonical_config(material.template, config))) for config in configs)
        if naive is not None:
            best, picked = float(ours.min()), policy.get(str(text))
            found.append(Times(workload, split_of(workload), float(naive), best, expert, median.get(""), picked))
    if not found:
        raise InputError(f"no workload has a time of its naive config: run `make collect ARGS=op={material.template.op}`")
    order = ("test", "validation", "train", "unlisted")
    return sorted(found, key=lambda line: (order.index(line.split), -line.workload.dims[0][1], str(line.workload)))


def policy_times(material: Material) -> Mapping[str, float]:
    """Workload -> time of the policy's pick after the most measurements of the evaluation; empty where there is none."""
    try:
        records = [r for r in material.run("evaluate").parts("records", Record) if r.method == "policy" and r.time_us is not None]
    except InputError:
        return {}
    most = max((r.measurements for r in records), default=0)
    return {r.workload: r.time_us for r in records if r.measurements == most and r.time_us is not None}


def geometric_mean(lines: Sequence[Times], of: str, over: str) -> tuple[float, int] | None:
    """(mean of the ratio of two times, workloads that have both), or None."""
    ratios = [log(getattr(t, of) / getattr(t, over)) for t in lines if None not in (getattr(t, of), getattr(t, over))]
    return (exp(sum(ratios) / len(ratios)), len(ratios)) if ratios else None


def section(material: Material) -> Section:
    """Dots on a line per workload, and the times as a table."""
    lines = measured_times(material)
    pictures = []
    for name in (*SPLITS[::-1], "unlisted"):
        if group := [t for t in lines if t.split == name]:
            pictures.append(_picture(group, name))
    lead = (
        "How many times faster than its naive config each workload's kernels are. Best found: of all that was measured of it. "
        "Where the round mark is right of the square, the generated kernel beats the vendor's."
    )
    notes = [_mean_note(lines, name) for name in (*SPLITS[::-1], "unlisted") if any(t.split == name for t in lines)]
    return Section("speedups", "Speed-ups per workload", lead, pictures, notes=notes)


def _mean_note(lines: Sequence[Times], name: str) -> str:
    group = [t for t in lines if t.split == name]
    parts = []
    for who in ("naive", "expert", "vendor"):
        if mean := geometric_mean(group, who, "best"):
            parts.append(f"{mean[0]:.2f} x over {who} ({mean[1]} workloads)")
    return f"{name}: best found, geometric mean {', '.join(parts)}."


def _picture(lines: Sequence[Times], name: str) -> Picture:
    shown = [who for who in LOOKS if any(t.speedup(who) is not None for t in lines)]

    def draw(narrow: bool) -> Figure:
        labels = [label(line.workload, 18 if narrow else 30) for line in lines]
        made, axes = figure(narrow, 0.75 + scaled_rows(labels, narrow))
        for row, line in enumerate(lines):
            values = [value for who in shown if (value := line.speedup(who)) is not None]
            axes.plot([1, max(values)], [row, row], color=GRID, linewidth=1, zorder=1)
        for who in shown:
            points = [(value, row) for row, line in enumerate(lines) if (value := line.speedup(who)) is not None]
            colour, marker = LOOKS[who]
            fill = "none" if who == "policy" else "full"
            axes.plot(*zip(*points, strict=True), marker, color=colour, label=LABELS.get(who, who), fillstyle=fill, zorder=3)
        axes.axvline(1, color=MUTED, linewidth=0.8)
        axes.set_yticks(range(len(lines)), labels)
        axes.set_xscale("log")
        plain_log(axes.xaxis, (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500))
        axes.set(xlabel="times faster than naive", ylim=(len(lines) - 0.4, -0.6))
        axes.grid(axis="x")
        made.legend(loc="outside upper left", ncols=2 if narrow else 4)
        return made

    header = ["workload", *(f"{who} us" for who in ("naive", *LOOKS)), "naive/best", "expert/best", "vendor/best"]
    rows = [
        [str(t.workload), us(t.naive), us(t.expert), us(t.vendor), us(t.policy), us(t.best), times(t.naive / t.best),
         times(t.expert and t.expert / t.best), times(t.vendor and t.vendor / t.best)]
        for t in lines
    ]  # fmt: skip
    mean = geometric_mean(lines, "naive", "best")
    factor = mean[0] if mean else 1.0
    alt = f"{len(lines)} {name} workloads; the best found config is {factor:.1f} times as fast as naive in the geometric mean."
    return Picture(f"speedups-{name}", f"Speed-up over naive: {name} workloads", alt, draw, Table("Times", header, rows))
