"""How far each method's choice stays behind the best known time, by the number of measurements: means, intervals, worst cases."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from pipeline.records import Cell
from pipeline.reporting.drawing import BLUE, DASHES, GRID, INK, MARKERS, MUTED, SERIES, figure, panels, plain_log
from pipeline.reporting.section import Picture, Section, Table, percent
from pipeline.reporting.sources import Material, RunFiles
from templates.errors import InputError

FLOOR = 1e-3
"""Smaller regrets are drawn as this one: the axis is logarithmic, and timing cannot tell them apart."""
TICKS = (0.001, 0.01, 0.1, 1.0)


def section(material: Material) -> Section:
    """Lines over measurements, and per number of measurements a row for each method."""
    return of_run(material.run("evaluate"))


def of_run(run: RunFiles) -> Section:
    """The same of a run that may be on several operators. InputError where it left no such numbers."""
    cells = run.parts("methods", Cell)
    if not cells:
        raise InputError(f"{run.folder / 'summary.json'}: no methods in it; run `make evaluate` again")
    world = run.part("world", str)
    lead = (
        "Regret: 1 - best known time / time of the choice, 0 for the best known. k measurements are made before choosing; with "
        f"k = 0 nothing is. This evaluation {world if world.startswith('replays') else 'was ' + world}. Regrets below 0.1 %, and "
        "those of a vendor's kernel that beats the best known config, are drawn as 0.1 %."
    )
    return Section("regret", "Regret against measurements", lead, [*_course(cells), _intervals(cells)])


def methods(cells: Sequence[Cell]) -> list[str]:
    """Methods by mean regret at the largest number of measurements each has, best first."""
    last = {cell.method: cell.mean for cell in sorted(cells, key=lambda cell: cell.measurements)}
    return sorted(last, key=lambda name: -last[name])


def regret(fraction: float) -> float:
    """What is drawn for a fraction of the best known."""
    return max(FLOOR, 1.0 - fraction)


def _course(cells: Sequence[Cell]) -> list[Picture]:
    """The lines; nothing where every method was judged once."""
    names = [name for name in methods(cells) if sum(cell.method == name for cell in cells) > 1]
    if not names:
        return []

    def draw(narrow: bool) -> Figure:
        made, axes = figure(narrow, 4.6 if narrow else 3.6)
        ks = sorted({cell.measurements for cell in cells})
        for i, name in enumerate(names):
            points = sorted((ks.index(c.measurements), c) for c in cells if c.method == name)
            places, mine = [place for place, _ in points], [cell for _, cell in points]
            colour, wide = (INK, 2.4) if name == "policy" else (SERIES[i % len(SERIES)], 1.2)
            means = [regret(cell.mean) for cell in mine]
            axes.plot(places, means, color=colour, linewidth=wide, linestyle=DASHES[i // len(SERIES) % 3], marker=MARKERS[i % 7],
                      label=name, zorder=4 if name == "policy" else 3)  # fmt: skip
            if name == "policy":
                low, high = [regret(cell.high) for cell in mine], [regret(cell.low) for cell in mine]
                axes.fill_between(places, low, high, color=MUTED, alpha=0.25, linewidth=0, label="policy, 95 % interval")
        axes.set_yscale("log")
        plain_log(axes.yaxis, TICKS)
        axes.set_xticks(range(len(ks)), [str(k) for k in ks])
        least = min(regret(c.high if c.method == "policy" else c.mean) for c in cells if c.method in names)
        axes.set(xlabel="measurements before choosing", ylabel="mean regret", ylim=(0.8 * least, 1.2))
        axes.grid(which="major")
        made.legend(loc="outside lower left", ncols=2 if narrow else 4)
        return made

    alt = f"Mean regret of {len(names)} methods by the number of measurements; at the most measurements {names[0]} is lowest."
    return [Picture("regret-course", "Mean regret, a line per method", alt, draw)]


def _intervals(cells: Sequence[Cell]) -> Picture:
    ks, names = sorted({cell.measurements for cell in cells}), methods(cells)
    found = {(cell.method, cell.measurements): cell for cell in cells}

    def draw(narrow: bool) -> Figure:
        made, every = panels(len(ks), narrow, (2, 1), 0.6 + 0.17 * len(names))
        for k, axes in zip(ks, every, strict=True):
            here = [found[name, k] for name in names if (name, k) in found]
            for row, cell in enumerate(here):
                colour, ends = INK if cell.method == "policy" else BLUE, [regret(cell.high), regret(cell.low)]
                axes.plot(ends, [row, row], color=colour, linewidth=2.2, solid_capstyle="butt")
                axes.plot([regret(cell.low), regret(cell.worst)], [row, row], color=GRID, linewidth=0.8, zorder=1)
                axes.plot(regret(cell.mean), row, "o", color=colour)
                axes.plot(regret(cell.worst), row, "x", color=SERIES[1])
            axes.set_xscale("log")
            plain_log(axes.xaxis, TICKS)
            axes.set_yticks(range(len(here)), [cell.method for cell in here])
            axes.set(title=f"k = {k}", xlim=(FLOOR * 0.8, 1.2), ylim=(len(names) - 0.5, -0.5))
            axes.grid(axis="x", which="major")
        every[-1].set_xlabel("regret")
        return made

    alt = "For each number of measurements and method: mean regret, its 95 % confidence interval, and the worst workload."
    title = "Mean (dot) with its 95 % interval (bar), and the worst workload (cross)"
    return Picture("regret-intervals", title, alt, draw, _table(cells))


def _table(cells: Sequence[Cell]) -> Table:
    header = ["method", "k", "mean regret", "95 % interval", "worst", "worst workload", "seeds that disagree"]
    order = {name: place for place, name in enumerate(methods(cells))}
    rows = [
        [c.method, str(c.measurements), *_regrets(c), c.worst_workload, percent(c.flips)]
        for c in sorted(cells, key=lambda c: (order[c.method], c.measurements))
    ]
    return Table("Regret per method and number of measurements k", header, rows)


def _regrets(cell: Cell) -> tuple[str, str, str]:
    return percent(1 - cell.mean), f"{percent(1 - cell.high)} to {percent(1 - cell.low)}", percent(1 - cell.worst)
