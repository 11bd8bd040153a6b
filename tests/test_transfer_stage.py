"""The transfer stage on small files: what it leaves, how it goes on, and what it says to bad input."""

import json
from pathlib import Path

import pytest
from spaces import space, write

from datasets.kernel_tuner_export import write_cache, write_t4
from pipeline import transfer


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three GPUs, and one of them again in the other format."""
    folder = tmp_path_factory.mktemp("caches")
    for name, best in (("GPU A", 64), ("GPU B", 64), ("GPU C", 16)):
        write_cache(space(name, best_block=best), folder / f"{name[-1]}.json.gz")
    write_t4(space("GPU C", best_block=16), folder / "again.json")
    return folder


def run(outputs: Path, folder: Path | str, *more: str) -> int:
    return transfer.main.run(
        [f"outputs_dir={outputs}", f"transfer.folder={folder}", "transfer.seeds=2", "transfer.budgets=[4,8]",
         "transfer.kernel_tuner=[]", "transfer.methods=[random,known_best,experts]", "cost_model.members=1",
         "cost_model.trees=10", "cost_model.threads=1", *more]
    )  # fmt: skip


def test_a_study_leaves_scores_for_every_gpu_method_and_budget(
    caches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, caches) == 0
    folder = tmp_path / "transfer" / "latest"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["gpus"] == {"toy": ["GPU A", "GPU B", "GPU C"]}
    assert len(summary["scores"]) == 3 * 2 * 4
    courses = [json.loads(line) for line in (folder / "courses.jsonl").read_text().splitlines()]
    assert len(courses) == 3 * 3 * 2 and all(len(course["times_us"]) == 8 for course in courses)
    printed = capsys.readouterr().out
    assert (folder / "tables.md").read_text().strip() in printed and "| known_best" in printed


def test_an_interrupted_study_goes_on_where_it_was(caches: Path, tmp_path: Path) -> None:
    assert run(tmp_path, caches) == 0
    folder = (tmp_path / "transfer" / "latest").resolve()
    journal = folder / "courses.jsonl"
    whole, tables = journal.read_text(), (folder / "tables.md").read_text()
    lines = whole.splitlines(keepends=True)
    journal.write_text("".join(lines[:7]) + lines[7][:20])
    (folder / "summary.json").unlink()
    (folder / "state.json").write_text('{"state": "unfinished"}')
    assert run(tmp_path, caches) == 0
    assert sorted(journal.read_text().splitlines()) == sorted(whole.splitlines())
    assert (folder / "tables.md").read_text() == tables


def test_kernel_tuners_strategies_run_beside_ours(caches: Path, tmp_path: Path) -> None:
    pytest.importorskip("kernel_tuner")
    assert run(tmp_path, caches, "transfer.kernel_tuner=[random_sample,pso,mls,greedy_ils]", "transfer.best=2") == 0
    summary = json.loads((tmp_path / "transfer" / "latest" / "summary.json").read_text())
    assert {s["method"] for s in summary["scores"]} >= {"kernel_tuner:pso", "kernel_tuner:mls"}
    tables = (tmp_path / "transfer" / "latest" / "tables.md").read_text()
    assert tables.split("\n\n")[1].count("kernel_tuner:") == 2


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["transfer.folder="], "name the folder"),
        (["transfer.folder=/nowhere"], "no .json or .json.gz files"),
        (["transfer.methods=[luck]"], "luck unknown; known: random"),
        (["transfer.kernel_tuner=[luck]"], "'luck' is unknown; known: adaptive"),
        (["transfer.budgets=[]"], "must be 1 or more"),
    ],
)
def test_bad_settings_are_one_line(
    more: list[str], complaint: str, caches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, caches, *more) == 2
    assert complaint in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_broken_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "broken.json", '{"cache": 7}')
    assert run(tmp_path / "out", tmp_path) == 2
    assert "broken.json: neither a Kernel Tuner cache" in capsys.readouterr().err
