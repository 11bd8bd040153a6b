"""Rows and measurements: the same thing in two forms."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from datasets.measurement import STATUSES, Conditions, Measurement, Resources
from datasets.schema import COLUMNS, frame_of, measurement_of, schema
from templates.template import load_template

TEMPLATE = load_template("matmul")
WORKLOAD = TEMPLATE.workload(M=64, N=32, K=16)
FULL = Measurement(
    workload=WORKLOAD,
    config=dict(TEMPLATE.naive),
    status="ok",
    time_us=12.345678901,
    samples_us=(12.25, 12.5, 13.0),
    origin="guided",
    source="gpu",
    gpu="NVIDIA H200",
    nvcc="13.0.88",
    driver="580.1",
    template_version="abc",
    l2="warm",
    error=0.125,
    compile_s=0.5,
    cache_hit=True,
    measured_at="2025-01-01T00:00:00+00:00",
    resources=Resources(64, 0, 8192),
    conditions=Conditions(1980, 1975, True, "power", 45, 0),
)
FAILED = Measurement(workload=WORKLOAD, config=dict(TEMPLATE.expert(WORKLOAD)), status="crash", message="illegal address")


@pytest.mark.parametrize("measurement", [FULL, FAILED], ids=["everything known", "nothing known"])
def test_measurement_survives_the_way_through_a_row(measurement: Measurement) -> None:
    frame = frame_of([measurement])
    assert measurement_of(frame.iloc[0]) == measurement
    assert measurement_of(frame.to_dict("records")[0]) == measurement


def test_mixed_rows_survive_although_missing_values_turn_integer_columns_into_floats() -> None:
    frame = frame_of([FULL, FAILED])
    assert [measurement_of(row) for row in frame.to_dict("records")] == [FULL, FAILED]


def test_every_status_can_be_stored() -> None:
    every: list[Any] = [status for status in STATUSES if status != "ok"]
    rows = [replace(FAILED, status=status) for status in every] + [FULL]
    assert sorted(frame_of(rows)["status"]) == sorted(STATUSES)


def test_a_failure_has_no_time_and_no_quantiles() -> None:
    row = frame_of([FAILED, FULL]).iloc[0]
    assert row[["time_us", "q05_us", "q95_us", "registers"]].isna().all() and row["n_samples"] == 0


def test_quantiles_come_from_the_samples() -> None:
    row = frame_of([FULL]).iloc[0]
    assert row["q05_us"] <= row["q25_us"] <= row["time_us"] * 1.02 and row["q95_us"] == pytest.approx(12.95)


def test_knobs_and_dimensions_are_typed_columns() -> None:
    kinds = schema(TEMPLATE.names, TEMPLATE.dims)
    assert kinds.field("knob_block_m").type == pa.int16() and kinds.field("dim_K").type == pa.int32()
    row = frame_of([FULL]).iloc[0]
    assert row["knob_block_m"] == TEMPLATE.naive["block_m"] and row["dim_N"] == 32


def test_every_physical_quantity_names_its_unit() -> None:
    suffixes = {"_us": "us", "_s": "s", "_mhz": "MHz", "_bytes": "bytes", "_c": "degrees"}
    for column in COLUMNS:
        metadata = column.field().metadata
        assert metadata is not None and metadata[b"meaning"]
        for suffix, unit in suffixes.items():
            if column.name.endswith(suffix):
                assert metadata[b"unit"].decode().startswith(unit), column.name
