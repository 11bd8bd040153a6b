"""Fit the cost model: `make fit`, or `python -m cost_model.fit cost_model.trees=800`.

Learns from the training workloads alone, of what is shipped and what was measured since, and reports on the validation
workloads. `fit.report_test=true` also scores the test workloads, which changes nothing that is saved; `fit.ablation=true` says
what each group of features is worth.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from cost_model.fitting import fit, report_rows, summary
from datasets import store
from datasets.device import Device
from pipeline import config, worlds
from pipeline.runs import Run, stage
from pipeline.tables import table
from templates.errors import NothingToDo
from templates.template import Template, load_template

log = logging.getLogger("fit")


@stage("fit", each=True)
def main(settings: config.Settings, run: Run) -> None:
    """Fit, print the table, save the model."""
    template, recorded = load_template(settings.op.name), config.path(settings.recorded_dir)
    device = worlds.recorded_device(recorded, settings.gpu)
    frame = present_rows(template, device, [recorded, config.path(settings.data_dir)])
    report = fit(frame, device, settings.cost_model, settings.fit, settings.seed)
    report.model.save(run.folder / "cost_model")
    device.save(run.folder / "cost_model" / "device.json")
    print(table(["split", "workload", "configs", "Spearman", "regret at 1", "regret at 10"], report_rows(report)))
    run.write_summary({"gpu": device.name, **summary(report)})
    print(f"cost model of {report.rows} timings: {run.folder / 'cost_model'}")


def present_rows(template: Template, device: Device, roots: Sequence[Path]) -> pd.DataFrame:
    """Every row of this GPU and of the template as it is now. NothingToDo when there is none."""
    found = [root for root in roots if root.is_dir() and store.files(root, template.op, device.key)]
    if not found:
        raise NothingToDo(f"no timings of {template.op} for {device.name}: run `make collect` on that GPU")
    frame = store.load(found, op=template.op, gpu=device.key)
    present = frame[frame["template_version"].isin([template.version, ""])]
    if len(present) < len(frame):
        log.info("leaves out %d rows of other versions of the %s template", len(frame) - len(present), template.op)
    if present.empty:
        raise NothingToDo(f"no timings of the present {template.op} template for {device.name}: `make collect` on that GPU")
    return present.reset_index(drop=True)


if __name__ == "__main__":
    main()
