"""Which world a stage works in: the GPUs of this machine or of a Ray cluster, or the replay of recorded timings."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from datasets import store
from datasets.device import Device
from pipeline.measure.measurer import Measurer
from pipeline.measure.settings import FarmSettings
from templates.errors import InputError, NothingToDo
from templates.template import load_template

log = logging.getLogger("gpu")

MODES = ("auto", "dedicated", "shared", "replay")


@dataclass(frozen=True)
class GpuSettings:
    """mode: "auto" measures where there is a GPU and replays elsewhere; "dedicated" locks clocks; "shared" only observes;
    "replay" never measures. recorded: the folder of datasets/recorded that is replayed.
    """

    mode: str = "auto"
    recorded: str = "nvidia-h200"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InputError(f"gpu.mode={self.mode} is unknown; use one of {', '.join(MODES)}")


def gpu_present() -> bool:
    """Whether this machine shows an NVIDIA GPU to us; `/dev/dxg` is WSL2's."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return False
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def replays(gpu: GpuSettings, farm: FarmSettings) -> bool:
    """Whether timings come from the recording; InputError when a GPU is asked for and there is none.

    A Ray cluster is taken to have GPUs, and so is this machine where the settings say how many to use through Ray.
    """
    present = gpu_present() or (farm.kind == "ray" and bool(farm.ray.address or farm.ray.gpus))
    if gpu.mode in ("dedicated", "shared") and not present:
        raise InputError(f"gpu={gpu.mode}: this machine shows no NVIDIA GPU; use gpu=replay for recorded timings")
    return gpu.mode == "replay" or not present


def recorded_device(root: Path, gpu: GpuSettings) -> Device:
    """The GPU of the recording; InputError when there is no such recording."""
    path = root / gpu.recorded / "device.json"
    if not path.is_file():
        known = ", ".join(sorted(p.parent.name for p in root.glob("*/device.json"))) or "none"
        raise InputError(f"gpu.recorded={gpu.recorded}: no recording in {root}; there are: {known}")
    return Device.load(path)


def recorded_rows(root: Path, device: Device, op: str) -> pd.DataFrame:
    """The recorded rows of one operator's present template; NothingToDo when there are none."""
    if not store.files(root, op, device.key):
        raise NothingToDo(f"{root}: no timings of {op} on {device.name}; run `make collect` on that GPU")
    frame = store.load(root, op=op, gpu=device.key)
    frame = frame[(frame["template_version"] == load_template(op).version) | (frame["origin"] == "vendor")]
    if frame.empty:
        raise NothingToDo(f"{root}: no timings of the present {op} template on {device.name}; run `make collect` on that GPU")
    return frame


def open_measurer(
    gpu: GpuSettings, farm: FarmSettings, recorded: Path, ops: Sequence[str], log_dir: Path | None = None
) -> Measurer:
    """The measurer the settings ask for; the caller closes it. InputError where it cannot be had.

    A replay knows those of the operators that are recorded; NothingToDo where none is.
    """
    if replays(gpu, farm):
        from pipeline.measure.replay import Replay

        device = recorded_device(recorded, gpu)
        present = [op for op in ops if store.files(recorded, op, device.key)] or list(ops)
        frame = pd.concat([recorded_rows(recorded, device, op) for op in present], ignore_index=True)
        why = "" if gpu.mode == "replay" else " (no GPU here)"
        log.info("replays %d recorded timings of %s%s: nothing is measured", len(frame), device.name, why)
        return Replay(frame, device)
    return open_farm(gpu, farm, log_dir)


def open_farm(gpu: GpuSettings, farm: FarmSettings, log_dir: Path | None = None) -> Measurer:
    """The GPUs of this machine, or those of a Ray cluster."""
    from pipeline.measure.farm import GpuFarm  # only where there is a GPU
    from pipeline.measure.ray_farm import RayFarm

    farm = replace(farm, log_dir=farm.log_dir or (None if log_dir is None else str(log_dir)))
    measurer = RayFarm(farm) if farm.kind == "ray" else GpuFarm(farm)
    gpus = len(measurer.workers)
    log.info("measures on %d x %s, gpu=%s, clocks %s", gpus, measurer.device.name, gpu.mode, farm.clocks.mode)
    return measurer
