"""One HTML page an operator from what the stages left: `make report`, or `make report RUN=outputs/evaluate/<time>` for one run
and those it stands on; `python -m pipeline.report report.workload="matmul/f32/M=512,N=512,K=512"`.

Leaves report.html, which needs neither network nor anything else of this repository, and its pictures as png/*.png. What has not
run yet, or left something damaged, is a line on the page. Measures nothing.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline import config
from pipeline.reporting.contents import SECTIONS, overview, page
from pipeline.reporting.page import write
from pipeline.reporting.sources import Material, device_of, find_runs, load_rows, op_of, part_of
from pipeline.runs import Run, progress, stage
from templates.errors import InputError
from templates.template import ALL, Template, load_template
from templates.workload import Workload


def together(settings: config.Settings, run: Run, folders: Mapping[str, Path]) -> None:
    """A page that leads to those of the operators."""
    made = overview(find_runs(run.outputs, ALL), folders, time.strftime("%Y-%m-%d %H:%M"))
    target = write(made, run.folder)
    run.write_summary({"runs": {op: folder.name for op, folder in folders.items()}})
    print(f"report: {target}, with a page for each of {', '.join(folders)}")


@stage("report", each=True, overall=together)
def main(settings: config.Settings, run: Run) -> None:
    """Gather, draw, write."""
    template = load_template(settings.op.name)
    material = gather(template, settings, run.outputs)
    with progress(len(SECTIONS), "gathering") as bar:
        made = page(material, time.strftime("%Y-%m-%d %H:%M"), bar.advance)
    with progress(sum(len(section.pictures) for section in made.sections), "drawing") as bar:
        target = write(made, run.folder, bar.advance)
    missing = [section.key for section in made.sections if section.missing]
    run.write_summary(
        {
            "gpu": material.device.name,
            "op": template.op,
            "tiles": {tile.meaning: tile.number for tile in made.tiles},
            "runs": {name: str(found.folder) for name, found in material.runs.items()},
            "sections": [section.key for section in made.sections if not section.missing],
            "missing": {section.key: section.missing for section in made.sections if section.missing},
        }
    )
    if missing:
        print(f"left out, with the reason on the page: {', '.join(missing)}")
    print(f"report: {target} ({target.stat().st_size / 1e6:.1f} MB)")


def gather(template: Template, settings: config.Settings, outputs: Path) -> Material:
    """Runs and rows. InputError for a run that is none, or is another operator's, or an unusable workload."""
    asked, named = settings.report, config.path(settings.report.run) if settings.report.run else None
    named = part_of(named, template.op) if named is not None else None
    if asked.workload:
        template.check_workload(Workload.parse(asked.workload))
    runs = find_runs(outputs, template.op, named)
    roots = [config.path(settings.recorded_dir), config.path(settings.data_dir)]
    device = device_of(runs, roots, settings.gpu.recorded)
    rows, problem = load_rows(template, device, roots)
    return Material(template, runs, device, rows, problem, asked.workload, settings.seed)


def with_op(arguments: Sequence[str]) -> list[str]:
    """The arguments with the operator of the run or workload they name, unless they name an operator themselves."""
    named = {key: text.strip("'\"") for key, _, text in (argument.partition("=") for argument in arguments)}
    try:
        if "op" not in named and named.get("report.workload"):
            return [*arguments, f"op={Workload.parse(named['report.workload']).op}"]
        if "op" not in named and named.get("report.run"):
            return [*arguments, f"op={op_of(config.path(named['report.run']))}"]
    except InputError:
        pass  # the stage says so
    return list(arguments)


if __name__ == "__main__":
    sys.exit(main.run(with_op(sys.argv[1:])))
