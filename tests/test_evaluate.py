"""Evaluation: same measurements for everyone, true times, flukes, leaks, budgets."""

from collections.abc import Sequence

import numpy as np
import pytest
from toy_world import LARGE, SMALL, TEMPLATE, TRAIN, ToyWorld, log_time, pool_of, training_frame

from datasets.measurement import Measurement
from pipeline.evaluation import EvaluateSettings, Evaluation, Journal, check_apart, evaluate, task_of
from pipeline.strategies.known_good import known_good
from pipeline.strategies.ranked import CostModelRanked, SearchSettings
from pipeline.strategies.simple import Random, expert, naive
from pipeline.strategies.transfer import Nearest
from pipeline.strategy import Task
from templates.errors import InputError
from templates.knob import config_text
from templates.workload import Workload

KNOWN = known_good(training_frame(), TEMPLATE)
QUICK = SearchSettings(random_starts=40, borrowed_starts=4, local_starts=4, local_evaluations=60)
FACTORIES = {
    "naive": naive,
    "expert": expert,
    "random": Random,
    "nearest": lambda: Nearest(KNOWN),
    "cost_model": lambda: CostModelRanked(log_time, KNOWN, QUICK),
}


def run(world: ToyWorld, workloads: Sequence[Workload] = (SMALL, LARGE), **settings: object) -> Evaluation:
    chosen = EvaluateSettings(**{"seeds": 2, "ks": [0, 1, 5], "methods": list(FACTORIES), **settings})  # type: ignore[arg-type]
    best = {w: [min(pool_of(w), key=lambda c: log_time(w, [c])[0])] for w in workloads}
    return evaluate(FACTORIES, workloads, TEMPLATE, world, chosen, best)


def closed() -> ToyWorld:
    return ToyWorld({SMALL: pool_of(SMALL), LARGE: pool_of(LARGE)})


def test_every_method_seed_and_k_has_one_pick_with_its_true_time() -> None:
    result = run(closed())
    keys = {(p.workload, p.method, p.seed, p.measurements) for p in result.picks}
    assert len(keys) == len(result.picks) == 2 * 5 * 2 * 3
    by_text = {w: {config_text(c): float(np.exp(log_time(w, [c])[0])) for c in pool_of(w)} for w in (SMALL, LARGE)}
    assert all(p.time_us == pytest.approx(by_text[p.workload][p.config]) for p in result.picks)


def test_the_best_known_is_the_best_of_the_pool_and_nobody_beats_it() -> None:
    result = run(closed())
    for workload, yardstick in result.yardsticks.items():
        assert yardstick.best_us == pytest.approx(float(np.exp(log_time(workload, pool_of(workload)).min())))
        assert all(p.time_us is not None and p.time_us >= yardstick.best_us for p in result.picks if p.workload == workload)
    perfect = [p for p in result.picks if p.method == "cost_model" and p.measurements == 0]
    assert all(p.time_us == pytest.approx(result.yardsticks[p.workload].best_us) for p in perfect)


def test_what_a_method_finds_counts_for_the_best_known() -> None:
    world = ToyWorld(source="gpu")
    result = run(world, [SMALL])
    best_of_pool = float(np.exp(log_time(SMALL, pool_of(SMALL)).min()))
    assert result.yardsticks[SMALL].best_us < 0.99 * best_of_pool


def test_regret_falls_with_measurements_from_zero_to_the_longest() -> None:
    regret = run(closed()).regret
    assert {values.shape for values in regret.values()} == {(6, 4)}
    assert all((np.diff(values[1:], axis=0) <= 1e-12).all() for values in regret.values())
    assert regret["cost_model"].max() == 0.0 < regret["random"].mean()


def test_the_same_seed_gives_the_same_picks_and_another_does_not() -> None:
    one, again = run(closed()), run(closed())
    assert one.picks == again.picks
    random = {(p.seed, p.config) for p in one.picks if p.method == "random" and p.measurements == 0}
    assert len({config for _, config in random}) > 1


def test_a_fluke_does_not_win_a_live_final() -> None:
    fluke = config_text(pool_of(SMALL)[5])

    def skew(config: dict[str, int], call: int) -> float:
        return 0.01 if call == 0 and config_text(config) == fluke else 1.0

    world = ToyWorld({SMALL: pool_of(SMALL)}, source="gpu", skew=skew)  # type: ignore[arg-type]
    result = run(world, [SMALL], ks=[0, 60])
    chosen = [p for p in result.picks if p.config == fluke and p.measurements == 60]
    assert chosen, "the fluke is chosen, for it looked fast"
    true_us = float(np.exp(log_time(SMALL, [pool_of(SMALL)[5]])[0]))
    assert all(p.time_us == pytest.approx(true_us) for p in chosen)
    assert result.yardsticks[SMALL].best_us == pytest.approx(float(np.exp(log_time(SMALL, pool_of(SMALL)).min())))


def test_live_choices_are_timed_again_in_rounds_that_interleave_them() -> None:
    world = ToyWorld(source="gpu")
    run(world, [SMALL], final_rounds=3)
    texts = [config_text(c.config) for c in world.asked]
    finalists = {text for text in texts if texts.count(text) == 4}
    assert len(finalists) > 4
    tail = texts[-3 * len(finalists) :]
    rounds = [tail[i * len(finalists) : (i + 1) * len(finalists)] for i in range(3)]
    assert all(set(r) == finalists for r in rounds)
    assert rounds[0] != rounds[1]


def test_replay_measures_nothing_twice() -> None:
    world = closed()
    run(world, [SMALL])
    texts = [config_text(c.config) for c in world.asked]
    assert len(texts) == len(set(texts))


def test_a_zero_shot_choice_that_does_not_run_scores_nothing_but_one_measured_falls_back() -> None:
    keep = {config_text(TEMPLATE.naive), config_text(TEMPLATE.expert(SMALL))}
    result = run(ToyWorld(fails=lambda config: config_text(config) not in keep), [SMALL])
    random = {p.measurements: p for p in result.picks if p.method == "random"}
    assert (random[0].time_us, random[0].status) == (None, "wrong_answer")
    assert random[5].config == config_text(TEMPLATE.expert(SMALL)) and random[5].status == "ok"


def test_the_vendor_is_shown_but_is_not_the_best_known() -> None:
    result = run(ToyWorld(source="gpu"), [SMALL, LARGE], methods=[*FACTORIES, "vendor"])
    vendor = [p for p in result.picks if p.method == "vendor"]
    assert [p.time_us for p in vendor] == [50.0, 50.0]
    assert result.yardsticks[LARGE].vendor_us == 50.0 < result.yardsticks[LARGE].best_us


def test_a_workload_without_a_baseline_says_so() -> None:
    pool = [config for config in pool_of(SMALL) if config != TEMPLATE.naive]
    with pytest.raises(InputError, match="no baseline"):
        run(ToyWorld({SMALL: pool}), [SMALL])


def test_a_workload_that_was_never_recorded_says_so() -> None:
    with pytest.raises(InputError, match="nothing recorded"):
        run(closed(), [TRAIN[0]])


def test_a_model_trained_on_a_test_workload_is_refused() -> None:
    check_apart([SMALL, LARGE], [str(w) for w in TRAIN], "the cost model")
    with pytest.raises(InputError, match="the cost model was trained on matmul/f32/M=8192,N=8192,K=8192"):
        check_apart([SMALL, LARGE], [str(TRAIN[0]), str(LARGE)], "the cost model")


def test_no_workload_is_started_that_the_budget_does_not_hold() -> None:
    result = run(closed(), budget_s=1e-6)
    assert result.left_out == [LARGE]
    assert {p.workload for p in result.picks} == {SMALL}


def test_pools_come_in_an_order_that_says_nothing_about_times() -> None:
    fastest_first = sorted(pool_of(SMALL), key=lambda c: log_time(SMALL, [c])[0])
    pool = task_of(TEMPLATE, SMALL, ToyWorld({SMALL: fastest_first})).pool
    assert pool == task_of(TEMPLATE, SMALL, ToyWorld({SMALL: fastest_first[::-1]})).pool


def test_an_interrupted_live_run_goes_on_from_its_journal() -> None:
    saved: list[Measurement] = []
    settings = EvaluateSettings(seeds=1, ks=[0, 5], methods=["random"], final_rounds=1)
    first, second = ToyWorld(source="gpu"), ToyWorld(source="gpu")
    factories = {"random": Random}
    evaluate(factories, [SMALL], TEMPLATE, first, settings, {}, journal=Journal((), saved.extend))
    evaluate(factories, [SMALL], TEMPLATE, second, settings, {}, journal=Journal(saved, saved.extend))
    assert len(first.asked) > len(second.asked)
    assert {config_text(c.config) for c in second.asked} <= {config_text(c.config) for c in first.asked}


class Cheat:
    """Proposes what it was told not to: the same config for ever."""

    name = "cheat"

    def propose(self, task: Task, history: Sequence[Measurement], n: int, rng: np.random.Generator) -> list[dict[str, int]]:
        return [dict(TEMPLATE.naive)] * n


def test_a_strategy_that_repeats_itself_is_a_fault() -> None:
    settings = EvaluateSettings(seeds=1, ks=[0, 1, 5], methods=["random"])
    with pytest.raises(AssertionError, match="cheat"):
        evaluate({"cheat": Cheat}, [SMALL], TEMPLATE, closed(), settings, {})


def test_settings_refuse_nonsense() -> None:
    for wrong in ({"methods": ["oracle"]}, {"ks": []}, {"ks": [-1]}, {"seeds": 0}, {"policy": "best"}):
        with pytest.raises(InputError):
            EvaluateSettings(**wrong)  # type: ignore[arg-type]


