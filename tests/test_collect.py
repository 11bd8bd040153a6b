"""Collecting: what is measured, in which order, what a break costs, what a machine without a GPU does."""

import errno
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from datasets import store
from datasets.device import H200
from datasets.measurement import Candidate, Measurement
from datasets.spool import Spool
from pipeline import collect, worlds
from pipeline.archive import Archive
from pipeline.collection import Collector, Tally
from pipeline.measure.build import Aside
from pipeline.measure.fake import FakeMeasurer
from pipeline.plan import CollectSettings, rows
from pipeline.progress import progress
from pipeline.search import GuidedSettings
from templates.template import load_template
from templates.workload import Workload

TEMPLATE = load_template("matmul")
WORKLOADS = [TEMPLATE.workload(M=m, N=512, K=512) for m in (256, 512, 1024)]
QUICK = GuidedSettings(trees=20, depth=4, members=1, fresh=32, evaluations=200, threads=1)
SETTINGS = CollectSettings(random=20, guided=8, batch=4, vendor=False, budget_s=0.0, guide=QUICK)


class Machine(FakeMeasurer):
    """A pretended farm that counts what it measured, and can break."""

    def __init__(self, fail_rate: float = 0.0, breaks_after: int | None = None, error: BaseException | None = None) -> None:
        super().__init__(H200, fail_rate=fail_rate)
        self.measured: list[Candidate] = []
        self.breaks_after, self.error, self.closed = breaks_after, error, False

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Measurement]:
        for candidate in candidates:
            if self.error is not None and len(self.measured) == self.breaks_after:
                raise self.error
            self.measured.append(candidate)
            yield replace(self._row(candidate), template_version=TEMPLATE.version)

    def stats(self) -> dict[str, float]:
        return {"gpu_busy_share": 0.5}

    def close(self) -> None:
        self.closed = True


def gather(machine: Machine, root: Path, settings: CollectSettings = SETTINGS, seed: int = 0) -> Tally:
    with Spool(root) as spool:
        archive = Archive(TEMPLATE, H200)
        archive.add_frame(rows(TEMPLATE, H200, [root]))
        collector = Collector(machine, archive, settings, seed, spool)
        with progress(collector.wanted(WORKLOADS), "measuring") as bar:
            return collector.run(WORKLOADS, bar)


def test_counts_are_met_and_no_config_is_measured_twice(tmp_path: Path) -> None:
    machine = Machine(fail_rate=0.2)
    tally = gather(machine, tmp_path)
    frame = store.load(tmp_path)
    counts = frame.groupby(["workload", "origin"]).size().unstack()
    assert (counts["random"] == 20).all()
    assert (counts["guided"] == 8).all()
    assert not frame.duplicated(["workload", "config"]).any()
    assert tally.measured == len(frame) == len(machine.measured)
    assert tally.statuses["wrong_answer"] > 0


def test_naive_and_expert_come_first_and_workloads_take_turns(tmp_path: Path) -> None:
    machine = Machine()
    gather(machine, tmp_path)
    n = len(WORKLOADS)
    assert [c.origin for c in machine.measured[: 2 * n]] == ["expert"] * n + ["naive"] * n
    assert [c.workload for c in machine.measured[2 * n : 3 * n]] == WORKLOADS


def test_every_workload_gets_random_configs_of_its_own(tmp_path: Path) -> None:
    machine = Machine()
    gather(machine, tmp_path)
    drawn = [{str(c.config) for c in machine.measured if c.workload == w and c.origin == "random"} for w in WORKLOADS]
    assert len(set.union(*drawn)) > 0.9 * sum(map(len, drawn))


def test_the_vendor_is_measured_once_and_left_out_where_it_fails(tmp_path: Path) -> None:
    class NoVendor(Machine):
        def _row(self, candidate: Candidate) -> Measurement:
            if candidate.origin == "vendor":
                return Measurement(candidate.workload, {}, "launch_error", "no CUDA in PyTorch", origin="vendor")
            return super()._row(candidate)

    settings = replace(SETTINGS, vendor=True, guided=0)
    gather(NoVendor(), tmp_path, settings)
    assert "vendor" not in set(store.load(tmp_path)["origin"])
    gather(Machine(), tmp_path, settings)
    gather(Machine(), tmp_path, settings)
    assert (store.load(tmp_path)["origin"] == "vendor").sum() == len(WORKLOADS)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("the farm died")])
def test_a_break_loses_nothing_measured_and_a_second_run_repeats_nothing(error: BaseException, tmp_path: Path) -> None:
    broken = Machine(breaks_after=30, error=error)
    with pytest.raises(type(error)):
        gather(broken, tmp_path)
    assert len(store.load(tmp_path)) == 30
    second = Machine()
    gather(second, tmp_path)
    first, then = ({(str(c.workload), str(c.config)) for c in m.measured} for m in (broken, second))
    assert first & then == set()
    assert len(store.load(tmp_path)) == len(WORKLOADS) * (20 + 8 + 2)


def test_a_finished_collection_measures_nothing_more(tmp_path: Path) -> None:
    gather(Machine(), tmp_path)
    second = Machine()
    assert gather(second, tmp_path).measured == 0
    assert second.measured == []


def test_the_budget_stops_it_and_says_so(tmp_path: Path) -> None:
    tally = gather(Machine(), tmp_path, replace(SETTINGS, random=200, budget_s=0.01))
    assert tally.stopped_early
    assert 0 <= tally.measured < len(WORKLOADS) * 200
    frame_rows = len(store.load(tmp_path)) if tally.measured else 0
    assert frame_rows == tally.measured


def test_the_last_quarter_of_cache_hits_is_what_it_says() -> None:
    tally = Tally(hits=[False] * 6 + [True, False])
    assert tally.hit_rate() == pytest.approx(1 / 8)
    assert tally.hit_rate(0.25) == pytest.approx(0.5)
    assert Tally().hit_rate() is None


# --- the stage ---


def run(tmp_path: Path, *overrides: str) -> int:
    small = ["collect.random=6", "collect.guided=4", "collect.batch=4", "collect.guide.trees=10", "collect.guide.evaluations=100"]
    shapes = "collect.workloads=['matmul/f32/M=256,N=256,K=256']"
    return collect.main.run(["op=matmul", f"outputs_dir={tmp_path}", f"data_dir={tmp_path}/data", shapes, *small, *overrides])


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(worlds, "gpu_present", lambda: True)
    monkeypatch.setattr(worlds, "open_farm", lambda *_: made)
    return made


def test_the_stage_prints_a_table_and_leaves_a_summary(
    tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 0
    assert machine.closed
    out = capsys.readouterr().out
    assert "matmul/f32/M=256,N=256,K=256" in out
    summary = json.loads((tmp_path / "collect/latest/summary.json").read_text())
    assert summary["measured"] == 6 + 4 + 3
    assert summary["gpu_busy_share"] == 0.5
    assert (tmp_path / "data" / H200.key / "device.json").exists()


def test_what_is_set_aside_at_the_end_is_one_line_and_listed_in_the_summary(
    tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 0
    assert "set aside" not in capsys.readouterr().out
    machine.aside = lambda: [Aside("matmul a=1", 8.13, 100.0), Aside("matmul a=2", 3.2, 540.0)]  # type: ignore[attr-defined]
    assert run(tmp_path) == 0
    assert "set aside: 2 configs for compiles of 3.2 to 8.1 s, for up to 540 s more" in capsys.readouterr().out
    summary = json.loads((tmp_path / "collect/latest/summary.json").read_text())
    assert summary["set_aside"][0] == {"label": "matmul a=1", "compile_s": 8.13, "left_s": 100.0}
    assert collect.aside_line([Aside("", 4.0, 9.4)]).startswith("set aside: 1 config for a compile of 4.0 s, for up to 9 s more")


def test_a_full_disk_is_one_line_and_the_next_run_goes_on(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("datasets.store.os.fsync", full)
        assert run(tmp_path) == 2
    assert "disk is full" in capsys.readouterr().err
    assert run(tmp_path) == 0


def test_a_truncated_file_of_measurements_is_named(
    tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 0
    part = next((tmp_path / "data").rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:200])
    capsys.readouterr()
    assert run(tmp_path) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if str(part) in line]
    assert len(errors) == 1
    part.unlink()
    assert run(tmp_path) == 0


BAD = {
    "an unknown split": ("collect.splits=[tset]", "tset"),
    "an unknown operator": ("collect.workloads=['matmull/f32/M=1,N=1,K=1']", "matmul"),
    "a shape of 0": ("collect.workloads=['matmul/f32/M=0,N=1,K=1']", "M=0"),
    "a missing dimension": ("collect.workloads=['matmul/f32/M=1,N=1']", "M, N, K"),
    "an unknown dtype": ("collect.workloads=['matmul/f64/M=1,N=1,K=1']", "f64"),
    "no workload at all": ("collect.workloads=[nonsense]", "nonsense"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(name: str, tmp_path: Path, machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    override, names = BAD[name]
    extra = ["collect.workloads=[]"] if "splits" in override else []
    assert run(tmp_path, *extra, override) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "runs in" not in line]
    assert len(lines) == 1
    assert names in lines[0]


@pytest.mark.parametrize("mode", ["shared", "dedicated"])
def test_a_gpu_that_is_asked_for_and_not_there_is_one_line(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worlds, "gpu_present", lambda: False)
    assert run(tmp_path, f"gpu={mode}") == 2
    assert "gpu=replay" in capsys.readouterr().err


def recording(root: Path, rows: int = 8) -> None:
    """A small recording under root, as datasets/recorded holds one."""
    machine, workload = Machine(), Workload.parse("matmul/f32/M=256,N=256,K=256")
    archive = Archive(TEMPLATE, H200)
    with Spool(root) as spool, progress(1, "recording") as bar:
        Collector(machine, archive, replace(SETTINGS, random=rows, guided=0), 0, spool).run([workload], bar)
    H200.save(root / H200.key / "device.json")


def test_without_a_gpu_the_recording_is_checked_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worlds, "gpu_present", lambda: False)
    recording(tmp_path / "recorded")
    assert run(tmp_path, f"recorded_dir={tmp_path}/recorded") == 0
    captured = capsys.readouterr()
    assert "instead of measuring" in captured.err
    assert "rows: 10" in captured.out
    assert json.loads((tmp_path / "collect/latest/summary.json").read_text())["source"] == "replay"
    assert not (tmp_path / "data").exists()


def test_a_recording_with_an_impossible_row_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worlds, "gpu_present", lambda: False)
    recording(tmp_path / "recorded")
    workload = Workload.parse("matmul/f32/M=256,N=256,K=255")  # rows of A are not aligned: width_a=4 cannot be
    config = {**TEMPLATE.naive, "width_a": 4}
    row = Measurement(workload, config, "ok", time_us=1.0, gpu=H200.name, template_version=TEMPLATE.version)
    store.append(tmp_path / "recorded", [row])
    assert run(tmp_path, f"recorded_dir={tmp_path}/recorded") == 2
    assert "illegal" in capsys.readouterr().err


def test_no_recording_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worlds, "gpu_present", lambda: False)
    assert run(tmp_path, f"recorded_dir={tmp_path}/nowhere") == 2
    assert "no recording" in capsys.readouterr().err


def test_measurements_of_another_schema_version_are_refused(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as other:
        other.setattr("datasets.schema.SCHEMA_VERSION", 999)
        store.append(tmp_path / "data", [Machine()._row(Candidate(WORKLOADS[0], dict(TEMPLATE.naive)))])
    assert run(tmp_path) == 2
    assert "schema version 999" in capsys.readouterr().err


MISSING = {
    "nvcc": ("farm.build.nvcc=/nowhere/nvcc", "/nowhere/nvcc"),
    "gcc": ("farm.build.host_compiler=/nowhere/gcc", "/nowhere/gcc"),
}


@pytest.mark.parametrize("tool", MISSING)
def test_a_missing_compiler_is_one_line(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worlds, "gpu_present", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    override, names = MISSING[tool]
    engine = "farm.engine=tests.fake_engine:FakeEngine"
    assert run(tmp_path, engine, override, f"farm.build.cache_dir={tmp_path}/cache") == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("collect: ")
    assert names in lines[-1]
    assert "Traceback" not in "".join(lines)
