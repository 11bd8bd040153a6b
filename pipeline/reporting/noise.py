"""How well a timing repeats: the spread of its samples by the length of the kernel, and the GPU around it."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pipeline.reporting.drawing import BLUE, ORANGE, figure, plain_log
from pipeline.reporting.section import Picture, Section, Table, percent, us
from pipeline.reporting.sources import Material
from templates.errors import InputError

SAMPLES_NEEDED = 5
"""Quantiles of fewer samples say nothing."""
EDGES = np.array([0, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, np.inf])


def section(material: Material) -> Section:
    """Spread of samples against time; clocks, temperature, throttling as a table."""
    rows = material.measured()
    enough = rows[(rows["status"] == "ok") & (rows["n_samples"] >= SAMPLES_NEEDED)]
    if enough.empty:
        raise InputError(f"no row has {SAMPLES_NEEDED} samples or more, so their spread is not known: raise farm.timing.samples")
    bins = by_length(enough)

    def draw(narrow: bool) -> Figure:
        made, axes = figure(narrow, 2.8)
        axes.plot(bins["time"], 100 * bins["half_90"], "o-", color=BLUE, label="middle 90 % of the samples")
        axes.plot(bins["time"], 100 * bins["half_50"], "s--", color=ORANGE, label="middle half")
        axes.set(xscale="log", yscale="log", xlabel="kernel time, microseconds", ylabel="half-width / median, %")
        plain_log(axes.xaxis, [10**i * step for i in range(6) for step in ((1,) if narrow else (1, 2, 5))])
        plain_log(axes.yaxis, (0.001, 0.01, 0.1, 1, 10, 100))
        axes.grid()
        made.legend(loc="outside upper left", ncols=1 if narrow else 2)
        return made

    table = Table(
        "Spread of samples by kernel time",
        ["kernel time", "rows", "median time us", "middle half, +-", "middle 90 %, +-", "middle 90 % of the noisiest tenth, +-"],
        [
            [
                str(line["label"]),
                f"{line['rows']:,}",
                us(line["time"]),
                *(percent(line[name]) for name in ("half_50", "half_90", "worst")),
            ]
            for line in bins.to_dict("records")
        ],
    )
    overall = float(spread(enough, "q05_us", "q95_us").median())
    alt = f"Half-width of the middle 90 % of samples over the median, by kernel time; {percent(overall)} in the median row."
    picture = Picture("noise", "Spread of the samples of one timing", alt, draw, table)
    lead = (
        f"{len(enough):,} of {int((rows['status'] == 'ok').sum()):,} timings have {SAMPLES_NEEDED} samples or more. Shown is the "
        "median over timings of similar length; a difference between two configs that is smaller than this needs more than one "
        "timing."
    )
    return Section("noise", "Timing noise", lead, [picture], [conditions(rows)])


def spread(rows: pd.DataFrame, low: str, high: str) -> "pd.Series[float]":
    """Half the distance of two quantiles over the median, per row."""
    return (rows[high].astype(float) - rows[low].astype(float)) / 2 / rows["time_us"]


def by_length(rows: pd.DataFrame) -> pd.DataFrame:
    """A line per range of kernel times: rows, median time, median half-widths, and the 90 % quantile of the wider one."""
    kept = pd.DataFrame(
        {"time": rows["time_us"], "half_50": spread(rows, "q25_us", "q75_us"), "half_90": spread(rows, "q05_us", "q95_us")}
    ).dropna()
    places = np.digitize(kept["time"], EDGES) - 1
    grouped = kept.groupby(places)
    found = grouped.median()
    found["rows"], found["worst"] = grouped.size(), grouped["half_90"].quantile(0.9)
    ends = zip(EDGES[found.index], EDGES[found.index + 1], strict=True)
    found["label"] = [f"{low:,.0f} to {high:,.0f} us" if np.isfinite(high) else f"over {low:,.0f} us" for low, high in ends]
    return found


def conditions(rows: pd.DataFrame) -> Table:
    """What the rows say of the GPU around them."""

    def ranged(name: str, unit: str) -> str:
        known = rows[name].dropna()
        return "not known" if known.empty else f"{known.min():.0f} to {known.max():.0f} {unit}, median {known.median():.0f}"

    throttled = rows["throttle_reasons"].fillna("").astype(str)
    foreign = rows["foreign_processes"].fillna(0)
    return Table(
        "The GPU during these timings",
        ["condition", "value"],
        [
            ["rows", f"{len(rows):,}"],
            ["L2 before each launch", ", ".join(sorted(set(rows["l2"].dropna())))],
            ["SM clock before timing", ranged("sm_clock_before_mhz", "MHz")],
            ["SM clock after timing", ranged("sm_clock_after_mhz", "MHz")],
            ["clocks locked", f"{int(rows['clocks_locked'].fillna(False).astype(bool).sum()):,} rows"],
            ["clock event reasons", ", ".join(sorted(set(throttled[throttled != ""]))) or "none"],
            ["temperature", ranged("temperature_c", "degrees C")],
            ["rows with another process on the GPU", f"{int((foreign > 0).sum()):,}"],
            ["driver", ", ".join(sorted(set(rows["driver"].dropna()) - {""})) or "not known"],
            ["compiler", ", ".join(sorted(set(rows["nvcc"].dropna()) - {""})) or "not known"],
        ],
        fold=False,
    )
