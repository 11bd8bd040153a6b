"""The farm with a pretended engine: order, failures as rows, crashes and hangs that cost one row, nobody left behind."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from datasets.measurement import Candidate, Measurement
from pipeline.measure.farm import GpuFarm
from pipeline.measure.settings import BuildSettings, ClockSettings, FarmSettings
from templates.errors import InputError
from templates.knob import config_text
from templates.template import load_template
from tests.test_build import GOOD, ended_within, fake_nvcc

ROOT = Path(__file__).resolve().parents[1]
MATMUL = load_template("matmul")
WORKLOAD = MATMUL.workload(M=512, N=512, K=512)


def settings(folder: Path, engine: str = "FakeEngine", body: str = GOOD, deadline_s: float = 10.0) -> FarmSettings:
    return FarmSettings(
        engine=f"tests.fake_engine:{engine}", log_dir=str(folder), deadline_s=deadline_s, gpus=[0],
        build=BuildSettings(nvcc=fake_nvcc(folder, body), cache_dir=str(folder / "cache"), jobs=1),
    )  # fmt: skip


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuFarm]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with GpuFarm(settings(tmp_path)) as opened:
        yield opened


def config(**knobs: int) -> dict[str, int]:
    """A direct (no shared memory) config that is legal for any block_m and block_n asked for."""
    base = {**MATMUL.naive, **knobs}
    return base | {"thread_m": max(1, base["block_m"] * base["block_n"] // 1024)}


def candidates(*configs: dict[str, int]) -> list[Candidate]:
    return [Candidate(WORKLOAD, c, "guided") for c in configs]


FINE, OTHER = config(block_m=128, block_n=16), config(block_m=128, block_n=32)


def test_rows_come_in_order_with_their_origin_and_provenance(farm: GpuFarm) -> None:
    illegal = {**FINE, "thread_m": 1}
    first, second, third = farm.measure(candidates(FINE, illegal, OTHER))
    assert (first.status, second.status, third.status) == ("ok", "illegal", "ok")
    assert (first.time_us, third.time_us) == (116.0, 132.0)
    assert second.time_us is None and second.message
    assert first.origin == "guided" and first.source == "gpu" and first.gpu == "NVIDIA H200"
    assert first.nvcc == "13.0.88" and first.driver == "580.1" and first.template_version == MATMUL.version
    assert first.cache_hit is False and first.compile_s and first.measured_at
    assert first.conditions.sm_clock_after_mhz == 1980
    assert "best 116.0" in third.message, "the worker knows the best time so far"
    stats = farm.stats()
    assert stats["measured"] == 2 and 0 < stats["gpu_busy_share"] <= 1 and stats["build_misses"] >= 2


def test_configs_set_aside_are_listed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    slow = dataclasses.replace(settings(tmp_path).build, slow_compile_s=0.0)
    with GpuFarm(dataclasses.replace(settings(tmp_path), build=slow)) as farm:
        list(farm.measure(candidates(FINE)))
        labels = [entry.label for entry in farm.aside()]
        assert f"matmul {config_text(FINE)}" in labels and farm.set_aside_s(candidates(FINE)[0]) > 0


def test_the_vendors_kernel_goes_through_the_same_farm(farm: GpuFarm) -> None:
    row = farm.measure_vendor(WORKLOAD)
    assert (row.status, row.time_us, row.origin, row.config) == ("ok", 50.0, "vendor", {})
    assert row.message == "pipeline.baselines.vendor:prepare"


@pytest.mark.parametrize(
    ("block_m", "status", "says"),
    [
        (16, "crash", "exit status 3"), (32, "crash", "SIGKILL"), (64, "crash", "SIGSEGV"),
        (256, "crash", "ValueError: a fault of ours"),
    ],
)  # fmt: skip
def test_a_crash_costs_one_row_and_the_next_candidate_is_measured(
    farm: GpuFarm, tmp_path: Path, block_m: int, status: str, says: str
) -> None:
    bad = config(block_m=block_m, block_n=16)
    before, culprit, after = farm.measure(candidates(FINE, bad, OTHER))
    assert (before.status, culprit.status, after.status) == ("ok", status, "ok")
    assert says in culprit.message and "check" in culprit.message and "\n" not in culprit.message
    assert "job 1," in after.message, "a new worker"
    assert farm.stats()["restarts"] == 1
    log = (tmp_path / "worker-0.log").read_text()
    assert f"measure {WORKLOAD} " in log and f"block_m={block_m}" in log, "the intent was logged before the launch"


def test_a_hang_becomes_a_timeout_row_within_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with GpuFarm(settings(tmp_path, deadline_s=1.0)) as farm:
        started = time.monotonic()
        culprit, after = farm.measure(candidates(config(block_m=8, block_n=16), FINE))
        assert time.monotonic() - started < 8
    assert culprit.status == "timeout" and culprit.message == "no answer within 1 s (check)"
    assert after.status == "ok"


def test_compile_failures_are_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    body = "if grep -q reference $1 || grep -q splitmix $1; then " + GOOD + "exit 0; fi; echo 'error: bad'; exit 1"
    with GpuFarm(settings(tmp_path, body=body)) as farm:
        (row,) = farm.measure(candidates(FINE))
    assert (row.status, row.message, row.time_us) == ("compile_error", "error: bad", None)


def test_look_ahead_is_bounded_and_leaving_early_drops_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    taken: list[int] = []

    class Watched(list[Candidate]):
        def __iter__(self) -> Iterator[Candidate]:
            for i in range(100):
                taken.append(i)
                yield Candidate(WORKLOAD, FINE)

    with GpuFarm(dataclasses.replace(settings(tmp_path), look_ahead=4)) as farm:
        rows = farm.measure(Watched())
        next(rows)
        assert len(taken) == 4
        rows.close()  # type: ignore[attr-defined]
        (row,) = farm.measure(candidates(OTHER))
    assert row.status == "ok"


def test_no_gpu_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(InputError, match="no usable GPU"):
        GpuFarm(settings(tmp_path, "NoGpuEngine"))
    with pytest.raises(InputError, match="GPU 3 is not there; 1 visible"):
        GpuFarm(settings(tmp_path), [3])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(InputError, match="no GPU to measure on"):
        GpuFarm(dataclasses.replace(settings(tmp_path), gpus=[]))


def test_a_worker_that_never_comes_back_ends_the_run_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("DIE_AFTER", str(tmp_path / "started"))
    monkeypatch.setattr("pipeline.measure.farm.RESTARTS", 1)
    rows: list[Measurement] = []
    with GpuFarm(settings(tmp_path, "DyingEngine")) as farm, pytest.raises(InputError, match="no GPU is left") as caught:
        for row in farm.measure(candidates(config(block_m=16, block_n=16), FINE, OTHER)):
            rows.append(row)
    assert [row.status for row in rows] == ["crash"]
    assert "\n" not in str(caught.value)


def test_two_gpus_share_the_work_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with GpuFarm(dataclasses.replace(settings(tmp_path), gpus=[])) as farm:
        assert [worker.number for worker in farm.workers] == [0, 1]
        rows = list(farm.measure(candidates(*[FINE, config(block_m=16, block_n=16), OTHER] * 3)))
    assert [row.status for row in rows] == ["ok", "crash", "ok"] * 3
    assert {name.name for name in tmp_path.glob("worker-*.log")} == {"worker-0.log", "worker-1.log"}


def test_dedicated_without_nvml_is_refused_and_nothing_is_left_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("CUDA_AGENT_CLOCKS", raising=False)
    monkeypatch.setattr("pipeline.measure.clocks.load_nvml", lambda module="pynvml": None)
    with pytest.raises(InputError, match="cannot lock the GPU's clocks"):
        GpuFarm(dataclasses.replace(settings(tmp_path), clocks=ClockSettings(mode="dedicated")))


@pytest.mark.parametrize("block_m", [8, 128])
def test_a_killed_farm_takes_its_workers_with_it(tmp_path: Path, block_m: int) -> None:
    """Also when the worker is in the middle of a hanging candidate (block_m=8)."""
    owner = (
        "import sys, time\nfrom pathlib import Path\nfrom tests.test_farm import *\n"
        f"farm = GpuFarm(settings(Path({str(tmp_path)!r}), deadline_s=30.0))\n"
        "print(farm.workers[0]._process.pid, flush=True)\n"
        f"list(farm.measure(candidates(config(block_m={block_m}, block_n=16))))\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", owner], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "0"},
    )  # fmt: skip
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    time.sleep(1.0)
    assert not ended_within(worker, 0.1)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert ended_within(worker, 10.0)
