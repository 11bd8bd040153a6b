"""Training scalars: a CSV always, TensorBoard's files where it is installed."""

import sys
from pathlib import Path

import pytest

from pipeline.scalars import mean_regret, note_losses, tensorboard


def test_losses_are_lines_under_one_header(tmp_path: Path) -> None:
    path = tmp_path / "losses.csv"
    note_losses(path, 10, {"v": 0.5, "q": 2.0})
    note_losses(path, 20, {"v": 0.25, "q": 1.0})
    assert path.read_text().split() == ["step,v,q", "10,0.5,2", "20,0.25,1"]


def test_regret_is_the_mean_over_workloads_with_both_times() -> None:
    assert mean_regret([50.0, None, 90.0, 10.0], [100.0, 5.0, 90.0, None]) == pytest.approx(0.25)
    assert mean_regret([None], [1.0]) is None


def test_without_tensorboard_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with tensorboard(tmp_path) as note:
        note(1, {"losses/q": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_scalars_can_be_read_back_and_a_resumed_run_supersedes(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tensorboard(tmp_path) as note:
        for step in (1, 2, 3):
            note(step, {"losses/q": float(step), "returns/mean": 0.5})
    with tensorboard(tmp_path, 2) as note:  # interrupted after step 2 was saved
        note(3, {"losses/q": 30.0})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("losses/q")] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert [e.value for e in events.Scalars("returns/mean")] == [0.5, 0.5]
