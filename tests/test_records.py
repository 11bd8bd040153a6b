"""Records: medians over seeds, failures, intervals, what summary.json holds."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.records import Pick, Yardstick, cells, confidence_interval, flip_rate, fraction, records, write_seed_records
from templates.workload import Workload

TEST = Workload.parse("matmul/f32/M=8192,N=8192,K=8192")
OTHER = Workload.parse("matmul/f32/M=768,N=768,K=768")
YARDSTICKS = {TEST: Yardstick(100.0, "a=1", 500.0), OTHER: Yardstick(10.0, "a=1", 40.0)}


def picks(times: dict[Workload, list[float | None]], method: str = "policy", k: int = 10) -> list[Pick]:
    return [
        Pick(workload, method, seed, k, f"a={seed}", time_us, "ok" if time_us else "crash")
        for workload, column in times.items()
        for seed, time_us in enumerate(column)
    ]


def test_a_record_holds_the_designs_fields_and_the_median_over_seeds() -> None:
    (record,) = records(picks({TEST: [200.0, 125.0, 100.0]}), YARDSTICKS, "replay")
    assert list(asdict(record))[:9] == [
        "op", "workload", "split", "method", "measurements", "time_us", "fraction_of_best", "speedup_over_naive", "source"
    ]  # fmt: skip
    assert (record.op, record.workload, record.split, record.source) == ("matmul", str(TEST), "test", "replay")
    assert (record.method, record.measurements, record.seeds) == ("policy", 10, 3)
    assert (record.time_us, record.fraction_of_best, record.speedup_over_naive) == (125.0, 0.8, 4.0)
    assert record.spread == (0.5, 1.0)


def test_a_choice_that_does_not_run_counts_as_zero_and_is_written_as_null() -> None:
    (record,) = records(picks({TEST: [None, None, 100.0]}), YARDSTICKS, "gpu")
    assert (record.time_us, record.fraction_of_best, record.speedup_over_naive) == (None, 0.0, 0.0)
    assert json.loads(json.dumps(asdict(record), allow_nan=False))["time_us"] is None
    assert fraction(100.0, None) == 0.0


def test_one_record_per_workload_method_and_measurements() -> None:
    many = picks({TEST: [200.0], OTHER: [20.0]}) + picks({TEST: [150.0]}, k=25) + picks({TEST: [300.0]}, "random")
    found = records(many, YARDSTICKS, "replay")
    assert len({(r.workload, r.method, r.measurements) for r in found}) == len(found) == 4


def test_seed_rows_keep_seed_config_and_status(tmp_path: Path) -> None:
    write_seed_records(picks({TEST: [200.0, None]}), YARDSTICKS, "replay", tmp_path / "seeds.parquet")
    rows = pd.read_parquet(tmp_path / "seeds.parquet")
    assert list(rows["seed"]) == [0, 1] and list(rows["config"]) == ["a=0", "a=1"]
    assert list(rows["status"]) == ["ok", "crash"]
    assert rows["fraction_of_best"].tolist() == [0.5, 0.0] and rows["time_us"].isna().tolist() == [False, True]


def test_cells_mean_over_workloads_and_seeds_and_name_the_worst() -> None:
    (cell,) = cells(picks({TEST: [200.0, 200.0], OTHER: [10.0, 12.5]}), YARDSTICKS)
    assert cell.mean == pytest.approx((0.5 + 0.5 + 1.0 + 0.8) / 4)
    assert (cell.worst, cell.worst_workload) == (0.5, str(TEST))
    assert cell.low <= cell.mean <= cell.high
    assert cell.flips == 1.0


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        sample = rng.normal(0.8, 0.1, size=(20, 1))
        low, high = confidence_interval(sample, rng, draws=400)
        hits += low <= 0.8 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_the_interval_takes_workloads_as_the_unit_not_seeds() -> None:
    by_workload = np.repeat(np.array([[0.5], [1.0], [0.6], [0.9]]), 50, axis=1)
    low, high = confidence_interval(by_workload, np.random.default_rng(0))
    assert high - low > 0.2  # 200 independent numbers of this spread would give 0.06


def test_flips_are_pairs_of_seeds_that_disagree() -> None:
    assert flip_rate(["a", "a", "b"]) == pytest.approx(2 / 3)
    assert flip_rate(["a"]) == 0.0
