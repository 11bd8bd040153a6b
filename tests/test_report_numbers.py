"""The numbers on the report's page are those of the rows: planted effects are found, spreads and means come out as made."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from datasets.device import H200
from pipeline.reporting import knob_effects, noise, predictions, regret, speedups
from pipeline.reporting.contents import tiles
from pipeline.reporting.decisions import Decision, Option, occlusion
from pipeline.reporting.drawing import BETTER_WORSE, THEMED
from pipeline.reporting.section import label, percent, times, us
from pipeline.reporting.sources import Material, parsed
from templates import space
from templates.errors import InputError
from templates.workload import Workload
from tests.policy_world import LARGE, SMALL, TEMPLATE
from tests.report_place import SPREAD, TEST, build, cells, material


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("report"))


def planted(random: int = 600) -> Material:
    """Random configs of 100 us or 1 ms by workload, 1.5 x with unroll=1, 3 x where block_m and block_n are both 64."""
    frames = []
    for workload, base in ((SMALL, 100.0), (LARGE, 1000.0)):
        drawn = space.sample(TEMPLATE, workload, H200.limits, random, np.random.default_rng(0))
        frame = pd.DataFrame([{f"knob_{name}": value for name, value in config.items()} for config in drawn])
        time = base * np.where(frame["knob_unroll"] == 1, 1.5, 1.0)
        time *= np.where((frame["knob_block_m"] == 64) & (frame["knob_block_n"] == 64), 3.0, 1.0)
        frames.append(frame.assign(workload=str(workload), time_us=time, status="ok", origin="random"))
    return Material(TEMPLATE, {}, H200, pd.concat(frames, ignore_index=True))


def test_a_planted_effect_of_a_knob_is_found_whatever_the_workload_takes() -> None:
    found = knob_effects.sample(planted())
    lines = {e.value: e for e in knob_effects.effects(found, TEMPLATE.knob["unroll"])}
    assert lines[1].mean / lines[2].mean == pytest.approx(1.5, rel=0.1)
    assert lines[1].best == pytest.approx(1.5) and lines[2].best == pytest.approx(1.0)
    strength = {knob.name: knob_effects.importance(knob_effects.effects(found, knob)) for knob in TEMPLATE.knobs}
    assert max(strength, key=lambda name: strength[name]) in ("unroll", "block_m", "block_n")


def test_the_pair_that_was_planted_interacts_most_and_a_pair_of_own_effects_does_not() -> None:
    strongest = knob_effects.pairs(knob_effects.sample(planted()), 3)
    assert {strongest[0].down.name, strongest[0].across.name} == {"block_m", "block_n"}
    assert strongest[0].interaction > 3 * max(0.01, strongest[1].interaction)
    pair = strongest[0]
    at = pair.down.values.index(64), pair.across.values.index(64)
    assert pair.table[at] == np.nanmax(pair.table)


def test_own_effects_of_knobs_that_come_together_are_no_interaction() -> None:
    rng, n = np.random.default_rng(0), 4000
    one = rng.random(n) < 0.5
    other = np.where(rng.random(n) < 0.9, one, ~one)
    columns = {knob.name: np.full(n, knob.default) for knob in TEMPLATE.knobs}
    columns |= {"block_m": np.where(one, 64, 32), "block_n": np.where(other, 64, 32)}
    everywhere = {knob.name: np.ones(n, dtype=bool) for knob in TEMPLATE.knobs}
    both = knob_effects.Sample(TEMPLATE, columns, 1.0 * one + other, np.zeros(n, dtype=int), everywhere)
    found = {(pair.down.name, pair.across.name): pair.interaction for pair in knob_effects.pairs(both, 400)}
    assert len(found) == 1 and abs(next(iter(found.values()))) < 0.01


def test_rows_in_which_a_knob_has_no_effect_do_not_count() -> None:
    knob = next(knob for knob in TEMPLATE.knobs if knob.active is not None)
    found = knob_effects.sample(planted(300))
    assert sum(e.rows for e in knob_effects.effects(found, knob)) <= found.active[knob.name].sum() < len(found.residual)


def test_what_holds_of_all_rows_in_which_a_knob_matters_is_no_effect_of_its_values() -> None:
    knob = next(knob for knob in TEMPLATE.knobs if knob.active is not None)
    found = knob_effects.sample(planted())
    slower = replace(found, residual=found.residual + np.log(4.0) * found.active[knob.name])
    for before, after in zip(knob_effects.effects(found, knob), knob_effects.effects(slower, knob), strict=True):
        assert after.mean == pytest.approx(before.mean)


def test_too_few_random_configs_are_refused() -> None:
    with pytest.raises(InputError, match="fewer than 10 random configs"):
        knob_effects.sample(planted(4))


def test_spread_is_half_the_distance_of_the_quantiles_over_the_median(place: Path) -> None:
    rows = material(place).timed
    bins = noise.by_length(rows)
    assert bins["half_90"].to_numpy() == pytest.approx(np.diff(np.quantile(SPREAD, (0.05, 0.95)))[0] / 2, rel=1e-3)
    assert bins["half_50"].to_numpy() == pytest.approx(0.01, rel=1e-3)
    assert bins["rows"].sum() == len(rows)


def test_times_are_those_of_the_rows_and_test_workloads_come_first(place: Path) -> None:
    lines = speedups.measured_times(material(place))
    assert [line.split for line in lines] == ["test"] * 2 + ["train"] * 3
    rows = material(place).measured()
    for line in lines:
        here = rows[(rows["workload"] == str(line.workload)) & (rows["status"] == "ok")]
        assert line.best == here[here["config"] != ""]["time_us"].min()
        assert line.vendor == here[here["origin"] == "vendor"]["time_us"].iloc[0]
        assert line.naive == here[here["origin"] == "naive"]["time_us"].iloc[0]
        assert line.speedup("best") == pytest.approx(line.naive / line.best)
        assert line.policy == (113.0 if line.workload in TEST else None)  # its pick after 10 measurements


def test_the_tile_is_the_geometric_mean_over_test_workloads(place: Path) -> None:
    test = [line for line in speedups.measured_times(material(place)) if line.split == "test"]
    mean = float(np.exp(np.mean([np.log(line.naive / line.best) for line in test])))
    found = tiles(material(place))
    assert found[0].number == f"{mean:.2f} x" and found[0].basis == "geometric mean, 2 test workloads"
    assert found[-1].number == percent(1 - 0.92) and "after 10 measurements" in found[-1].meaning


def test_only_workloads_the_model_was_not_fitted_to_are_compared(place: Path) -> None:
    found = predictions.compared(material(place))
    assert {one.workload for one in found} == set(TEST)
    for one in found:
        assert one.measured.min() == one.predicted.min() == 1.0
        assert 0 <= one.regret(10) <= one.regret(1) < 1
    perfect = replace(found[0], predicted=found[0].measured)
    assert perfect.spearman == pytest.approx(1.0) and perfect.regret(1) == 0.0


def test_methods_are_sorted_by_their_last_regret_and_one_k_draws_no_lines(place: Path) -> None:
    folder = material(place)
    section = regret.section(folder)
    table = section.pictures[-1].table
    assert table is not None
    assert [row[0] for row in table.rows] == ["vendor"] + ["policy"] * 3 + ["cost_model"] * 3 + ["random"] * 3
    assert [row[2] for row in table.rows if row[0] == "policy"] == [percent(1 - mean) for mean in (0.90, 0.91, 0.92)]
    once = {"methods": cells((0,)), "world": "replays"}
    run = replace(folder.run("evaluate"), summary=once)
    assert [p.name for p in regret.section(replace(folder, runs={"evaluate": run})).pictures] == ["regret-intervals"]


class Linear:
    """Q is the state times the action."""

    mean = np.array([1.0, 2.0, 0.0])

    def q(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return (states * actions).sum(axis=1)


def test_occlusion_weighs_a_feature_by_what_its_absence_costs() -> None:
    options = [Option("a", 0.5, 0.0, np.array([1.0, 0.0, 2.0])), Option("b", 0.5, 0.0, np.array([0.0, 0.0, 1.0]))]
    decision = Decision(np.array([4.0, 5.0, 3.0], dtype=np.float32), 0.0, options)
    assert occlusion(Linear(), decision).tolist() == [3.0, 0.0, 3.0]  # type: ignore[arg-type]


def test_numbers_and_labels_read_well() -> None:
    assert [us(None), us(1.23456), us(12345.6), times(None), times(1.005), percent(0.1234)] == [
        "-", "1.235", "12,346", "-", "1.00", "12.3\u00a0%",
    ]  # fmt: skip
    assert label(Workload.parse("matmul/f32/M=8,N=4096,K=4096"), 13).splitlines() == ["f32 M\u00a08", "N\u00a04096 K\u00a04096"]


@pytest.mark.parametrize("entry", [None, {}, {"workload": 1}])
def test_json_of_another_form_is_refused(entry: object) -> None:
    with pytest.raises(InputError, match="here"):
        parsed(speedups.Times, entry, "here")


def test_a_heat_map_keeps_its_scale_in_dark() -> None:
    ends = {to_hex(BETTER_WORSE(share)) for share in np.linspace(0, 1, 256)}
    assert not ends & set(THEMED)
