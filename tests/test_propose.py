"""The strategy: fresh, legal proposals in either world, every part with a switch, and measurements that change its mind."""

import time
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from datasets.device import H200
from datasets.measurement import Measurement
from pipeline.policy.action import positions
from pipeline.policy.iql import Policy
from pipeline.policy.propose import PolicyStrategy, ProposeSettings
from pipeline.policy.residual import Residual, ResidualSettings
from pipeline.strategies.admission import safe_default
from pipeline.strategies.known_good import known_good
from pipeline.strategy import Task
from templates import space
from templates.errors import InputError
from templates.knob import columns_of, config_text
from tests.policy_world import LARGE, LAYOUT, ODD, SMALL, TEMPLATE, TINY, VOCAB, Formula, configs, measured_frame, some_episodes

QUICK = ProposeSettings(rollouts=16, steps=3, evaluations=100, random_starts=32, known_good=4)


@cache
def policy() -> Policy:
    return Policy.create(LAYOUT, VOCAB, TINY, some_episodes(2).states, 0)


@cache
def known():  # type: ignore[no-untyped-def]
    return known_good(measured_frame(), TEMPLATE, top=4)


def strategy(settings: ProposeSettings = QUICK, **parts: bool) -> PolicyStrategy:
    return PolicyStrategy(policy(), Formula(), known(), replace(settings, **parts))  # type: ignore[arg-type]


def task(closed: bool, workload=LARGE) -> Task:  # type: ignore[no-untyped-def]
    return Task(TEMPLATE, workload, H200, tuple(configs(60, workload, seed=3)) if closed else None)


def ok(at: Task, config: dict[str, int], time_us: float) -> Measurement:
    return Measurement(at.workload, config, "ok", time_us=time_us, source="fake")


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("workload", [LARGE, ODD])
def test_proposals_are_fresh_legal_and_distinct(closed, workload):
    at, made, history = task(closed, workload), strategy(), []
    for n in (1, 5, 5):
        found = made.propose(at, history, n, np.random.default_rng(0))
        assert len(found) == n == len({config_text(config) for config in found})
        assert not {config_text(config) for config in found} & {config_text(m.config) for m in history}
        for config in found:
            assert config in at.pool if at.pool is not None else not space.violations(TEMPLATE, config, workload, at.limits)
        history += [ok(at, config, 100.0 + i) for i, config in enumerate(found)]


def test_a_pool_is_exhausted_without_fuss():
    at = replace(task(True), pool=tuple(configs(3)))
    history = [ok(at, config, 5.0) for config in configs(3)]
    assert len(strategy().propose(at, [], 10, np.random.default_rng(0))) == 3
    assert strategy().propose(at, history, 2, np.random.default_rng(0)) == []


@pytest.mark.parametrize("off", ["use_policy", "use_cost_model", "use_known_good", "use_residual"])
@pytest.mark.parametrize("closed", [True, False])
def test_each_part_can_be_switched_off(off, closed):
    at = task(closed)
    history = [ok(at, config, 50.0 + 9 * i) for i, config in enumerate(strategy().propose(at, [], 3, np.random.default_rng(0)))]
    assert len(strategy(**{off: False}).propose(at, history, 4, np.random.default_rng(0))) == 4


def test_the_cost_model_alone_ranks_by_its_mean():
    at = task(True)
    alone = strategy(use_policy=False, use_known_good=False, use_residual=False, pessimism=0.0)  # type: ignore[arg-type]
    assert at.pool is not None
    times = Formula().log_time(LARGE, columns_of(list(at.pool), TEMPLATE.names), H200).mean(axis=0)
    assert alone.propose(at, [], 3, np.random.default_rng(0)) == [at.pool[i] for i in np.argsort(times)[:3]]


def test_pessimism_passes_over_what_the_members_disagree_about():
    at = task(True)
    assert at.pool is not None
    members = Formula().log_time(LARGE, columns_of(list(at.pool), TEMPLATE.names), H200)
    wary = strategy(use_policy=False, use_known_good=False, use_residual=False, pessimism=3.0)  # type: ignore[arg-type]
    expected = (members.mean(axis=0) + 3.0 * members.std(axis=0)).argmin()
    assert wary.propose(at, [], 1, np.random.default_rng(0)) == [at.pool[expected]]


def test_measurements_change_its_mind():
    """What the model ranks best turns out slow: its neighbours fall behind; without the residual they stay."""
    at = task(False)
    parts = {"use_policy": False, "use_known_good": False}
    first = strategy(**parts).propose(at, [], 3, np.random.default_rng(0))
    other = configs(3, LARGE, seed=8)
    predicted = Formula().log_time(LARGE, columns_of([*first, *other], TEMPLATE.names), H200).mean(axis=0)
    surprise = np.array([0.8] * 3 + [0.0] * 3)
    history = [ok(at, c, float(np.exp(p + s))) for c, p, s in zip([*first, *other], predicted, surprise, strict=True)]

    def nearest(residual: bool) -> float:
        after = strategy(**parts, use_residual=residual).propose(at, history, 3, np.random.default_rng(0))
        return float(np.mean([space.distance(TEMPLATE, config, first).min() for config in after]))

    assert nearest(True) > nearest(False)


def test_failures_are_not_proposed_again_and_do_not_break_the_residual():
    at = task(True)
    picks = strategy().propose(at, [], 4, np.random.default_rng(0))
    history = [Measurement(LARGE, config, "crash", source="fake") for config in picks]
    after = strategy().propose(at, history, 4, np.random.default_rng(0))
    assert len(after) == 4 and not any(config in picks for config in after)


def test_the_safe_default_is_among_the_first_few():
    at = task(False)
    picks = strategy().propose(at, [], 6, np.random.default_rng(0))
    assert safe_default(at) in picks


def test_same_seed_same_proposals():
    at = task(False, SMALL)
    one, two = (strategy().propose(at, [], 5, np.random.default_rng(4)) for _ in range(2))
    assert one == two


def test_policy_asked_for_but_missing_is_one_clear_line():
    with pytest.raises(InputError, match="make pretrain"):
        PolicyStrategy(None, Formula(), known(), QUICK)
    with pytest.raises(InputError, match="at least one"):
        ProposeSettings(use_policy=False, use_cost_model=False, use_known_good=False)


def test_decision_takes_less_than_a_second_of_one_core():
    at, made = task(False), PolicyStrategy(policy(), Formula(), known())
    made.propose(at, [], 1, np.random.default_rng(0))
    history = [ok(at, config, 50.0 + i) for i, config in enumerate(configs(10, seed=1))]
    started = time.process_time()
    made.propose(at, history, 5, np.random.default_rng(1))
    assert time.process_time() - started < 1.5


def test_residual_learns_where_and_how_far_the_model_errs():
    some = configs(40)
    at = positions(TEMPLATE, columns_of(list(some), TEMPLATE.names))
    errors = 5.0 + 0.1 * at[:, 0]  # the model's constant is off, and so is what it makes of one knob
    mean, doubt = Residual(at[:30], errors[:30], ResidualSettings()).at(at)
    np.testing.assert_allclose(mean[:30], errors[:30], atol=0.03)
    assert np.corrcoef(mean[30:], errors[30:])[0, 1] > 0.5
    assert doubt[:30].max() < doubt[30:].min()


def test_believing_lowers_the_doubt_there_and_nothing_else():
    some = configs(12)
    at = positions(TEMPLATE, columns_of(list(some), TEMPLATE.names))
    before = Residual(at[:5], np.arange(5) * 0.01, ResidualSettings())
    after = before.believing(at[7])
    np.testing.assert_allclose(after.at(at)[0], before.at(at)[0], atol=0.02)
    assert after.at(at)[1][7] < 0.5 * before.at(at)[1][7]


def test_measurements_are_shared_out_among_the_rankings_in_turn():
    at = task(False)
    turns = strategy(use_residual=False, explore=0.0)  # type: ignore[arg-type]
    nearest, average = (turns._borrowed(at)[name] for name in ("nearest", "one_config"))
    ranking = turns.rank(at, [], np.random.default_rng(0))
    best = ranking.configs[int((ranking.predicted + ranking.opinion).argmin())]
    picks = turns.propose(at, [], 3, np.random.default_rng(0))
    assert picks[0] == best
    assert picks[1] == next(c for c in nearest if c != best)
    assert picks[2] == next(c for c in average if c not in picks[:2])
    history = [ok(at, config, 50.0) for config in picks]  # the ranking's turn again
    alone = replace(turns, settings=replace(turns.settings, turns=["ranking"]))
    assert turns.propose(at, history, 1, np.random.default_rng(1)) == alone.propose(at, history, 1, np.random.default_rng(1))


def test_an_unknown_turn_is_one_clear_line():
    with pytest.raises(InputError, match="turns"):
        ProposeSettings(turns=["luck"])
