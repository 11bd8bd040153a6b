"""The rows one may learn from: measured on the training workloads, by the template as it is now."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from datasets import split, store
from datasets.device import Device
from templates.errors import NothingToDo
from templates.template import Template


def training_rows(template: Template, device: Device, recorded_key: str, roots: Sequence[Path]) -> pd.DataFrame:
    """Rows of the training split on this GPU, or else on the recorded one; NothingToDo when there are none."""
    train = {str(workload) for workload in split.workloads(template.op)["train"]}
    for key in (device.key, recorded_key):
        found = [root for root in roots if root.is_dir() and store.files(root, template.op, key)]
        if not found:
            continue
        frame = store.load(found, op=template.op, gpu=key)
        kept = frame[frame["workload"].isin(train) & (frame["template_version"] == template.version) & (frame["config"] != "")]
        if len(kept):
            return kept.reset_index(drop=True)
    raise NothingToDo(f"no timings of the present {template.op} template in {', '.join(map(str, roots))}: run `make collect`")
