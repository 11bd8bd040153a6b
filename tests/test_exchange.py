"""Measured spaces in and out by the command line: our own rows there and back, and what Kernel Tuner makes of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from spaces import space, write

from datasets import store
from datasets.device import H200
from datasets.kernel_tuner_export import write_cache
from datasets.kernel_tuner_io import read_space
from datasets.measurement import Candidate
from pipeline.exchange import main
from pipeline.measure.fake import FakeMeasurer
from templates import space as legal_space
from templates.knob import config_text
from templates.template import load_template

TEMPLATE = load_template("softmax")
WORKLOAD = TEMPLATE.workload(M=4096, N=1000)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Forty random rows of one workload, some of them failed, one config timed three times."""
    configs = legal_space.sample(TEMPLATE, WORKLOAD, H200.limits, 40, np.random.default_rng(0))
    measured = FakeMeasurer(H200, fail_rate=0.2).measure([Candidate(WORKLOAD, c) for c in configs])
    rows = [replace(m, template_version=TEMPLATE.version) for m in measured]
    ok = next(m for m in rows if m.time_us is not None)
    again = [replace(ok, time_us=time_us, samples_us=(time_us,)) for time_us in (1.0, 2.0)]
    store.append(tmp_path / "data", [*rows, *again])
    return tmp_path / "data"


def export(data: Path, to: Path, *more: str) -> int:
    return main(["export", f"workload={WORKLOAD}", f"to={to}", f"data_dir={data}", f"recorded_dir={data}-none", *more])


@pytest.mark.parametrize("form", ["cache", "t4"])
def test_rows_go_out_and_come_back(form: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(data, tmp_path / "out.json", f"format={form}") == 0
    assert "rows       40: " in capsys.readouterr().out
    arguments = ["import", f"file={tmp_path / 'out.json'}", f"data_dir={tmp_path / 'other'}", f"workload={WORKLOAD}"]
    assert main(arguments) == 0
    assert "added 40 of 40" in capsys.readouterr().out
    assert main(arguments) == 0
    assert "added 0 of 40" in capsys.readouterr().out
    old, new = (store.load(root).groupby("config") for root in (data, tmp_path / "other"))
    assert set(old.groups) == set(new.groups)
    for config, group in new:
        theirs = old.get_group(config)
        assert group["time_us"].iloc[0] == pytest.approx(theirs["time_us"].median(), nan_ok=True)
        assert group["gpu"].iloc[0] == theirs["gpu"].iloc[0] and group["template_version"].iloc[0] == TEMPLATE.version
        if form == "cache":
            assert group["status"].iloc[0] == theirs["status"].iloc[0] and group["origin"].iloc[0] == "random"


def test_our_file_says_itself_what_it_is_of(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(data, tmp_path / "out.json.gz") == 0
    assert main(["import", f"file={tmp_path / 'out.json.gz'}", f"data_dir={tmp_path / 'other'}"]) == 0
    assert f"rows of {WORKLOAD}" in capsys.readouterr().out


def test_a_foreign_file_is_described_and_added_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cache(space(), tmp_path / "toy.json")
    assert main(["import", f"file={tmp_path / 'toy.json'}", f"data_dir={tmp_path / 'data'}"]) == 0
    printed = capsys.readouterr().out
    assert "toy [4096, 4096]" in printed and "2 launch_error" in printed and "nothing was added" in printed
    assert not (tmp_path / "data").exists()


def test_bad_input_is_one_line_and_status_2(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cache(space(), tmp_path / "toy.json")
    empty = write(tmp_path / "empty.json", "")
    cases = {
        (): "say import or export first",
        ("import",): "needs file=",
        ("import", "fiel=x"): "write file=",
        ("import", f"file={empty}"): "not JSON",
        ("import", f"file={tmp_path / 'toy.json'}", f"workload={WORKLOAD}"): "its parameters are not the knobs of softmax",
        ("export", f"workload={WORKLOAD}"): "needs to=",
        ("export", f"workload={WORKLOAD}", "to=x", "format=csv"): "format=csv is unknown",
        ("export", "workload=softmax/f32/M=1,N=7", "to=x", f"data_dir={data}"): "no rows of the present softmax template",
        ("export", f"workload={WORKLOAD}", f"to={empty}/x.json", f"data_dir={data}"): "cannot be written",
    }
    for arguments, complaint in cases.items():
        assert main(list(arguments)) == 2, arguments
        error = capsys.readouterr().err
        assert complaint in error and error.startswith("exchange: ") and error.count("\n") == 1, error


def test_kernel_tuner_runs_on_the_export_of_a_recorded_workload(tmp_path: Path) -> None:
    pytest.importorskip("kernel_tuner")
    from pipeline.baselines.kernel_tuner_replay import simulate

    recorded = store.load(store.RECORDED, op="matmul", gpu="nvidia-h200")
    text = recorded.loc[recorded["config"] != "", "workload"].iloc[0]
    assert main(["export", f"workload={text}", f"to={tmp_path / 'matmul.json'}", f"data_dir={tmp_path}"]) == 0
    here = read_space(tmp_path / "matmul.json")
    times = dict(recorded[(recorded["workload"] == text) & (recorded["status"] == "ok")].groupby("config")["time_us"].median())
    for strategy in ("random_sample", "simulated_annealing"):
        visited = simulate(here, tmp_path / "matmul.json", strategy, 25, seed=0)
        assert visited
        for values, time_us in visited:
            config = config_text(dict(zip(here.names, map(int, values), strict=True)))
            assert time_us is None or time_us == pytest.approx(times[config], rel=0.05)
