"""The report's sections in order, and the figures on top. What cannot be had becomes a line that says what would fill it."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from pipeline.records import Cell
from pipeline.reporting import (
    curves,
    decisions,
    knobs,
    noise,
    predictions,
    provenance,
    regret,
    speedups,
    statuses,
    tuned,
)
from pipeline.reporting.section import Page, Section, Table, Tile, percent
from pipeline.reporting.sources import Material, RunFiles, read_run
from templates.errors import InputError

log = logging.getLogger("report")

Build = Callable[[Material], Section]
SECTIONS: Mapping[str, tuple[str, Build]] = {
    "speedups": ("Speed-ups per workload", speedups.section),
    "regret": ("Regret against measurements", regret.section),
    "tuned": ("Tuned kernels", tuned.section),
    "predictions": ("Predicted against measured", predictions.section),
    "knobs": ("What each knob does", knobs.section),
    "decisions": ("Where the policy's decisions come from", decisions.section),
    "curves": ("Training curves", curves.section),
    "noise": ("Timing noise", noise.section),
    "statuses": ("Outcomes", statuses.section),
    "runs": ("Runs behind this page", provenance.section),
}


def page(material: Material, written: str, advance: Callable[[int, str], None] = lambda n, note: None) -> Page:
    """The whole report. `written`: when, as text."""
    sections = []
    for key, (title, build) in SECTIONS.items():
        try:
            sections.append(build(material))
        except InputError as error:
            log.info("%s: left out: %s", title, error)
            sections.append(Section(key, title, missing=str(error)))
        advance(1, title)
    return Page(f"{material.template.op} on {material.device.name}", f"Written {written}.", tiles(material), sections)


def overview(runs: Mapping[str, RunFiles], reports: Mapping[str, Path], written: str) -> Page:
    """A page over all operators: their pages, given by folder, the figures on top of those, and the joint evaluation."""
    figures = {op: read_run("report", folder).summary.get("tiles", {}) for op, folder in reports.items()}
    names = list(dict.fromkeys(name for found in figures.values() for name in found))
    rows = [[op, *(str(found.get(name, "-")) for name in names)] for op, found in figures.items()]
    table = Table("Each operator", ["operator", *names], rows, fold=False)
    links = [(op, f"../{folder.name}/report.html") for op, folder in reports.items()]
    sections = [Section("operators", "Operators", "A page of its own for each:", tables=[table], links=links)]
    try:
        if "evaluate" not in runs:
            raise InputError("no evaluate run on all operators yet: run `make evaluate`")
        sections.append(regret.of_run(runs["evaluate"]))
    except InputError as error:
        sections.append(Section("regret", SECTIONS["regret"][0], missing=str(error)))
    return Page("All operators", f"Written {written}.", sections=sections)


def tiles(material: Material) -> list[Tile]:
    """The figures on top: speed-ups of the best found, and the policy's regret; those that can be had."""
    found: list[Tile] = []
    try:
        lines = speedups.measured_times(material)
        test = [line for line in lines if line.split == "test"] or lines
        which = f"{'test ' if test is not lines else ''}workloads"
        for other, name in (("naive", "naive"), ("expert", "the expert config"), ("vendor", "the vendor's kernel")):
            if mean := speedups.geometric_mean(test, other, "best"):
                meaning = f"best found against {name}"
                found.append(Tile(f"{mean[0]:.2f} x", meaning, f"geometric mean, {mean[1]} {which}"))
    except InputError:
        pass
    try:
        run = material.run("evaluate")
        cells = [cell for cell in run.parts("methods", Cell) if cell.method == "policy"]
        for cell in cells[:1] + cells[-1:] if len(cells) > 1 else cells:
            basis = f"mean over workloads and seeds, worst {percent(1 - cell.worst)}; {run.summary.get('world', '')}"
            found.append(Tile(percent(1 - cell.mean), f"policy's regret after {cell.measurements} measurements", basis))
    except InputError:
        pass
    return found
