"""Whether the recorded timings can be replayed: read whole, checksums included."""

from pathlib import Path

from datasets.device import Device
from pipeline.checks.facts import Recording
from pipeline.worlds import recorded_rows
from templates.errors import InputError


def probe(root: Path) -> tuple[Recording, ...]:
    """Every GPU and operator under the folder."""
    folders = sorted(folder for folder in root.glob("*/*") if folder.is_dir())
    return tuple(_one(root, folder.parent.name, folder.name) for folder in folders)


def _one(root: Path, gpu: str, op: str) -> Recording:
    try:
        rows = recorded_rows(root, Device.load(root / gpu / "device.json"), op)
    except InputError as error:
        return Recording(gpu, op, error=str(error))
    return Recording(gpu, op, len(rows), int(rows["workload"].nunique()))
