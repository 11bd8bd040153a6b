"""A collection killed -9 at random moments: no measured row is lost, none is measured twice, the end is the same.

KILLS=20 python -m pytest tests/test_killed.py raises the number of kills from the 3 of every run.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd

from datasets import store
from tests.test_build import GOOD, fake_nvcc

ROOT = Path(__file__).resolve().parents[1]
KILLS = int(os.environ.get("KILLS", "3"))
WORKLOADS = "collect.workloads=['matmul/f32/M=512,N=512,K=512','matmul/f32/M=1000,N=1000,K=1000']"
FEW_TREES = "collect.guide.trees=20 collect.guide.members=1 collect.guide.fresh=32 collect.guide.evaluations=200"


def start(folder: Path, nvcc: str) -> "subprocess.Popen[str]":
    """The collect stage on a pretended GPU, in a process of its own."""
    arguments = [
        "gpu=shared", "farm.gpus=[0]", "farm.engine=tests.fake_engine:SteadyEngine", f"farm.build.nvcc={nvcc}",
        f"farm.build.cache_dir={folder}/cache", f"outputs_dir={folder}/outputs", f"data_dir={folder}/data",
        f"recorded_dir={folder}/none", WORKLOADS, "collect.random=24", "collect.guided=8", "collect.batch=4",
        "collect.vendor=false", *FEW_TREES.split(), "farm.look_ahead=4", "farm.build.jobs=1",
    ]  # fmt: skip
    code = "from pipeline import collect, worlds; worlds.gpu_present = lambda: True; collect.main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "0"},
    )  # fmt: skip


def measured(folder: Path) -> set[tuple[str, str, str, float]]:
    """Every row there is: workload, config, origin, time."""
    root = folder / "data"
    frame = store.load(root) if root.is_dir() and store.files(root) else pd.DataFrame({"config": []})
    assert not frame.duplicated(["workload", "config"]).any() if len(frame) else True
    return set(frame[["workload", "config", "origin", "time_us"]].itertuples(index=False, name=None)) if len(frame) else set()


def finish(folder: Path, nvcc: str) -> list[str]:
    """Run to the end; the lines of the final table."""
    process = start(folder, nvcc)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return [line for line in output.splitlines() if line.startswith("|")]


def test_a_killed_collection_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    nvcc = fake_nvcc(tmp_path, GOOD)
    table = finish(whole, nvcc)
    rng, before, cut_short = random.Random(1), set[tuple[str, str, str, float]](), 0
    for _ in range(KILLS):
        process = start(broken, nvcc)
        data = broken / "data"
        wait_for_a_new_row(process, data)
        time.sleep(rng.uniform(0.0, 0.4))
        process.kill()
        process.communicate()
        now = measured(broken)
        assert before <= now
        cut_short += len(now) < 68
        before = now
    assert cut_short >= KILLS // 4, "the collection ended before it could be killed"
    assert finish(broken, nvcc) == table
    assert measured(broken) == measured(whole)


def wait_for_a_new_row(process: "subprocess.Popen[str]", data: Path) -> None:
    """Until the run has written something, or has ended."""
    there, deadline = len(list(data.rglob("*.parquet"))), time.monotonic() + 30
    while process.poll() is None and len(list(data.rglob("*.parquet"))) <= there and time.monotonic() < deadline:
        time.sleep(0.01)
