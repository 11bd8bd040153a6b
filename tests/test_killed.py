"""A collection killed -9 at random moments: no measured row is lost, none is measured twice, the end is the same.

KILLS=20 python -m pytest tests/test_killed.py raises the number of kills from the 2 of every run.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pandas as pd

from datasets import store
from tests.test_build import GOOD, fake_nvcc

ROOT = Path(__file__).resolve().parents[1]
KILLS = int(os.environ.get("KILLS", "2"))
ROWS = 2 * (32 + 2)
WORKLOADS = "collect.workloads=['matmul/f32/M=512,N=512,K=512','matmul/f32/M=1000,N=1000,K=1000']"


def start(folder: Path, nvcc: str) -> "subprocess.Popen[str]":
    """The collect stage on a pretended GPU, in a process of its own. What it measures does not depend on the order: no guided
    search, which goes by what is known so far.
    """
    arguments = [
        "gpu=shared", "farm.gpus=[0]", "farm.engine=tests.fake_engine:SteadyEngine", f"farm.build.nvcc={nvcc}",
        f"farm.build.cache_dir={folder}/cache", f"outputs_dir={folder}/outputs", f"data_dir={folder}/data",
        f"recorded_dir={folder}/none", WORKLOADS, "collect.random=32", "collect.guided=0", "collect.vendor=false",
        "farm.look_ahead=4", "farm.build.jobs=1",
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
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return [line for line in output.splitlines() if line.startswith("|")]


def test_a_killed_collection_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    nvcc = fake_nvcc(tmp_path, GOOD)
    table = finish(whole, nvcc)
    rng, seen = random.Random(1), set[str]()
    for _ in range(KILLS):
        process = start(broken, nvcc)
        answered = wait_for_rows(process, broken, len(seen) + rng.randint(1, ROWS // KILLS))
        process.kill()
        output, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL, f"the collection ended before it could be killed: {output[-2000:]}"
        seen |= answered
    assert len(seen) <= ROWS
    assert finish(broken, nvcc) == table
    assert measured(broken) == measured(whole)
    again = Counter(jobs(broken))
    assert sum(again.values()) - len(again) <= 2 * KILLS, "more came twice than was under way: one measured, one on its way"


def jobs(folder: Path) -> list[str]:
    """What the worker was asked to measure, in all runs, by its log."""
    logs = [path.read_text() for path in folder.glob("outputs/collect/2*/worker-0.log")]
    return [line.split(" measure ", 1)[1] for text in logs for line in text.splitlines() if " measure " in line]


def wait_for_rows(process: "subprocess.Popen[str]", folder: Path, rows: int) -> set[str]:
    """Until so many jobs have been handed out, in this run and before, or the run has ended."""
    deadline = time.monotonic() + 200
    while process.poll() is None and len(set(jobs(folder))) < rows and time.monotonic() < deadline:
        time.sleep(0.005)
    return set(jobs(folder))
