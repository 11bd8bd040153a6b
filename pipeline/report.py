"""One HTML page from what the stages left: `make report`, or `make report RUN=outputs/evaluate/<time>` for one run and those it
stands on; `python -m pipeline.report report.workload="matmul/f32/M=512,N=512,K=512"`.

Leaves report.html, which needs neither network nor anything else of this repository, and its pictures as png/*.png. What has not
run yet, or left something damaged, is a line on the page. Measures nothing.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline import config
from pipeline.reporting.contents import SECTIONS, page
from pipeline.reporting.page import write
from pipeline.reporting.sources import Material, device_of, find_runs, load_rows, op_of, stage_of
from pipeline.runs import Run, progress, stage
from templates.errors import InputError
from templates.template import Template, load_template
from templates.workload import Workload


@stage("report")
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
    if named is not None and (op := op_of(named)) != template.op:
        raise InputError(f"RUN={named} is a run on {op}: add ARGS=op={op}")
    if asked.workload:
        template.check_workload(Workload.parse(asked.workload))
    runs = find_runs(outputs, template.op, named)
    roots = [config.path(settings.recorded_dir), config.path(settings.data_dir)]
    device = device_of(runs, roots, settings.gpu.recorded)
    rows, problem = load_rows(template, device, roots)
    return Material(template, runs, device, rows, problem, asked.workload, settings.seed)


def with_op(arguments: Sequence[str]) -> list[str]:
    """The arguments with the operator of the run they name, unless they name an operator themselves."""
    named = [text.partition("=")[2].strip("'\"") for text in arguments if text.startswith("report.run=")]
    if not named or not named[-1] or any(text.startswith("op=") for text in arguments):
        return list(arguments)
    try:
        folder = config.path(named[-1])
        stage_of(folder)
        return [*arguments, f"op={op_of(folder)}"]
    except InputError:
        return list(arguments)  # the stage says so


if __name__ == "__main__":
    sys.exit(main.run(with_op(sys.argv[1:])))
