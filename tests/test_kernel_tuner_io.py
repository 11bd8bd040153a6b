"""Kernel Tuner's files: what is read from good, odd and broken ones, and that what we write is read by us and by itself."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spaces import cache_text, space, write

from datasets.kernel_tuner_export import write_cache, write_t4
from datasets.kernel_tuner_io import read_space
from datasets.measured_space import by_kernel
from templates.errors import InputError

ENTRIES: dict[str, dict[str, Any]] = {
    "1,4": {"a": 1, "b": 4, "time": 2.5, "times": [2.0, 3.0], "compile_time": 1500.0, "timestamp": "2026-01-01"},
    "1,8": {"a": 1, "b": 8, "time": "RuntimeFailedConfig", "times": [1.0, 1.1]},
    "2,4": {"a": 2, "b": 4, "time": "CompilationFailedConfig"},
    "2,8": {"a": 2, "b": 8, "time": "InvalidConfig"},
}
T4 = {
    "schema_version": "1.0.0", "metadata": {"timeunit": "miliseconds"},
    "results": [
        {"configuration": {"a": 1, "b": 4}, "times": {"runtimes": [2.0, 3.0]}, "invalidity": "correct", "correctness": 1,
         "measurements": [{"name": "time", "value": 2.5, "unit": ""}]},
        {"configuration": {"a": 1, "b": 8}, "times": {}, "invalidity": "runtime", "correctness": 0,
         "measurements": [{"name": "time", "value": "RuntimeFailedConfig", "unit": ""}]},
    ],
}  # fmt: skip


def test_a_cache_is_read_with_times_in_us_and_failures_by_kind(tmp_path: Path) -> None:
    found = read_space(write(tmp_path / "c.json", cache_text(ENTRIES)))
    assert (found.kernel, found.device, found.problem, found.names) == ("k", "GPU A", (64,), ("a", "b"))
    assert [row.status for row in found.rows] == ["ok", "launch_error", "compile_error", "illegal"]
    first = found.rows[0]
    assert (first.values, first.time_us, first.samples_us, first.compile_s) == ((1, 4), 2500.0, (2000.0, 3000.0), 1.5)
    assert all(row.time_us is None and row.samples_us == () for row in found.rows[1:])
    assert found.notes == ("1 failed rows carry samples, which are ignored",)
    assert found.statuses == {"ok": 1, "illegal": 1, "compile_error": 1, "launch_error": 1}


@pytest.mark.parametrize("cut", ["}\n}", "\n}"])
@pytest.mark.parametrize("ending", ["", ",", ",\n"])
def test_missing_braces_are_added(cut: str, ending: str, tmp_path: Path) -> None:
    text = cache_text(ENTRIES).removesuffix(cut) + (ending if cut == "}\n}" else "")
    assert len(read_space(write(tmp_path / "c.json", text)).rows) == 4


def test_a_row_cut_in_the_middle_is_left_out_and_said(tmp_path: Path) -> None:
    found = read_space(write(tmp_path / "c.json", cache_text(ENTRIES)[:-25]))
    assert len(found.rows) == 3
    assert "ends within a row" in found.notes[0]


@pytest.mark.parametrize("time", [float("nan"), float("inf"), 1e20, 0.0, -1.0, "SomethingNew"])
def test_a_stand_in_for_a_failure_is_no_time(time: Any, tmp_path: Path) -> None:
    found = read_space(write(tmp_path / "c.json", cache_text({"1,4": {"a": 1, "b": 4, "time": time}})))
    assert (found.rows[0].status, found.rows[0].time_us) == ("launch_error", None)
    assert str(time) in found.rows[0].message


def test_values_that_were_not_declared_are_added_in_order(tmp_path: Path) -> None:
    entries = {"3,6": {"a": 3, "b": 6, "time": 1.0}, "0,x": {"a": 0, "b": "x", "time": 1.0}}
    found = read_space(write(tmp_path / "c.json", cache_text(entries)))
    assert [parameter.values for parameter in found.parameters] == [(0, 1, 2, 3), (4, 8, 6, "x")]


def test_t4_is_read_and_named_by_its_file(tmp_path: Path) -> None:
    found = read_space(write(tmp_path / "conv_X.json", json.dumps(T4)))
    assert (found.kernel, found.device, found.names) == ("conv_X", "conv_X", ("a", "b"))
    assert [(row.status, row.time_us) for row in found.rows] == [("ok", 2500.0), ("launch_error", None)]
    assert found.rows[0].samples_us == (2000.0, 3000.0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not JSON"),
        ("hello", "not JSON"),
        ("[1, 2]", "not JSON"),
        ("{}", "neither a Kernel Tuner cache"),
        (cache_text({"1,4": {"a": 1, "time": 1.0}}), "config 1,4: parameter b is missing"),
        (cache_text({"1,4": {"a": 1, "b": [4], "time": 1.0}}), "config 1,4: parameter b is missing or no number"),
        (cache_text({"1,4": {"a": 1, "b": 4}}), "config 1,4: its time is 'None'"),
        (cache_text({"1,4": {"a": 1, "b": 4, "time": [1]}}), "config 1,4: its time is"),
        (cache_text({"1,4": {"a": 1, "b": 4, "time": 1.0, "times": [1, "x"]}}), "config 1,4: its samples"),
        (json.dumps({"tune_params_keys": ["a"], "cache": 7}), "neither a Kernel Tuner cache"),
        (cache_text({}, tune_params_keys=["a", "a"]), "each once"),
        (cache_text({}, tune_params_keys=[]), "one or more"),
        (json.dumps({"results": []}), "without results"),
        (json.dumps({"results": [7]}), "result 0: it has no configuration"),
        (json.dumps(T4 | {"metadata": {"timeunit": "moons"}}), "time unit 'moons'"),
        (json.dumps({"results": [{"configuration": {"a": 1}, "invalidity": "maybe"}]}), "invalidity 'maybe'"),
    ],
)  # fmt: skip
def test_a_malformed_file_is_one_clear_line(text: str, complaint: str, tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", text)
    with pytest.raises(InputError, match=complaint) as raised:
        read_space(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_what_cannot_be_opened_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "half.gz").write_bytes(gzip.compress(cache_text(ENTRIES).encode())[:60])
    for name in ("none", "binary", "half.gz", "."):
        with pytest.raises(InputError, match="no such file" if name == "none" else "cannot be read"):
            read_space(tmp_path / name)


@pytest.mark.parametrize("name", ["c.json", "c.json.gz"])
@pytest.mark.parametrize("write_space", [write_cache, write_t4])
def test_what_is_written_is_read_again(write_space: Any, name: str, tmp_path: Path) -> None:
    original = space()
    write_space(original, tmp_path / name)
    again = read_space(tmp_path / name)
    assert (again.kernel, again.device, again.problem, again.names) == ("toy", "GPU A", (4096, 4096), original.names)
    assert [p.values for p in again.parameters] == [p.values for p in original.parameters]
    assert [(row.values, row.status) for row in again.rows] == [(row.values, row.status) for row in original.rows]
    timed = [[row.time_us for row in found.rows if row.time_us is not None] for found in (again, original)]
    assert timed[0] == pytest.approx(timed[1])


def test_spaces_of_one_kernel_go_together() -> None:
    other = space("GPU C", parameters=(*space().parameters[:2], space().parameters[2].__class__("other", (0, 1))))
    groups = by_kernel([space("GPU B"), other, space("GPU A")])
    assert [[s.device for s in group] for group in groups.values()] == [["GPU A", "GPU B"], ["GPU C"]]


def test_a_partial_config_is_refused_where_no_row_begins_so() -> None:
    from pipeline.baselines.kernel_tuner_replay import restriction

    whole = space()
    occurs = restriction(replace(whole, rows=tuple(row for row in whole.rows if row.values[:2] != (64, 4))))
    missing = object()
    assert occurs(64, missing, 1) and occurs(missing, 4, 0) and occurs(missing, missing, missing) and occurs(64, 2, 0)
    assert not occurs(64, 4, missing) and not occurs(64, 4, 1) and not occurs(48, missing, missing)


def test_kernel_tuner_runs_its_strategies_on_what_is_written(tmp_path: Path) -> None:
    pytest.importorskip("kernel_tuner")
    from pipeline.baselines.kernel_tuner_replay import cached, simulate

    here = space()
    path = cached(here, str(tmp_path))
    times = {row.values: row.time_us for row in here.rows}
    for strategy in ("random_sample", "genetic_algorithm", "pso"):
        visited = simulate(here, path, strategy, 15, seed=1)
        assert 3 <= len(visited) <= 15 and len({values for values, _ in visited}) == len(visited)
        assert all(times[values] == time for values, time in visited)
    assert len(simulate(here, path, "random_sample", 1000, seed=1)) == len(here.rows)


def test_t4_satisfies_kernel_tuners_copy_of_its_schema(tmp_path: Path) -> None:
    files = pytest.importorskip("kernel_tuner.file_utils")
    jsonschema = pytest.importorskip("jsonschema")
    write_t4(space(), tmp_path / "t4.json")
    _, schema = files.output_file_schema("results")
    data = json.loads((tmp_path / "t4.json").read_text())
    jsonschema.validate(data, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "results": [{**data["results"][0], "invalidity": "ok"}]}, schema)
