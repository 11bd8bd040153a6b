"""The stage `fit`: learns from training workloads alone, reports on others, saves what later stages load."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cost_model.fit import main
from cost_model.fitting import FitSettings, by_split, fit
from cost_model.model import CostModel, CostModelSettings
from cost_model.report import scores
from datasets import split, store
from datasets.device import H200
from datasets.measurement import Candidate, Measurement
from datasets.schema import frame_of
from pipeline.measure.fake import FakeMeasurer
from templates.space import sample
from templates.template import load_template

TEMPLATE = load_template("matmul")
FEW = CostModelSettings(members=2, trees=40, depth=5, learning_rate=0.2, threads=1)


def measured(rows: int) -> list[Measurement]:
    """Random rows on every workload of every split, as a fake GPU times them."""
    rng, fake = np.random.default_rng(0), FakeMeasurer(H200, noise=0.02)
    workloads = [workload for items in split.workloads("matmul").values() for workload in items]
    asked = [Candidate(w, c) for w in workloads for c in sample(TEMPLATE, w, H200.limits, rows, rng)]
    return list(fake.measure(asked))


@pytest.fixture(scope="module")
def everything() -> list[Measurement]:
    return measured(40)


@pytest.fixture(scope="module")
def frame(everything: list[Measurement]) -> pd.DataFrame:
    return frame_of(everything)


def test_unseen_workloads_are_reported_and_ranked() -> None:
    report = fit(frame_of(measured(80)), H200, FEW, FitSettings(report_test=True))
    lists = split.workloads("matmul")
    for name in ("validation", "test"):
        assert {score.workload for score in report.scores[name]} == set(lists[name])
        assert np.mean([score.spearman for score in report.scores[name]]) > 0.6
        assert all(0 <= score.regret_10 <= score.regret_1 < 1 for score in report.scores[name])


def test_only_training_workloads_are_learnt(frame: pd.DataFrame) -> None:
    report = fit(frame, H200, FEW)
    assert {w for w, _ in report.model.data.means} == set(split.workloads("matmul")["train"])
    assert set(report.scores) == {"validation"}


def test_changing_the_test_rows_changes_nothing_that_is_saved(frame: pd.DataFrame, tmp_path: Path) -> None:
    held_out = ~frame["workload"].isin(by_split(frame)["train"]["workload"])
    spoilt = frame.assign(time_us=np.where(held_out, 1e6 / frame["time_us"], frame["time_us"]))
    for name, rows in (("one", frame), ("other", spoilt)):
        fit(rows, H200, FEW, FitSettings(report_test=True)).model.save(tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        if path.suffix != ".npz":  # a zip holds the time of writing
            assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes(), path.name


def test_regret_is_what_the_ranking_costs(frame: pd.DataFrame) -> None:
    rows = by_split(frame)["validation"]
    perfect = scores(rows, lambda _, found: found["time_us"].to_numpy())
    assert {(s.regret_1, s.regret_10) for s in perfect} == {(0.0, 0.0)} and min(s.spearman for s in perfect) > 0.999
    worst = scores(rows, lambda _, found: -found["time_us"].to_numpy())
    assert all(score.regret_1 > 0.5 and score.spearman < -0.99 for score in worst)


def test_ablation_reports_every_variant(frame: pd.DataFrame) -> None:
    lists = split.workloads("matmul")
    some = frame[frame["workload"].isin([str(w) for w in (*lists["train"][:3], *lists["validation"][:1])])]
    report = fit(some, H200, FEW, FitSettings(ablation=True, ablation_rows=5))
    assert {"all", "with ast_", "without d_"} <= set(report.ablation)
    spearman = {name: np.mean([s.spearman for s in found]) for name, found in report.ablation.items()}
    assert len({round(float(value), 6) for value in spearman.values()}) > 1


def test_stage_prints_a_table_and_leaves_a_model_and_a_summary(
    everything: list[Measurement], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = tmp_path / "recorded"
    store.append(recorded, everything)
    H200.save(recorded / H200.key / "device.json")
    few = [f"cost_model.{name}={getattr(FEW, name)}" for name in ("members", "trees", "depth", "learning_rate", "threads")]
    folders = ["op=matmul", f"outputs_dir={tmp_path / 'outputs'}", f"data_dir={tmp_path / 'data'}", f"recorded_dir={recorded}"]
    assert main.run([*few, *folders, "gpu=replay"]) == 0
    latest = tmp_path / "outputs" / "fit" / "latest"
    assert "regret at 10" in (printed := capsys.readouterr().out) and "validation" in printed
    summary = json.loads((latest / "summary.json").read_text())
    assert summary["rows"] == 40 * len(split.workloads("matmul")["train"]) and len(summary["scores"]["validation"]) == 3
    assert CostModel.load(latest / "cost_model").template is TEMPLATE


def test_stage_without_data_says_so_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = tmp_path / "recorded"
    (recorded / H200.key).mkdir(parents=True)
    H200.save(recorded / H200.key / "device.json")
    folders = ["op=matmul", f"outputs_dir={tmp_path / 'outputs'}", f"data_dir={tmp_path / 'data'}", f"recorded_dir={recorded}"]
    assert main.run([*folders, "gpu=replay"]) == 2
    assert "make collect" in capsys.readouterr().err.splitlines()[-1]
