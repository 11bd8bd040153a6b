"""Filling the compile cache without a GPU: what collect would measure is built, and found by a farm elsewhere."""

import json
import shutil
from pathlib import Path

import pytest

from datasets.device import H200
from datasets.measurement import Candidate
from pipeline import compile as compile_stage
from pipeline.archive import Archive
from pipeline.compile import build_all, sources
from pipeline.measure.farm import GpuFarm, tool_sources
from pipeline.measure.settings import BuildSettings, FarmSettings
from pipeline.plan import CollectSettings, Plan
from templates.template import load_template
from templates.workload import Workload
from tests.test_build import GOOD, calls, fake_nvcc, pool

MATMUL = load_template("matmul")
TEXTS = ["matmul/f32/M=300,N=256,K=256", "matmul/f32/M=512,N=512,K=512"]
WORKLOADS = [Workload.parse(text) for text in TEXTS]


def plan(archive: Archive | None = None) -> Plan:
    return Plan(archive or Archive(MATMUL, H200), CollectSettings(random=3, vendor=True), seed=0)


def run(tmp_path: Path, *overrides: str) -> int:
    recorded = tmp_path / "recorded" / "nvidia-h200"
    recorded.mkdir(parents=True, exist_ok=True)
    H200.save(recorded / "device.json")
    return compile_stage.main.run([
        "op=matmul",
        f"outputs_dir={tmp_path}/outputs", f"data_dir={tmp_path}/data", f"recorded_dir={tmp_path}/recorded",
        f"farm.build.cache_dir={tmp_path}/cache", f"collect.workloads={TEXTS}".replace(" ", ""), "collect.random=3", *overrides,
    ])  # fmt: skip


def test_every_source_that_collect_would_measure_is_listed_once(tmp_path: Path) -> None:
    candidates = [c for c in plan().anchors(WORKLOADS) if c.origin != "vendor"] + sum(plan().random(WORKLOADS), [])
    listed = list(sources(plan(), WORKLOADS).values())
    tools = len({text for _, text in tool_sources().values()})
    assert len(listed) - tools == len({str(c.config) for c in candidates})
    assert listed[0] == "check.cu"


def test_what_is_measured_already_is_left_out() -> None:
    archive = Archive(MATMUL, H200)
    everything = sources(plan(), WORKLOADS)
    for workload in WORKLOADS:
        archive.claim(workload, [MATMUL.naive])
    left = sources(plan(archive), WORKLOADS)
    assert len(everything) - len(left) == 1


def test_a_failure_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    builds = pool(tmp_path, "grep -q broken kernel.cu && { echo 'kernel.cu(1): error: broken' >&2; exit 2; }\n" + GOOD)
    lines = build_all(builds, {"// fine": "a", "// broken": "b", "// fine too": "c"})
    assert (lines["sources"], lines["outcomes"]) == (3, {"compile_error": 1, "compiled": 2})
    assert "compile_error: b: kernel.cu(1): error: broken" in caplog.text
    again = build_all(pool(tmp_path, GOOD), {"// fine": "a", "// fine too": "c"})
    assert again["outcomes"] == {"cached": 2}


def test_the_stage_fills_the_cache_and_a_farm_elsewhere_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, f"farm.build.nvcc={fake_nvcc(tmp_path, GOOD)}") == 0
    summary = json.loads((tmp_path / "outputs/compile/latest/summary.json").read_text())
    assert summary["outcomes"] == {"compiled": summary["sources"]} and calls(tmp_path) == summary["sources"]
    assert (summary["arch"], summary["compiler"]) == ("sm_90", "13.0.88")
    assert f"compiled': {summary['sources']}" in capsys.readouterr().out
    there = tmp_path / "elsewhere"
    there.mkdir()
    shutil.copytree(tmp_path / "cache", there / "cache")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    build = BuildSettings(nvcc=fake_nvcc(there, "exit 1"), cache_dir=str(there / "cache"), jobs=1)
    workload = WORKLOADS[0]
    ours = [*plan().anchors([workload]), *plan().random([workload])[0]]
    with GpuFarm(FarmSettings(engine="tests.fake_engine:FakeEngine", gpus=[0], build=build)) as farm:
        found = list(farm.measure([Candidate(c.workload, c.config, c.origin) for c in ours if c.origin != "vendor"]))
    assert all(row.cache_hit for row in found) and calls(there) == 0


def test_a_gpu_that_nobody_described_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "gpu.recorded=nvidia-none") == 2
    assert "gpu.recorded=nvidia-none" in capsys.readouterr().err
