"""The Makefile: it explains itself, chains the stages, and says what is missing."""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STAGES = ("collect", "fit", "pretrain", "finetune", "evaluate")


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    command = [shutil.which("make") or "make", "--no-print-directory", *arguments]
    every = {**clean, **environment}
    return subprocess.run(command, cwd=ROOT, env=every, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def environment(tmp_path: Path) -> list[str]:
    """Arguments that point make at a set-up environment whose Python writes down what it is asked, and succeeds."""
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\nname="${2##*.}"\necho "$*" >> "' + str(tmp_path) + '/calls"\n'
        'mkdir -p "' + str(tmp_path) + '/outputs/$name/latest-${OP:-all}"\n[ "$name" != "$FAILS" ]\n'
    )
    python.chmod(0o755)
    (tmp_path / "venv/.ready").touch()
    return [f"VENV={tmp_path}/venv", f"OUTPUTS={tmp_path}/outputs"]


def calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return [line.split()[1].rpartition(".")[2] for line in path.read_text().splitlines()] if path.exists() else []


def test_help_is_the_default_and_lists_every_target() -> None:
    text = make().stdout
    assert all(f"make {name}" in text for name in ("setup", *STAGES, "compile", "report", "features", "test", "lint"))


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_runs_those_before_it_when_they_have_no_run(name: str, tmp_path: Path, environment: list[str]) -> None:
    assert make(name, *environment).returncode == 0
    assert calls(tmp_path) == list(STAGES[: STAGES.index(name) + 1])
    assert make(name, *environment).returncode == 0
    assert calls(tmp_path)[-2:] == [calls(tmp_path)[-2], name]
    assert len(calls(tmp_path)) == STAGES.index(name) + 2


def test_another_operator_has_runs_of_its_own(tmp_path: Path, environment: list[str]) -> None:
    assert make("fit", *environment).returncode == 0
    assert make("fit", "ARGS=seed=1 op=softmax", *environment, OP="softmax").returncode == 0
    assert calls(tmp_path) == ["collect", "fit"] * 2


def test_compiling_needs_no_other_stage(tmp_path: Path, environment: list[str]) -> None:
    assert make("compile", *environment).returncode == 0
    assert calls(tmp_path) == ["compile"]


def test_a_report_takes_what_there_is_or_the_run_that_is_named(tmp_path: Path, environment: list[str]) -> None:
    assert make("report", *environment, RUN="of some other program").returncode == 0
    assert make("report", "RUN=outputs/evaluate/one", *environment).returncode == 0
    one, other = (tmp_path / "calls").read_text().splitlines()
    assert one.split() == ["-m", "pipeline.report", f"outputs_dir={tmp_path}/outputs"]
    assert other.split()[-1] == "report.run='outputs/evaluate/one'"


def test_nothing_goes_on_behind_a_stage_that_failed(tmp_path: Path, environment: list[str]) -> None:
    assert make("evaluate", *environment, FAILS="pretrain").returncode != 0
    assert calls(tmp_path) == ["collect", "fit", "pretrain"]


def test_overrides_reach_every_stage(tmp_path: Path, environment: list[str]) -> None:
    make("pretrain", "ARGS=seed=3 gpu=replay", *environment)
    lines = (tmp_path / "calls").read_text().splitlines()
    assert len(lines) == 3
    assert all(line.endswith(f"outputs_dir={tmp_path}/outputs seed=3 gpu=replay") for line in lines)


def test_no_suitable_python_is_one_line(tmp_path: Path) -> None:
    result = make("setup", f"VENV={tmp_path}/venv", PATH=str(tmp_path))
    assert result.returncode != 0
    assert "setup: needs Python 3.11 or 3.12" in result.stderr


def test_every_dependency_has_an_exact_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {*project["project"]["dependencies"], *project["dependency-groups"]["dev"]}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0].lower(): line for line in lines if "==" in line}
    assert {name.lower() for name in wanted} <= set(pinned)
    assert pinned["torch"] == "torch==2.13.0"
