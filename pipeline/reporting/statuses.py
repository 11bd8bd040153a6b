"""What every attempt to measure came to, by who asked for it."""

from collections import Counter

import pandas as pd
from matplotlib.figure import Figure

from datasets.measurement import STATUSES
from pipeline.reporting.drawing import BLUE, GREEN, MUTED, ORANGE, PAPER, PURPLE, SKY, VERMILION, figure
from pipeline.reporting.section import Picture, Section, Table, percent
from pipeline.reporting.sources import Material

LOOKS = dict(zip(STATUSES, (GREEN, MUTED, VERMILION, ORANGE, PURPLE, "#7b3f00", "#333333", SKY, BLUE), strict=True))
HATCHES = dict(zip(STATUSES, ("", "..", "//", "\\\\", "xx", "++", "", "--", "oo"), strict=True))


def section(material: Material) -> Section:
    """A bar per origin, and counts per workload."""
    rows = material.measured()
    by_origin = counts(rows, "origin")
    failed = int((rows["status"] != "ok").sum())

    def draw(narrow: bool) -> Figure:
        made, axes = figure(narrow, 0.9 + 0.24 * len(by_origin))
        left = pd.Series(0.0, index=by_origin.index)
        for status in by_origin.columns:
            share = 100 * by_origin[status] / by_origin.sum(axis=1)
            look = {"color": LOOKS[status], "hatch": HATCHES[status], "edgecolor": PAPER}
            axes.barh(by_origin.index.astype(str), share, left=left, label=status, height=0.7, **look)
            left = left + share
        axes.set(xlabel="% of attempts", xlim=(0, 100))
        axes.invert_yaxis()
        made.legend(loc="outside upper left", ncols=2 if narrow else 5)
        return made

    alt = f"{len(rows):,} attempts, {failed:,} of them without a time."
    picture = Picture("statuses", "Outcomes by who asked", alt, draw, _table("Outcomes by who asked", by_origin, "origin"))
    lead = (
        f"{len(rows):,} attempts on {material.device.name}; {percent(failed / len(rows))} have no time. A failure is a row, too."
    )
    tables = [_table("Outcomes by workload", counts(rows, "workload"), "workload"), *_messages(rows)]
    return Section("statuses", "Outcomes", lead, [picture], tables)


def counts(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Rows per value of a column (down) and status (across, in the schema's order, those that occur)."""
    found = pd.crosstab(rows[by], rows["status"])
    return found[[status for status in STATUSES if status in found.columns]]


def _table(caption: str, found: pd.DataFrame, by: str) -> Table:
    lines = [[str(name), *(f"{n:,}" for n in line)] for name, line in zip(found.index, found.to_numpy(), strict=True)]
    return Table(caption, [by, *found.columns], lines)


def _messages(rows: pd.DataFrame) -> list[Table]:
    """What failures said most often."""
    failed = rows[rows["status"] != "ok"]
    if failed.empty:
        return []
    said = Counter(zip(failed["status"], failed["message"].fillna("").astype(str).str.slice(0, 120), strict=True))
    lines = [[status, message, f"{n:,}"] for (status, message), n in said.most_common(20)]
    return [Table("What failures said, most often first", ["status", "message", "rows"], lines)]
