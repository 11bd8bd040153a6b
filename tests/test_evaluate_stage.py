"""The evaluate stage by replay: a small recording of fake times, a small cost model, the files that a run leaves."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cost_model.model import CostModel, CostModelSettings
from datasets import split, store
from datasets.device import H200
from datasets.measurement import Candidate
from pipeline.evaluate import journal_of, main, trained_on
from pipeline.measure.fake import FakeMeasurer
from pipeline.runs import Run, write_json
from templates import space
from templates.errors import InputError
from templates.knob import config_text
from templates.template import load_template
from templates.workload import Workload

TEMPLATE = load_template("matmul")
LISTS = split.workloads("matmul")
TRAIN, TEST = LISTS["train"][:3], LISTS["test"][2:4]
SMALL_MODEL = CostModelSettings(members=2, trees=20, depth=4, threads=1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording and a fitted cost model."""
    root = tmp_path_factory.mktemp("evaluate")
    sound, failing = FakeMeasurer(H200), FakeMeasurer(H200, fail_rate=0.05)
    for workload in (*TRAIN, *TEST):
        anchors, drawn = candidates(workload)
        store.append(root / "recorded", [*sound.measure(anchors), *failing.measure(drawn)])
    H200.save(root / "recorded" / H200.key / "device.json")
    fit(root, TRAIN)
    return root


def candidates(workload: Workload) -> tuple[list[Candidate], list[Candidate]]:
    """Naive, expert and the vendor's; random ones."""
    rng = np.random.default_rng([1, *str(workload).encode()])
    naive, expert = (space.canonical_config(TEMPLATE, c) for c in (TEMPLATE.naive, TEMPLATE.expert(workload)))
    drawn = space.sample(TEMPLATE, workload, H200.limits, 80, rng)
    anchors = [Candidate(workload, naive, "naive"), Candidate(workload, expert, "expert"), Candidate(workload, {}, "vendor")]
    return anchors, [Candidate(workload, config, "random") for config in drawn]


def fit(root: Path, workloads: list[Workload]) -> None:
    frame = store.load(root / "recorded")
    rows = frame[frame["workload"].isin([str(w) for w in workloads]) & (frame["config"] != "")]
    CostModel.fit(rows, H200, SMALL_MODEL).save(root / "outputs" / "fit" / "one" / "cost_model")
    link = root / "outputs" / "fit" / "latest-matmul"
    if not link.exists():
        link.symlink_to("one")


def run(root: Path, *more: str) -> int:
    named = ",".join(f"'{w}'" for w in TEST)
    return main.run(
        ["op=matmul", f"outputs_dir={root / 'outputs'}", f"recorded_dir={root / 'recorded'}", f"data_dir={root / 'data'}", 
         "gpu=replay", f"evaluate.workloads=[{named}]", "evaluate.seeds=2", "evaluate.ks=[0,1,6]", *more]
    )  # fmt: skip


CONTROLS = "evaluate.methods=[naive,expert,random,random_ranked,one_config,nearest,cost_model,cost_model_refit,vendor]"


def test_a_replay_leaves_records_tables_seeds_and_a_picture(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(place, CONTROLS) == 0
    folder = place / "outputs" / "evaluate" / "latest"
    summary = json.loads((folder / "summary.json").read_text())
    records = summary["records"]
    assert len(records) == 2 * (8 * 3 + 1)
    assert {r["source"] for r in records} == {"replay"} and {r["split"] for r in records} == {"test"}
    assert all(0 <= r["fraction_of_best"] <= 1 for r in records if r["method"] != "vendor")
    naive = [r for r in records if r["method"] == "naive"]
    assert all(r["speedup_over_naive"] == pytest.approx(1.0) for r in naive)
    assert set(summary["best_known"]) == {str(w) for w in TEST}
    assert (folder / "regret.png").stat().st_size > 10_000 and "<svg" in (folder / "regret.svg").read_text()
    assert len(pd.read_parquet(folder / "seeds.parquet")) == 2 * (8 * 3 * 2 + 1)
    printed = capsys.readouterr().out
    assert "replays recorded NVIDIA H200 timings" in printed and "best known" in printed and str(folder.resolve()) in printed
    assert printed.split("results:")[0].strip() == (folder / "tables.md").read_text().strip()


def test_the_same_seed_gives_the_same_records(place: Path) -> None:
    found = []
    for _ in range(2):
        assert run(place, "evaluate.methods=[random,cost_model_refit]", "resume=false") == 0
        found.append(json.loads((place / "outputs" / "evaluate" / "latest" / "summary.json").read_text())["records"])
    assert found[0] == found[1]


def test_a_cost_model_that_saw_a_test_workload_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(place, [*TRAIN, TEST[1]])
    try:
        assert run(place, CONTROLS) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert f"the cost model was trained on {TEST[1]}" in error
    finally:
        fit(place, TRAIN)


def test_a_workload_outside_the_split_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(place, f"evaluate.workloads=['{TRAIN[0]}']") == 2
    assert "is not in the test list" in capsys.readouterr().err


def test_without_a_policy_it_says_what_to_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(place, "evaluate.methods=[policy]") == 2
    assert "make pretrain" in capsys.readouterr().err


def test_a_policy_names_what_it_was_trained_on(tmp_path: Path) -> None:
    watched = [{"workload": "b", "split": "train"}, {"workload": "c", "split": "validation"}]
    write_json(tmp_path / "summary.json", {"workloads": ["a", *watched]})
    assert trained_on(tmp_path) == ["a", "b"]
    write_json(tmp_path / "summary.json", {})
    with pytest.raises(InputError, match="train it again"):
        trained_on(tmp_path)


def test_a_journal_gives_back_what_was_saved_to_it(tmp_path: Path) -> None:
    from pipeline.config import settings

    folder = Run("evaluate", tmp_path, settings(), tmp_path)
    journal = journal_of(folder)
    assert list(journal.earlier) == []
    anchors, drawn = candidates(TEST[0])
    saved = [replace(m, source="gpu") for m in FakeMeasurer(H200, fail_rate=0.2).measure([*anchors, *drawn[:10]])]
    journal.save(saved[:5])
    journal.save(saved[5:])
    found = journal_of(folder).earlier
    assert {(str(m.workload), config_text(m.config), m.status, m.time_us) for m in found} == {
        (str(m.workload), config_text(m.config), m.status, m.time_us) for m in saved
    }


def test_a_workload_without_a_recording_is_left_out_and_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(place, "evaluate.workloads=[]", "evaluate.methods=[naive,expert]", "resume=false") == 0
    summary = json.loads((place / "outputs" / "evaluate" / "latest" / "summary.json").read_text())
    assert set(summary["best_known"]) == {str(w) for w in TEST}
    assert summary["left_out"] == [str(w) for w in LISTS["test"] if w not in TEST]
    assert f"left out, for want of recorded timings or of time (evaluate.budget_s): {LISTS['test'][0]}" in capsys.readouterr().out


def test_a_named_workload_without_a_recording_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(place, f"evaluate.workloads=['{TEST[0]}','{LISTS['test'][0]}']") == 2
    assert f"{LISTS['test'][0]}: nothing recorded to replay" in capsys.readouterr().err
