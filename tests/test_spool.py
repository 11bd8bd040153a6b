"""The spool: a row is safe as soon as it is given, and in the store exactly once, whoever dies when."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from datasets import schema, store
from datasets.device import H200
from datasets.measurement import Candidate, Conditions, Measurement, Resources
from datasets.spool import Spool
from pipeline.measure.fake import FakeMeasurer
from templates.errors import InputError
from templates.template import load_template

TEMPLATE = load_template("matmul")


def rows(n: int) -> list[Measurement]:
    workloads = [TEMPLATE.workload(M=64 + i, N=64, K=64) for i in range(n)]
    made = [FakeMeasurer(H200)._row(Candidate(w, dict(TEMPLATE.naive))) for w in workloads]
    return [replace(m, resources=Resources(9, 8, 7), conditions=Conditions(1980, 1965, True, "", 40, 0)) for m in made]


def stored(root: Path) -> list[Measurement]:
    """What the store holds, in the order of the workloads."""
    found = [schema.measurement_of(row) for _, row in store.load(root).iterrows()] if store.files(root) else []
    return sorted(found, key=lambda m: m.workload)


def abandon(spool: Spool) -> None:
    """What a kill does: the file is no longer held, and stays."""
    spool._file.close()


def same(found: list[Measurement], wanted: list[Measurement]) -> bool:
    """Equal, samples up to the float32 they are stored as."""
    return [replace(m, samples_us=()) for m in found] == [replace(m, samples_us=()) for m in wanted]


def test_rows_of_a_process_that_died_are_stored_by_the_next(tmp_path: Path) -> None:
    wanted = rows(5)
    first = Spool(tmp_path)
    for m in wanted:
        first.add(m)
    assert stored(tmp_path) == []
    abandon(first)
    with Spool(tmp_path) as second:
        assert second.recovered == 5
    assert same(stored(tmp_path), wanted)
    assert list((tmp_path / ".spool").iterdir()) == []


def test_a_death_between_storing_and_emptying_stores_nothing_twice(tmp_path: Path) -> None:
    wanted, spool = rows(3), Spool(tmp_path)
    for m in wanted:
        spool.add(m)
    lines = spool.path.read_text()
    spool.flush()
    spool.path.write_text(lines)
    abandon(spool)
    Spool(tmp_path).close()
    assert same(stored(tmp_path), wanted)


def test_a_line_cut_short_costs_that_row_alone(tmp_path: Path) -> None:
    wanted, spool = rows(3), Spool(tmp_path)
    for m in wanted:
        spool.add(m)
    spool.path.write_text(spool.path.read_text()[:-40])
    abandon(spool)
    Spool(tmp_path).close()
    assert same(stored(tmp_path), wanted[:2])


def test_the_file_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    wanted, spool = rows(2), Spool(tmp_path)
    spool.add(wanted[0])
    with Spool(tmp_path) as other:
        assert other.recovered == 0
        other.add(wanted[1])
    assert same(stored(tmp_path), wanted[1:])
    spool.close()
    assert same(stored(tmp_path), wanted)


def test_a_full_disk_is_one_line_and_the_rows_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, spool = rows(2), Spool(tmp_path)
    spool.add(wanted[0])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        with pytest.raises(InputError, match="disk is full"):
            spool.close()
    with Spool(tmp_path) as second:
        assert second.recovered == 1
        second.add(wanted[1])
    assert same(stored(tmp_path), wanted)
