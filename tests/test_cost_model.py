"""The cost model ranks unseen workloads, keeps its promises about files, and refuses what does not match it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr

from cost_model.features import floor_us
from cost_model.model import CostModel, CostModelSettings
from cost_model.training import FAIR_ROWS, assemble
from datasets.device import H200
from datasets.measurement import Measurement
from datasets.schema import frame_of
from pipeline.measure.predicted import PredictedMeasurer
from templates.errors import InputError
from templates.knob import columns_of
from templates.space import sample
from templates.template import load_template
from templates.workload import Workload

TEMPLATE = load_template("matmul")
SHAPES = ((512, 512, 512), (1024, 1024, 1024), (2048, 1024, 512), (96, 2048, 1024))
TRAIN = [TEMPLATE.workload(M=m, N=n, K=k) for m, n, k in SHAPES]
UNSEEN = TEMPLATE.workload(M=2048, N=2048, K=2048)
SMALL = CostModelSettings(members=3, trees=60, depth=6, learning_rate=0.2, threads=1)


def truth_us(workload: Workload, configs: Sequence[dict[str, int]]) -> NDArray[np.float64]:
    """A plausible time: the roofline's floor over the product of a few efficiencies."""
    c = columns_of(list(configs), TEMPLATE.names)
    d = TEMPLATE.derived(c, workload)
    waves = d["blocks"] / H200.sm_count
    reuse = np.minimum(1, d["fma_per_load"] / 4) ** 0.7 * np.where(c["shared"] == 1, 1, 0.3)
    use = workload["M"] / (d["tiles_m"] * c["block_m"]) * workload["N"] / (d["tiles_n"] * c["block_n"])
    efficiency = 0.9 * reuse * use * waves / np.ceil(waves) * np.minimum(1, d["threads"] / 128) ** 0.4
    time_us: NDArray[np.float64] = floor_us(TEMPLATE, workload, H200) / efficiency + 2
    return time_us


def rows(workload: Workload, n: int, seed: int = 0) -> list[Measurement]:
    configs = sample(TEMPLATE, workload, H200.limits, n, np.random.default_rng(seed))
    times = truth_us(workload, configs)
    return [
        Measurement(workload, c, "ok", time_us=float(t), gpu=H200.name, template_version=TEMPLATE.version)
        for c, t in zip(configs, times, strict=True)
    ]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return frame_of([row for workload in TRAIN for row in rows(workload, 200)])


@pytest.fixture(scope="module")
def model(frame: pd.DataFrame) -> CostModel:
    return CostModel.fit(frame, H200, SMALL)


def test_it_ranks_a_workload_it_never_saw(model: CostModel) -> None:
    configs = sample(TEMPLATE, UNSEEN, H200.limits, 300, np.random.default_rng(9))
    predicted = model.log_time(UNSEEN, configs, H200)
    assert predicted.shape == (3, 300)
    assert spearmanr(predicted.mean(axis=0), truth_us(UNSEEN, configs)).statistic > 0.9


def test_predictions_are_log_microseconds_and_speedups_need_no_offset(model: CostModel) -> None:
    workload = TRAIN[1]
    configs = sample(TEMPLATE, workload, H200.limits, 200, np.random.default_rng(9))
    naive = np.log(truth_us(workload, [dict(TEMPLATE.naive)])) - np.log(truth_us(workload, configs))
    baseline = model.log_time(workload, [TEMPLATE.naive], H200)
    predicted = (baseline - model.log_time(workload, configs, H200)).mean(axis=0)
    assert np.abs(model.log_time(workload, configs, H200).mean(axis=0) - np.log(truth_us(workload, configs))).mean() < 0.3
    assert np.corrcoef(predicted, naive)[0, 1] > 0.95


def test_members_differ_but_not_wildly(model: CostModel) -> None:
    configs = sample(TEMPLATE, UNSEEN, H200.limits, 100, np.random.default_rng(9))
    spread = model.log_time(UNSEEN, configs, H200).std(axis=0)
    assert 0.001 < spread.mean() < 0.5


def test_same_seed_same_trees_other_seed_other_trees(frame: pd.DataFrame) -> None:
    few = replace(SMALL, members=1, trees=10)
    configs = sample(TEMPLATE, UNSEEN, H200.limits, 50, np.random.default_rng(9))
    one, again, other = (CostModel.fit(frame, H200, few, seed).log_time(UNSEEN, configs, H200) for seed in (1, 1, 2))
    assert np.array_equal(one, again) and not np.array_equal(one, other)


def test_guided_rows_do_not_shift_the_centre_of_a_workload() -> None:
    fair = rows(UNSEEN, FAIR_ROWS)
    fast = [replace(row, origin="guided", time_us=1.0) for row in rows(UNSEEN, FAIR_ROWS, seed=1)]
    one, both = assemble(frame_of(fair), H200), assemble(frame_of(fair + fast), H200)
    assert one.means == both.means and len(both.target) == 2 * FAIR_ROWS


def test_only_rows_with_a_time_are_learnt(frame: pd.DataFrame) -> None:
    failed = frame.iloc[:50].assign(status="crash", time_us=np.nan)
    data = assemble(pd.concat([frame, failed]), H200)
    assert np.isfinite(data.target).all() and len(data.target) == len(frame) and len(data.failed) == 50


def test_failures_are_predicted_where_the_data_has_them(frame: pd.DataFrame, model: CostModel) -> None:
    configs = sample(TEMPLATE, UNSEEN, H200.limits, 200, np.random.default_rng(9))
    assert not model.failure_probability(UNSEEN, configs, H200).any()
    bad = frame["knob_stages"] >= 3
    spoilt = frame.assign(status=np.where(bad, "crash", "ok"), time_us=frame["time_us"].where(~bad))
    risk = CostModel.fit(spoilt, H200, replace(SMALL, members=1)).failure_probability(UNSEEN, configs, H200)
    stages = np.array([config["stages"] for config in configs])
    assert risk[stages >= 3].mean() > 0.7 > 0.3 > risk[stages < 3].mean()


def test_refit_learns_what_is_peculiar_to_a_workload(model: CostModel) -> None:
    """Configs walked in column order are twice as slow here, which no other workload shows."""

    def peculiar(row: Measurement) -> Measurement:
        assert row.time_us is not None
        return replace(row, time_us=row.time_us * (2.0 if row.config["column_order"] else 1.0))

    seen, later = (frame_of([peculiar(row) for row in rows(UNSEEN, n, seed)]) for n, seed in ((60, 3), (200, 4)))
    columns = {name: later[f"knob_{name}"].to_numpy() for name in TEMPLATE.names}

    def rank(m: CostModel) -> float:
        return float(spearmanr(m.log_time(UNSEEN, columns, H200).mean(axis=0), later["time_us"]).statistic)

    assert rank(model.refit(seen, H200)) > rank(model) + 0.03
    assert model.refit(seen.assign(status="crash"), H200) is model


def test_saved_model_predicts_the_same_and_holds_no_pickle(model: CostModel, tmp_path: Path) -> None:
    model.save(tmp_path)
    configs = sample(TEMPLATE, UNSEEN, H200.limits, 50, np.random.default_rng(9))
    loaded = CostModel.load(tmp_path)
    assert np.array_equal(loaded.log_time(UNSEEN, configs, H200), model.log_time(UNSEEN, configs, H200))
    seen = frame_of(rows(UNSEEN, 30))
    assert np.array_equal(
        loaded.refit(seen, H200).log_time(UNSEEN, configs, H200), model.refit(seen, H200).log_time(UNSEEN, configs, H200)
    )
    assert {path.suffix for path in tmp_path.iterdir()} == {".ubj", ".json", ".npz"}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("template_version", "0123456789ab", "version 0123456789ab of the matmul template"),
        ("features", ["shape_log_M"], "other features"),
        ("format", 99, "format 99, this program reads 1"),
    ],
)
def test_model_of_something_else_is_refused_in_one_line(
    model: CostModel, tmp_path: Path, key: str, value: object, says: str
) -> None:
    model.save(tmp_path)
    about = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(about | {key: value}))
    with pytest.raises(InputError, match=f"{says}.*make fit") as caught:
        CostModel.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_or_damaged_model_is_refused_in_one_line(model: CostModel, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no cost model here"):
        CostModel.load(tmp_path)
    model.save(tmp_path)
    (tmp_path / "member-1.ubj").write_bytes(b"{}")
    with pytest.raises(InputError, match="damaged cost model") as caught:
        CostModel.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gpu": "NVIDIA A100"}, "rows of nvidia-a100 for a model of nvidia-h200"),
        ({"template_version": "0ld"}, "version 0ld of the matmul template"),
        ({"status": "crash", "time_us": np.nan}, "not one row with a time"),
    ],
)
def test_rows_that_do_not_belong_are_refused(frame: pd.DataFrame, change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        CostModel.fit(frame.assign(**change), H200, SMALL)


def test_predicted_measurer_times_legal_configs_and_names_why_others_are_not(model: CostModel) -> None:
    from datasets.measurement import Candidate

    measurer = PredictedMeasurer(model, H200)
    legal = sample(TEMPLATE, UNSEEN, H200.limits, 3, np.random.default_rng(9))
    illegal = {**TEMPLATE.naive, "block_m": 256, "block_n": 256}
    answers = list(measurer.measure([Candidate(UNSEEN, config) for config in (*legal, illegal)]))
    assert [m.status for m in answers] == ["ok", "ok", "ok", "illegal"] and "more threads" in answers[3].message
    expected = np.exp(model.log_time(UNSEEN, legal, H200).mean(axis=0))
    assert [m.time_us for m in answers[:3]] == pytest.approx(expected.tolist())
    assert {m.source for m in answers} == {"cost_model"} and {m.gpu for m in answers} == {H200.name}
    assert measurer.known(UNSEEN) is None


def test_predicted_worlds_differ_by_member_and_repeat_by_seed(model: CostModel) -> None:
    from datasets.measurement import Candidate

    asked = [Candidate(UNSEEN, c) for c in sample(TEMPLATE, UNSEEN, H200.limits, 3, np.random.default_rng(9))]

    def times(**world: float) -> list[float | None]:
        return [m.time_us for m in PredictedMeasurer(model, H200, **world).measure(asked)]  # type: ignore[arg-type]

    assert times(member=0) != times(member=1)
    assert times(noise=0.1, seed=1) == times(noise=0.1, seed=1) != times(noise=0.1, seed=2)
    with pytest.raises(AssertionError, match="member"):
        PredictedMeasurer(model, H200, member=7)
