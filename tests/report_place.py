"""A folder with a small recording of fake times and one small run of every stage, for the tests of the report."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from cost_model.model import CostModel, CostModelSettings
from datasets import split, store
from datasets.device import H200
from datasets.measurement import Candidate, Measurement
from pipeline.measure.fake import FakeMeasurer
from pipeline.policy.iql import Policy
from pipeline.records import Cell
from pipeline.reporting.sources import Material, device_of, find_runs, load_rows
from pipeline.scalars import note_losses
from templates import space
from templates.workload import Workload
from tests.policy_world import LAYOUT, TEMPLATE, TINY, VOCAB, some_episodes

LISTS = split.workloads("matmul")
TRAIN, TEST = LISTS["train"][:3], LISTS["test"][2:4]
SPREAD = np.linspace(0.98, 1.02, 41)
"""Samples over their median: the middle 90 % are within 1.8 %, the middle half within 1 %."""
NASTY = "<script>alert('no')</script> & more"


def rows(workload: Workload, random: int = 120) -> list[Measurement]:
    """Naive, expert, vendor and random ones, some of which fail, with samples."""
    naive, expert = (space.canonical_config(TEMPLATE, c) for c in (TEMPLATE.naive, TEMPLATE.expert(workload)))
    drawn = space.sample(TEMPLATE, workload, H200.limits, random, np.random.default_rng([1, *str(workload).encode()]))
    anchors = [Candidate(workload, naive, "naive"), Candidate(workload, expert, "expert"), Candidate(workload, {}, "vendor")]
    random_ones = [Candidate(workload, config, "random") for config in drawn]
    found = [*FakeMeasurer(H200).measure(anchors), *FakeMeasurer(H200, fail_rate=0.05).measure(random_ones)]
    found[2] = replace(found[2], time_us=1.0)  # the vendor's is faster than anything of ours
    return [m if m.time_us is None else replace(m, samples_us=tuple(m.time_us * SPREAD)) for m in found]


def complete(root: Path, stage: str, summary: Any, state: str = "complete") -> Path:
    """The folder of a run that left this summary (None: none yet), the last one of its stage."""
    folder = root / "outputs" / stage / "one"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text("op:\n  name: matmul\n")
    (folder / "state.json").write_text(json.dumps({"state": state}))
    (folder / "log.txt").write_text(f"10:00:00 I {stage}: {NASTY}\n")
    (folder / "versions.json").write_text(json.dumps({"seed": 0, "git": "0123456789abcdef", "packages": {"torch": "2.13.0"}}))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    for name in ("latest", "latest-matmul"):
        link = folder.parent / name
        if state == "complete" and not link.exists():
            link.symlink_to("one")
    return folder


def cells(ks: tuple[int, ...] = (0, 1, 10)) -> list[dict[str, Any]]:
    """What an evaluation says of three methods."""
    means = {"policy": 0.9, "cost_model": 0.85, "random": 0.4}
    every = [(name, mean, i, k) for name, mean in means.items() for i, k in enumerate(ks)]
    found = [Cell(name, k, mean + 0.01 * i, mean - 0.1, 0.99, mean - 0.2, str(TEST[0]), 0.5) for name, mean, i, k in every]
    return [asdict(cell) for cell in (*found, Cell("vendor", 0, 1.02, 0.9, 1.1, 0.8, str(TEST[0]), 0.0))]


def record(workload: Workload, k: int) -> dict[str, Any]:
    """The policy's line on one workload."""
    return {"op": "matmul", "workload": str(workload), "split": "test", "method": "policy", "measurements": k,
            "time_us": 123.0 - k, "fraction_of_best": 0.9, "speedup_over_naive": 5.0, "source": "replay", "seeds": 2,
            "spread": [0.8, 1.0]}  # fmt: skip


KERNEL = {
    "workload": str(TEST[0]), "config": "block_m=64,block_n=64", "template_version": "x", "time_us": 50.0,
    "interval_us": [49.5, 50.5], "predicted_us": 52.0, "measurements": 20, "vendor_us": 55.0, "expert_us": 80.0,
    "naive_us": 400.0,
    "reason": "measured, best of 20",
}  # fmt: skip


def build(root: Path) -> Path:
    """Everything a report can show."""
    for workload in (*TRAIN, *TEST):
        store.append(root / "recorded", rows(workload))
    H200.save(root / "recorded" / H200.key / "device.json")
    frame = store.load(root / "recorded")
    learnt = frame[frame["workload"].isin([str(w) for w in TRAIN]) & (frame["config"] != "")]
    complete(root, "collect", {"gpu": H200.name, "rows": len(frame)})
    fitted = complete(root, "fit", {"gpu": H200.name, "scores": {}})
    CostModel.fit(learnt, H200, CostModelSettings(members=2, trees=20, depth=4, threads=1)).save(fitted / "cost_model")
    episodes = some_episodes(2, 4)
    policy = Policy.create(LAYOUT, VOCAB, TINY, episodes.states, 0, [str(w) for w in TRAIN])
    gained = {"gains": {"matmul": {"policy": 0.3, "random": 0.1}}}
    for stage, summary in (("pretrain", gained), ("finetune", {"source": "replay"})):
        folder = complete(root, stage, summary)
        policy.save(folder / "policy")
        for step in (10, 20, 30):
            note_losses(folder / "losses.csv", step, {"critic_loss": 100.0 / step, "v_loss": 0.1 * step})
    for number in (1, 2):
        episodes.save(root / "outputs/finetune/one" / f"episodes-{number:04d}.npz")
    (root / "outputs/finetune/one/stands_on.json").write_text(json.dumps({"pretrain": "one", "fit": "one"}))
    records = [record(w, k) for w in TEST for k in (0, 10)]
    complete(root, "evaluate", {"gpu": H200.name, "world": "replays recorded timings", "methods": cells(), "records": records})
    tuned = complete(root, "tune", {"gpu": H200.name})
    kernels = {"schema": 1, "gpu": H200.key, "arch": "sm_90", "source": "replay", "kernels": [KERNEL]}
    (tuned / "kernels.json").write_text(json.dumps(kernels))
    return root


def material(root: Path, workload: str = "", named: Path | None = None) -> Material:
    """What the sections draw on."""
    runs = find_runs(root / "outputs", "matmul", named)
    roots = [root / "recorded", root / "data"]
    device = device_of(runs, roots, H200.key)
    return Material(TEMPLATE, runs, device, *load_rows(TEMPLATE, device, roots), workload)
