"""Strategies: what each proposes, in open and closed worlds, and what a trial makes of it."""

import numpy as np
import pytest
from toy_world import H200, LARGE, SMALL, TEMPLATE, TRAIN, ToyWorld, legal_configs, log_time, pool_of, task, training_frame

from pipeline.strategies.admission import admit, safe_default
from pipeline.strategies.catalogue import Unadapted
from pipeline.strategies.known_good import borrowed, known_good, nearest_first, shape_distance
from pipeline.strategies.local_search import local_search
from pipeline.strategies.ranked import CostModelRanked, CostModelRefit, RandomRanked, SearchSettings
from pipeline.strategies.simple import Random, expert, naive
from pipeline.strategies.transfer import Nearest, OneConfig, rank_on_average
from pipeline.strategies.trial import Memory, Trial, rounds, run_strategy, run_trials
from pipeline.strategy import Strategy
from templates import space
from templates.errors import InputError
from templates.knob import config_text
from templates.workload import Workload

KNOWN = known_good(training_frame(), TEMPLATE)
QUICK = SearchSettings(random_starts=60, borrowed_starts=6, local_starts=4, local_evaluations=100)
POOL = tuple(pool_of(SMALL))
RNG = np.random.default_rng(0)


def strategies() -> list[Strategy]:
    return [
        naive(),
        expert(),
        Random(),
        RandomRanked(log_time),
        Nearest(KNOWN),
        OneConfig(KNOWN, log_time),
        CostModelRanked(log_time, KNOWN, QUICK),
        CostModelRefit(log_time, lambda history: log_time, KNOWN, QUICK),
    ]


@pytest.mark.parametrize("pool", [None, POOL], ids=["open", "closed"])
@pytest.mark.parametrize("name", [strategy.name for strategy in strategies()])
def test_proposals_are_distinct_measurable_and_never_measured_before(name: str, pool: tuple[dict[str, int], ...]) -> None:
    strategy = next(s for s in strategies() if s.name == name)
    here = task(pool=pool)
    history, rng = [], np.random.default_rng(0)
    for n in (1, 4):
        proposed = strategy.propose(here, history, n, rng)
        assert len(proposed) == n or strategy.name in ("naive", "expert")
        texts = [config_text(config) for config in proposed]
        assert len(set(texts)) == len(texts)
        assert not set(texts) & {config_text(m.config) for m in history}
        for config in proposed:
            assert config in pool if pool else not space.violations(TEMPLATE, config, SMALL, H200.limits)
        history += ToyWorld().measure([_candidate(config) for config in proposed])


def _candidate(config: dict[str, int]):  # type: ignore[no-untyped-def]
    from datasets.measurement import Candidate

    return Candidate(SMALL, config)


def test_local_search_beats_as_many_random_configs_and_keeps_to_its_evaluations() -> None:
    scored: list[int] = []
    hidden = legal_configs(SMALL, 1, seed=99)[0]

    def score(configs: list[dict[str, int]]) -> np.ndarray:
        scored.append(len(configs))
        return space.distance(TEMPLATE, hidden, configs)

    found = local_search(task(), score, legal_configs(SMALL, 16), 500, np.random.default_rng(0))
    assert sum(scored) == len(found) == 500
    assert [value for value, _ in found] == sorted(value for value, _ in found)
    assert found[0][0] < 0.5 * space.distance(TEMPLATE, hidden, legal_configs(SMALL, 500)).min()
    assert len({config_text(config) for _, config in found}) == 500


def test_local_search_without_starts_or_budget_ends() -> None:
    start = legal_configs(SMALL, 1)[0]
    here = task()
    assert len(local_search(here, lambda cs: np.zeros(len(cs)), [start], 1, RNG)) == 1
    assert local_search(here, lambda cs: np.zeros(len(cs)), [], 100, RNG) == []


def test_local_search_in_a_closed_world_ranks_the_pool() -> None:
    found = local_search(task(pool=POOL), lambda cs: log_time(SMALL, cs), [dict(TEMPLATE.naive)], 3, np.random.default_rng(0))
    assert len(found) == len(POOL)
    assert found[0][0] == log_time(SMALL, list(POOL)).min()


def test_an_illegal_config_moves_to_the_nearest_legal_one() -> None:
    odd = TEMPLATE.workload(M=2047, N=2047, K=2047)
    wide = dict(TEMPLATE.expert(LARGE))
    assert wide["width_a"] == 4
    moved = admit(task(odd), wide)
    assert space.violations(TEMPLATE, moved, odd, H200.limits) == []
    assert {name for name in TEMPLATE.names if moved[name] != wide[name]} == {"width_a", "width_b"}


def test_a_config_outside_the_pool_moves_to_the_nearest_in_it() -> None:
    target = POOL[7]
    near = {**target, "min_blocks": 2 if target["min_blocks"] == 1 else 1}
    assert near not in POOL
    assert admit(task(pool=POOL), near) == target


def test_an_empty_pool_says_to_collect() -> None:
    with pytest.raises(InputError, match="run collect"):
        admit(task(pool=()), dict(TEMPLATE.naive))


def test_nearest_copies_the_nearest_shape_first() -> None:
    near = nearest_first(KNOWN, LARGE)
    assert near[0].workload == TRAIN[1]
    assert shape_distance(LARGE, TRAIN[1]) == pytest.approx(np.sqrt(3))
    order = borrowed(KNOWN, LARGE)
    assert order[0] == near[0].configs[0]
    assert order.index(near[0].configs[1]) < order.index(near[1].configs[1])
    assert near[0].times_us[0] == min(near[0].times_us)


def test_the_best_on_average_is_the_best_on_average() -> None:
    def mean(config: dict[str, int]) -> float:
        here = [k for k in KNOWN if not space.violations(TEMPLATE, config, k.workload, H200.limits)]
        return float(np.mean([log_time(k.workload, [config])[0] - np.log(k.times_us[0]) for k in here]))

    ranking = rank_on_average(task(), KNOWN, log_time)
    assert len(ranking) == 10
    assert [mean(config) for config in ranking] == sorted(mean(config) for config in ranking)
    assert len({config_text(Nearest(KNOWN).propose(task(w), [], 1, RNG)[0]) for w in (SMALL, LARGE)}) == 2
    one = OneConfig(KNOWN, log_time)
    assert all(one.propose(task(w), [], 1, RNG) == [admit(task(w), ranking[0])] for w in (SMALL, LARGE))


def test_random_in_a_closed_world_draws_only_what_was_drawn_at_random() -> None:
    fair = list(POOL[20:30])
    strategy = Random({str(SMALL): fair})
    drawn = strategy.propose(task(pool=POOL), [], 25, np.random.default_rng(0))
    assert len(drawn) == 10
    assert all(config in fair for config in drawn)


def test_known_good_without_a_timed_row_says_to_collect() -> None:
    frame = training_frame(3)
    with pytest.raises(InputError, match="run collect"):
        known_good(frame.assign(status="crash"), TEMPLATE)


def test_refitting_follows_the_measurements() -> None:
    def refit(history):  # type: ignore[no-untyped-def]
        return lambda workload, configs: -log_time(workload, configs)

    strategy = CostModelRefit(log_time, refit, KNOWN, QUICK)
    here, rng = task(pool=POOL), np.random.default_rng(0)
    first = strategy.propose(here, [], 1, rng)
    history = list(ToyWorld().measure([_candidate(first[0])]))
    then = strategy.propose(here, history, 1, rng)
    order = np.argsort(log_time(SMALL, list(POOL)))
    assert first == [POOL[order[0]]] and then == [POOL[order[-1]]]


def test_rounds_end_at_every_k() -> None:
    assert rounds([0, 1, 10, 25], 5) == [1, 5, 4, 5, 5, 5]
    assert rounds([10], 4) == [4, 4, 2]
    assert rounds([0], 4) == []


def test_the_choice_is_the_fastest_measured_and_never_gets_worse() -> None:
    picks = run_strategy(Random(), task(pool=POOL), ToyWorld({SMALL: list(POOL)}), (0, 1, 10, 25), 4, seed=3)
    times = [picks[k][1].time_us for k in (1, 10, 25)]
    assert times == sorted(times, reverse=True)
    assert picks[0][0] == picks[1][0]


def test_failures_cost_measurements_and_end_in_the_safe_default() -> None:
    default = safe_default(task())
    world = ToyWorld(fails=lambda config: config != default)
    picks = run_strategy(Random(), task(), world, (0, 1, 10), 5)
    assert picks[0][1].status == "wrong_answer"
    assert picks[10][0] == default
    assert len(world.asked) == 11


def test_what_two_trials_ask_for_is_measured_once() -> None:
    world = ToyWorld({SMALL: list(POOL)})
    here = task(pool=POOL)
    trials = [Trial(CostModelRanked(log_time, KNOWN, QUICK), s, np.random.default_rng(s)) for s in range(3)]
    run_trials(trials, Memory(world, here), (0, 1, 10), 5)
    assert [len(trial.history) for trial in trials] == [10, 10, 10]
    assert len(world.asked) == 10


def test_a_strategy_with_nothing_left_rests() -> None:
    picks = run_strategy(naive(), task(), ToyWorld(), (0, 1, 10), 5)
    assert all(config == TEMPLATE.naive for config, _ in picks.values())


def test_unadapted_follows_the_ranking_it_made_before_the_first_measurement() -> None:
    class Turncoat:
        """Turns its ranking round at the first measurement."""

        name = "turncoat"

        def propose(self, task, history, n, rng):  # type: ignore[no-untyped-def]
            return list(POOL[:n]) if not history else list(POOL[::-1][:n])

    here, strategy = task(pool=POOL), Unadapted(Turncoat(), 6)
    first = strategy.propose(here, [], 2, RNG)
    history = list(ToyWorld().measure([_candidate(config) for config in first]))
    assert first + strategy.propose(here, history, 4, RNG) == list(POOL[:6])


def test_distance_holds_for_extents_of_nothing_and_between_dtypes():
    causal, not_causal = (Workload.parse(f"attention/f32/B=1,H=2,KV=2,Q=8,K=8,D=64,causal={c}") for c in (1, 0))
    assert shape_distance(causal, not_causal) == 1.0 and shape_distance(not_causal, not_causal) == 0.0
    here, same_size, twice = (Workload.parse(f"softmax/{dtype}/M=64,N=64") for dtype in ("f16", "bf16", "f32"))
    assert 0 < shape_distance(here, same_size) < 1 < shape_distance(here, twice) < float("inf")
    assert shape_distance(here, LARGE) == float("inf")
