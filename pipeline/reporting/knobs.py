"""What each knob does: its mean effect, and heat maps of the pairs that depend on each other."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pipeline.reporting.drawing import BETTER_WORSE, BLUE, MUTED, ORANGE, panels
from pipeline.reporting.knob_effects import Effect, Pair, effects, importance, pairs, sample
from pipeline.reporting.section import Picture, Section, Table, times
from pipeline.reporting.sources import Material
from templates.knob import Knob

SHOWN = 12
PAIRS = 6
MEAN, BEST = "mean over workloads, bar: middle 80 %", "best with this value / best of all"
CROWDED = 8
"""More values than this: labels stand upright, and narrow cells have no numbers."""
RANGE = 2.0
"""Heat maps' colours end at twice as fast and twice as slow."""


def section(material: Material) -> Section:
    """Panels of the strongest knobs, a table of all of them, heat maps of the strongest pairs."""
    found = sample(material)
    lines = {knob: effects(found, knob) for knob in found.template.knobs}
    strongest = sorted((knob for knob in lines if lines[knob]), key=lambda knob: -importance(lines[knob]))
    pictures = [_marginal(strongest, lines)]
    if strong := pairs(found, PAIRS):
        pictures.append(_heat_maps(strong))
    lead = (
        f"From {len(found.residual):,} random configs of {len(np.unique(found.workload))} workloads, the only fair sample of the "
        "legal space; a knob's rows are those in which it has an effect. Times are over the geometric mean of such rows of the "
        "workload: below 1 is faster than usual."
    )
    notes = [
        "A mean says what a knob does to a random config, not to a good one; the open marks say what the best config with that "
        "value loses against the best of all. Rare values have fewer rows, so their best is less lucky."
    ]
    return Section("knobs", "What each knob does", lead, pictures, notes=notes)


def _marginal(strongest: Sequence[Knob], lines: dict[Knob, list[Effect]]) -> Picture:
    def draw(narrow: bool) -> Figure:
        made, every = panels(min(SHOWN, len(strongest)), narrow, (4, 2), 1.45)
        for axes, knob in zip(every, strongest, strict=False):
            found = lines[knob]
            places = np.arange(len(found))
            axes.axhline(1, color=MUTED, linewidth=0.6)
            axes.vlines(places, [e.low for e in found], [e.high for e in found], color=BLUE, linewidth=2, alpha=0.35)
            axes.plot(places, [e.mean for e in found], "o-", color=BLUE, linewidth=1, label=MEAN)
            axes.plot(places, [e.best for e in found], "s", color=ORANGE, fillstyle="none", label=BEST)
            axes.set_xticks(places, [str(e.value) for e in found], fontsize=6, rotation=90 if len(found) > CROWDED else 0)
            axes.set_title(knob.name, fontsize=8)
            axes.yaxis.set_major_locator(MaxNLocator(4))
        made.legend(*every[0].get_legend_handles_labels(), loc="outside upper left", ncols=1 if narrow else 2)
        return made

    rows = [
        [knob.name, knob.category, str(e.value), times(e.mean), f"{e.low:.2f} to {e.high:.2f}", times(e.best), f"{e.rows:,}"]
        for knob in strongest
        for e in lines[knob]
    ]
    header = ["knob", "category", "value", "mean time", "middle 80 % of workloads", "best / best of all", "rows"]
    names = ", ".join(knob.name for knob in strongest[:3])
    alt = f"Mean relative time by value, for the {min(SHOWN, len(strongest))} knobs with the largest effect; {names} matter most."
    return Picture("knobs", "Effect of one knob, strongest first", alt, draw, Table("Every knob and value", header, rows))


def _heat_maps(strong: Sequence[Pair]) -> Picture:
    def draw(narrow: bool) -> Figure:
        made, every = panels(len(strong), narrow, (3, 1), 2.3)
        norm = LogNorm(1 / RANGE, RANGE)
        for axes, pair in zip(every, strong, strict=True):
            axes.pcolormesh(pair.table, cmap=BETTER_WORSE, norm=norm, edgecolors="none")
            room = len(pair.across.values) <= CROWDED or narrow
            for (i, j), value in np.ndenumerate(pair.table):
                if np.isfinite(value) and room:
                    light = abs(np.log(value)) < 0.75 * np.log(RANGE)
                    axes.text(j + 0.5, i + 0.5, f"{value:.2g}" if value < 10 else f"{value:.0f}", ha="center", va="center",
                              fontsize=6, color="#000000" if light else "#ffffff")  # fmt: skip
            axes.set_xticks(np.arange(len(pair.across.values)) + 0.5, [str(v) for v in pair.across.values], fontsize=6)
            axes.set_yticks(np.arange(len(pair.down.values)) + 0.5, [str(v) for v in pair.down.values], fontsize=6)
            axes.set(xlabel=pair.across.name, ylabel=pair.down.name)
            axes.tick_params(length=0)
        return made

    rows = [
        [pair.down.name, str(pair.down.values[i]), pair.across.name, str(pair.across.values[j]), times(float(value))]
        for pair in strong
        for (i, j), value in np.ndenumerate(pair.table)
        if np.isfinite(value)
    ]
    first = strong[0]
    names = f"{first.down.name} and {first.across.name}"
    alt = f"Mean relative time by pairs of knobs, blue faster, orange slower; {names} depend on each other most."
    table = Table("Pairs of knobs", ["knob", "value", "knob", "value", "mean time"], rows)
    return Picture("knob-pairs", "Pairs of knobs that depend on each other most", alt, draw, table)
