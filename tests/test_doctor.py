"""The doctor's front door: exit status, output, what it must not do."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import doctor
from pipeline.checks.facts import Compilers, Facts, Packages, PyTorch, Recording
from pipeline.checks.finding import Finding, Verdict
from pipeline.probes import compilers, pytorch, recordings

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, not asked what takes long."""
    monkeypatch.setattr(pytorch, "probe", lambda limit_s: PyTorch("", "2.13.0"))
    monkeypatch.setattr(recordings, "probe", lambda root: (Recording("nvidia-h200", "matmul", 10, 2),))
    monkeypatch.setattr(compilers, "probe", lambda settings, arch, deadline: Compilers(arch=arch))
    monkeypatch.setattr("pipeline.probes.host.gpu_present", lambda: False)
    monkeypatch.setattr("pipeline.probes.host.gpu_on_bus", lambda root: False)
    monkeypatch.setattr("pipeline.versions.driver", lambda: None)


def found(*verdicts: Verdict) -> tuple[Facts, list[Finding]]:
    return Facts(), [Finding(f"check {i}", v, "a reason", "a cure") for i, v in enumerate(verdicts)]


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [(("ok", "skipped"), 0), (("ok", "warning"), 0), (("warning", "problem", "ok"), 1)],
)
def test_the_exit_status_tells_problems_from_warnings(
    monkeypatch: pytest.MonkeyPatch, verdicts: tuple[Verdict, ...], status: int
) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda arguments: found(*verdicts))
    assert doctor.main([]) == status


def test_a_finding_is_a_line_with_its_cure_below_and_no_colour_off_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda arguments: found("warning"))
    doctor.main([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "warning  check 0  a reason"
    assert lines[1].strip() == "-> a cure"
    assert "\x1b" not in "".join(lines)
    assert "\x1b[31mproblem" in doctor.printed(found("problem")[1], colour=True)


@pytest.mark.parametrize("override", ["farm.jobs=4", "gpu=cloud", "seed"])
def test_bad_settings_are_one_line_and_status_2(override: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([override]) == 2
    error = capsys.readouterr().err
    assert error.startswith("doctor: ") and error.count("\n") == 1


def test_without_a_gpu_all_is_well_and_no_folder_is_made(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    status = doctor.main([f"outputs_dir={tmp_path}/outputs", f"data_dir={tmp_path}/data"])
    text = capsys.readouterr().out
    assert status == 0, text
    assert "skipped  GPU" in text and "replay" in text.splitlines()[-1]
    assert f"{tmp_path}/cache/cuda-agent" in text
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_was_asked_for_and_is_not_there_is_a_problem(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["gpu=shared"]) == 1
    assert "gpu=shared asks for one" in capsys.readouterr().out


def test_outputs_that_cannot_be_written_are_a_problem(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert doctor.main([f"outputs_dir={tmp_path}/file/outputs"]) == 1
    assert "cannot be written (Not a directory)" in capsys.readouterr().out


def test_where_packages_are_missing_that_much_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def incomplete(arguments: object) -> None:
        raise ModuleNotFoundError("No module named 'hydra'")

    monkeypatch.setattr(doctor, "diagnose", incomplete)
    monkeypatch.setattr("pipeline.probes.packages.probe", lambda: Packages((3, 11, 1), wanted=("hydra-core",)))
    assert doctor.main([]) == 1
    text = capsys.readouterr().out
    assert "not installed: hydra-core" in text and "No module named 'hydra'" in text and "make clean setup" in text


def test_pytorch_and_cuda_are_never_loaded_into_the_doctor_itself() -> None:
    code = (
        "import sys, pipeline.doctor, pipeline.config, pipeline.probes.everything\n"
        "print([m for m in ('torch', 'd3rlpy', 'pynvml', 'cuda', 'pipeline.measure.gpu') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert answer.stdout.strip() == "[]"


def test_without_any_package_the_doctor_can_still_be_imported() -> None:
    answer = subprocess.run(
        [sys.executable, "-S", "-c", "import pipeline.doctor"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.returncode == 0, answer.stderr


def test_make_doctor_passes_the_settings_on(tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$*" > "{tmp_path}/call"\n')
    python.chmod(0o755)
    (tmp_path / "venv/.ready").touch()
    make = [shutil.which("make") or "make", "doctor", f"VENV={tmp_path}/venv", "OUTPUTS=/out", "ARGS=gpu=shared seed=2"]
    subprocess.run(make, cwd=ROOT, capture_output=True, timeout=60, check=True)
    assert (tmp_path / "call").read_text() == "-m pipeline.doctor outputs_dir=/out gpu=shared seed=2\n"
