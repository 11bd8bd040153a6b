"""Measurements on disk: nothing lost, nothing half-read, small when shipped."""

import errno
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datasets import store
from datasets.device import H200
from datasets.measurement import Measurement, Resources
from datasets.schema import frame_of, measurement_of
from templates.errors import InputError
from templates.knob import config_text
from templates.space import sample
from templates.template import load_template

TEMPLATE = load_template("matmul")
SHAPES = [TEMPLATE.workload(M=m, N=512, K=256) for m in (256, 512)]


def rows(n: int, gpu: str = "NVIDIA H200") -> list[Measurement]:
    rng = np.random.default_rng(0)
    result = []
    for workload in SHAPES:
        for config in sample(TEMPLATE, workload, H200.limits, n // 2, rng):
            time_us = float(np.float32(rng.lognormal(4)))
            samples = tuple((np.float32(time_us) + np.arange(5, dtype=np.float32)).tolist())
            result.append(
                Measurement(workload, config, "ok", time_us=time_us, samples_us=samples, gpu=gpu, nvcc="13.0", driver="580",
                            template_version="v1", compile_s=0.5, measured_at="2025-01-01", resources=Resources(64, 0, 0))
            )  # fmt: skip
    return result + [Measurement(SHAPES[0], dict(TEMPLATE.naive), "crash", message="illegal address", gpu=gpu)]


def in_order(measurements: Iterable[Measurement]) -> list[Measurement]:
    return sorted(measurements, key=lambda m: (m.workload, m.status, config_text(m.config)))


def test_appended_rows_are_all_loaded_failures_included(tmp_path: Path) -> None:
    batch = rows(20)
    store.append(tmp_path, batch[:8])
    store.append(tmp_path, batch[8:])
    frame = store.load(tmp_path)
    assert in_order(map(measurement_of, frame.to_dict("records"))) == in_order(batch)
    assert len(list((tmp_path / "nvidia-h200" / "matmul").glob("part-*.parquet"))) == 2


def test_gpu_and_operator_select_folders(tmp_path: Path) -> None:
    store.append(tmp_path, rows(4) + rows(4, gpu="NVIDIA A100"))
    assert len(store.load(tmp_path)) == 10
    assert set(store.load(tmp_path, gpu="NVIDIA A100")["gpu"]) == {"NVIDIA A100"}
    assert store.load(tmp_path, op="softmax").empty and "time_us" in store.load(tmp_path, op="softmax").columns


def test_measured_keys_are_what_was_attempted(tmp_path: Path) -> None:
    assert store.measured_keys(tmp_path / "not yet") == set()
    batch = rows(4)
    store.append(tmp_path, batch)
    row = frame_of(batch[:1]).iloc[0]
    assert len(store.measured_keys(tmp_path)) == len(batch) and (row["workload"], row["config"]) in store.measured_keys(tmp_path)


def test_truncated_file_is_named_with_the_cure(tmp_path: Path) -> None:
    store.append(tmp_path, rows(4))
    path = next(tmp_path.rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=rf"{path.name}.*delete it") as caught:
        store.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"text"])
def test_other_damage_is_named_too(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "nvidia-h200" / "matmul" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    with pytest.raises(InputError, match="part-0.parquet: damaged"):
        store.load(tmp_path)


def test_damage_inside_the_data_is_an_input_error(tmp_path: Path) -> None:
    store.append(tmp_path, rows(40))
    path = next(tmp_path.rglob("*.parquet"))
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        store.load(tmp_path)


def test_file_of_another_schema_version_is_refused_naming_both(tmp_path: Path) -> None:
    store.append(tmp_path, rows(4))
    path = next(tmp_path.rglob("*.parquet"))
    pq.write_table(pq.read_table(path).replace_schema_metadata({"schema_version": "999"}), path)
    with pytest.raises(InputError, match="schema version 999, this program reads 1"):
        store.load(tmp_path)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(InputError, match="schema version none"):
        store.load(tmp_path)


def test_missing_root_is_an_input_error_not_an_empty_frame(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        store.load(tmp_path / "typo")


def test_kill_while_writing_leaves_the_earlier_rows_and_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = rows(4)
    store.append(tmp_path, batch[:2])

    def die(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(KeyboardInterrupt):
        store.append(tmp_path, batch[2:])
    assert len(store.load(tmp_path)) == 2


def test_full_disk_gives_one_line_and_leaves_no_debris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="disk is full"):
        store.append(tmp_path, rows(4))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_compacted_rows_say_the_same_without_raw_samples(tmp_path: Path) -> None:
    batch = rows(30)
    store.append(tmp_path / "raw", batch[:10])
    store.append(tmp_path / "raw", batch[10:])
    (path,) = store.compact(tmp_path / "raw", tmp_path / "small")
    assert path.parent == tmp_path / "small" / "nvidia-h200" / "matmul"
    assert {"config", "samples_us"}.isdisjoint(pq.read_schema(path).names)
    before = [replace(m, samples_us=()) for m in batch]
    after = [measurement_of(row) for row in store.load(tmp_path / "small").to_dict("records")]
    assert in_order(after) == in_order(before)
    assert set(store.load(tmp_path / "small")["n_samples"]) == {0, 5}
    with pytest.raises(InputError, match="holds measurements already"):
        store.compact(tmp_path / "raw", tmp_path / "small")


def test_compacted_vendor_rows_keep_their_empty_config(tmp_path: Path) -> None:
    vendor = replace(rows(1)[0], config={}, origin="vendor")
    store.append(tmp_path / "raw", [*rows(3), vendor])
    store.compact(tmp_path / "raw", tmp_path / "small")
    frame = store.load(tmp_path / "small")
    assert len(frame) == 4
    assert frame.loc[frame["origin"] == "vendor", "config"].tolist() == [""]


def test_compaction_splits_what_would_be_too_large(tmp_path: Path) -> None:
    store.append(tmp_path / "raw", rows(800))
    paths = store.compact(tmp_path / "raw", tmp_path / "small", file_bytes=48_000)
    assert len(paths) > 1 and all(path.stat().st_size < 48_000 for path in paths)
    assert len(store.load(tmp_path / "small")) == 801


def test_a_recorded_row_takes_less_than_120_bytes(tmp_path: Path) -> None:
    """26,000 rows then stay below 3 MiB."""
    batch = rows(2000)
    store.append(tmp_path / "raw", batch)
    (path,) = store.compact(tmp_path / "raw", tmp_path / "small")
    assert path.stat().st_size / len(batch) < 120
