"""The front door: a run's folder, how it ends, how it goes on."""

import copy
import errno
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import DictConfig

from pipeline import config, run_folder, runs
from pipeline.config import Settings
from pipeline.progress import Progress, duration, progress
from pipeline.runs import Run, Stage, latest
from templates.errors import InputError

COMPOSE = config.compose_config
Work = Callable[[Settings, Run], Any]


@pytest.fixture(autouse=True)
def _composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra takes a third of a second; plain overrides of these three keys need it only once."""

    def compose(overrides: Sequence[str]) -> DictConfig:
        pairs = [override.partition("=") for override in overrides]
        if not {key for key, _, _ in pairs} <= {"outputs_dir", "seed", "resume"}:
            return COMPOSE(overrides)
        cfg = copy.deepcopy(base())
        for key, _, value in pairs:
            cfg[key] = value
        return cfg

    monkeypatch.setattr(config, "compose_config", compose)


@cache
def base() -> DictConfig:
    return COMPOSE([])


def run_stage(work: Work, outputs: Path, *overrides: str) -> int:
    return Stage("demo", work).run([f"outputs_dir={outputs}", *overrides])


def raising(error: BaseException) -> Work:
    def work(settings: Settings, run: Run) -> None:
        (run.folder / "half.txt").write_text("half")
        raise error

    return work


def folders(outputs: Path) -> list[Path]:
    return [f for f in sorted((outputs / "demo").iterdir()) if f.is_dir() and not f.is_symlink()]


def test_a_run_leaves_config_versions_seed_log_and_summary(tmp_path: Path) -> None:
    def work(settings: Settings, run: Run) -> None:
        run.log.info("decided something")
        run.write_summary({"answer": 42})

    assert run_stage(work, tmp_path, "seed=7") == 0
    folder = latest("demo", tmp_path)
    assert folder is not None
    assert "seed: 7" in (folder / "config.yaml").read_text()
    versions = json.loads((folder / "versions.json").read_text())
    assert versions["seed"] == 7
    assert versions["packages"]["numpy"] == np.__version__
    assert "decided something" in (folder / "log.txt").read_text()
    assert json.loads((folder / "summary.json").read_text()) == {"answer": 42}


def test_latest_is_the_last_complete_run(tmp_path: Path) -> None:
    assert latest("demo", tmp_path) is None
    assert run_stage(lambda s, r: None, tmp_path, "seed=1") == 0
    good = latest("demo", tmp_path)
    assert run_stage(raising(InputError("no")), tmp_path, "seed=2") == 2
    assert latest("demo", tmp_path) == good
    assert run_stage(lambda s, r: None, tmp_path, "seed=3") == 0
    assert latest("demo", tmp_path) not in (good, None)


def test_a_stage_takes_the_run_before_it_on_its_own_operator(tmp_path: Path) -> None:
    found: list[Path] = []
    assert run_stage(lambda s, r: None, tmp_path, "seed=1") == 0
    on_matmul = latest("demo", tmp_path)
    assert run_stage(lambda s, r: None, tmp_path, "op=softmax") == 0
    assert latest("demo", tmp_path) != on_matmul
    assert run_stage(lambda s, r: found.append(r.need("demo")), tmp_path, "seed=2") == 0
    assert found == [on_matmul]
    assert run_stage(lambda s, r: found.append(r.need("demo")), tmp_path, "op=layernorm") == 2


ENDS = {
    "bad input": (InputError("shape 0: use 1 or more"), 2, "shape 0"),
    "full disk": (OSError(errno.ENOSPC, "No space left on device", "/x"), 2, "disk is full"),
    "full disk, as Arrow says it": (OSError("IOError: No space left on device"), 2, "disk is full"),
    "read-only": (OSError(errno.EROFS, "Read-only file system", "/x"), 2, "read-only"),
    "Ctrl-C": (KeyboardInterrupt(), 130, "the same command continues in"),
    "a fault of ours": (TypeError("wrong\nthing"), 1, "traceback is in"),
}


@pytest.mark.parametrize("name", ENDS)
def test_every_bad_end_is_one_line_and_a_status(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error, status, line = ENDS[name]
    assert run_stage(raising(error), tmp_path) == status
    said = [text for text in capsys.readouterr().err.splitlines() if "runs in" not in text]
    assert len(said) == 1
    assert said[0].startswith("demo: ")
    assert line in said[0]


def test_the_traceback_of_a_fault_is_in_the_log_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_stage(raising(ZeroDivisionError("oh")), tmp_path) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert "Traceback" in (folders(tmp_path)[0] / "log.txt").read_text()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), RuntimeError("x"), InputError("x")])
def test_the_same_command_continues_an_unfinished_run(error: BaseException, tmp_path: Path) -> None:
    run_stage(raising(error), tmp_path)
    seen = []
    assert run_stage(lambda s, r: seen.append((r.resumed, (r.folder / "half.txt").read_text())), tmp_path) == 0
    assert seen == [(True, "half")]
    assert len(folders(tmp_path)) == 1
    assert run_stage(lambda s, r: seen.append((r.resumed, "")), tmp_path) == 0
    assert seen[1] == (False, "")


def test_other_settings_or_resume_false_start_afresh(tmp_path: Path) -> None:
    run_stage(raising(KeyboardInterrupt()), tmp_path)
    fresh = []
    assert run_stage(lambda s, r: fresh.append(r.resumed), tmp_path, "seed=1") == 0
    run_stage(raising(KeyboardInterrupt()), tmp_path, "resume=false")
    assert run_stage(lambda s, r: fresh.append(r.resumed), tmp_path, "resume=false") == 0
    assert fresh == [False, False]


def test_a_run_that_is_still_going_is_not_continued_by_another(tmp_path: Path) -> None:
    inner: list[bool] = []

    def work(settings: Settings, run: Run) -> None:
        if not inner:
            run_stage(lambda s, r: inner.append(r.resumed), tmp_path)

    assert run_stage(work, tmp_path) == 0
    assert inner == [False]
    assert len(folders(tmp_path)) == 2


def test_bad_input_before_anything_was_done_leaves_no_folder(tmp_path: Path) -> None:
    def work(settings: Settings, run: Run) -> None:
        raise InputError("no such thing")

    assert run_stage(work, tmp_path) == 2
    assert folders(tmp_path) == []


def test_a_disk_that_is_full_from_the_start_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    monkeypatch.setattr(runs, "find_or_make", full)
    assert run_stage(lambda s, r: None, tmp_path) == 2
    assert "disk is full" in capsys.readouterr().err


def test_typos_and_unknown_operators_stop_before_a_folder_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for override in ("sed=1", "op=matmull"):
        assert run_stage(lambda s, r: None, tmp_path, override) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "demo").exists()


def test_a_stage_that_needs_another_says_which_command_makes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_stage(lambda s, r: r.need("fit"), tmp_path) == 2
    assert "make fit" in capsys.readouterr().err


def test_random_numbers_depend_on_seed_and_purpose_only(tmp_path: Path) -> None:
    drawn: list[tuple[float, float]] = []

    def work(settings: Settings, run: Run) -> None:
        drawn.append((run.rng("a").random(), run.rng("b").random()))

    for seed in ("seed=1", "seed=1", "seed=2"):
        run_stage(work, tmp_path, seed)
    assert drawn[0] == drawn[1]
    assert len({*drawn[0], *drawn[2]}) == 4


def test_handlers_of_the_log_are_taken_away_again(tmp_path: Path) -> None:
    before = list(logging.getLogger().handlers), signal.getsignal(signal.SIGTERM)
    run_stage(raising(RuntimeError("x")), tmp_path)
    assert (list(logging.getLogger().handlers), signal.getsignal(signal.SIGTERM)) == before


def test_summary_is_whole_or_absent(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        run_folder.write_json(tmp_path / "summary.json", {"x": float("nan")})
    assert not (tmp_path / "summary.json").exists()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # threads that XGBoost left, unused by the child
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_told_to_end_cleans_up(number: int, tmp_path: Path) -> None:
    def work(settings: Settings, run: Run) -> None:
        try:
            (tmp_path / "ready").touch()
            time.sleep(60)
        finally:
            (run.folder / "cleaned").touch()

    def child() -> None:
        sys.stderr = (tmp_path / "stderr").open("w")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os._exit(run_stage(work, tmp_path))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    deadline = time.monotonic() + 30
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(timeout=30)
    assert process.exitcode == 130
    assert "the same command continues" in (tmp_path / "stderr").read_text()
    assert (folders(tmp_path)[0] / "cleaned").exists()


def test_progress_says_rate_and_time_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with progress(40, "measuring") as bar:
        now[0] += 5.0
        bar.advance(5)
        now[0] += 5.0
        bar.advance(5, note="best 12 us")
    line = capsys.readouterr().err.splitlines()
    assert line[0] == "measuring: 10/40, 1.0/s, 30 s left, best 12 us"


def test_work_that_begins_late_has_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bar = progress(10, "learning")
    now[0] += 1000.0
    bar.advance(0)
    now[0] += 2.0
    bar.advance(4)
    assert bar.rate == pytest.approx(2.0)


def test_progress_iterates_and_is_silent_when_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress([1, 2, 3], "counting")) == [1, 2, 3]
    assert capsys.readouterr().err == ""
    assert Progress([1, 2], "x").total == 2


def test_durations_read_like_a_clock() -> None:
    assert [duration(s) for s in (9, 75, 3700)] == ["9 s", "1 min 15 s", "1 h 01 min"]


def test_a_run_begun_on_something_else_is_not_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu = ["A", "B", "A"]

    def work(settings: Settings, run: Run) -> None:
        run.stands_on(gpu=gpu.pop(0))
        (run.folder / "half.txt").write_text("half")
        if len(gpu) == 2:
            raise KeyboardInterrupt

    assert run_stage(work, tmp_path) == 130
    assert run_stage(work, tmp_path) == 2
    assert "begun with gpu A, now it is B" in capsys.readouterr().err
    assert run_stage(work, tmp_path) == 0
    assert len(folders(tmp_path)) == 1


def test_a_state_cut_off_by_a_power_failure_is_an_unfinished_run(tmp_path: Path) -> None:
    assert run_stage(raising(KeyboardInterrupt()), tmp_path) == 130
    (folders(tmp_path)[0] / "state.json").write_text("")
    assert run_stage(lambda settings, run: None, tmp_path) == 0
    assert len(folders(tmp_path)) == 1


def test_an_outputs_dir_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run_stage(lambda settings, run: None, tmp_path / "file") == 2
    assert "cannot be made" in capsys.readouterr().err


def test_damaged_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    for text in ("", "[1]", '{"a": '):
        path.write_text(text)
        with pytest.raises(InputError, match="checkpoint.json: damaged"):
            run_folder.read_json(path)
