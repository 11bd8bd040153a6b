"""The episode: rewards add up to the gain, failures stay bounded, closed worlds answer for what they hold."""

from dataclasses import replace

import numpy as np
import pytest

from datasets.device import H200
from datasets.episodes import Episodes, concatenate
from datasets.measurement import Measurement
from pipeline.measure.fake import FakeMeasurer
from pipeline.measure.replay import Replay
from pipeline.policy import behaviour
from pipeline.policy.behaviour import Blind, NoisyGreedy, Towards
from pipeline.policy.env import EpisodeSettings, Search
from pipeline.policy.reward import Outcome, RewardSettings, RunningNormaliser, log_speedup, normalised, penalty, zscore
from pipeline.policy.world import MeasuredWorld, Pool, Remembered, WorldSettings, config_at
from templates import space
from templates.errors import InputError
from templates.knob import columns_of
from tests.policy_world import LARGE, LAYOUT, ODD, TEMPLATE, Formula, configs, measured_frame, scene, search, simulated


def play(found: Search, way=None, seed: int = 0) -> Episodes:  # type: ignore[no-untyped-def]
    return behaviour.run(found, way or Blind(), np.random.default_rng(seed))


@pytest.mark.parametrize("way", [Blind(0.4), NoisyGreedy()])
def test_rewards_telescope_to_the_gain(way):
    found = search(8, seed=3, world=WorldSettings(fail_rate=0.0))
    start = found.memory.level.copy()
    returns = play(found, way).returns()
    np.testing.assert_allclose(returns, found.memory.level - start, atol=1e-5)


def test_gain_is_the_log_speedup_of_what_is_handed_out():
    found = search(8, seed=3, world=WorldSettings(fail_rate=0.0, baseline_rate=1.0))
    assert found.world is not None
    starts = [config_at(found.columns, row) for row in range(8)]
    found.observe(np.arange(8), found.world.measure(starts))
    returns = play(found, Blind(0.4)).returns()
    ends = [config_at(found.columns, row) for row in range(8)]
    times = [[outcome.log_time for outcome in found.world.measure(some)] for some in (starts, ends)]
    np.testing.assert_allclose(returns, np.subtract(*times), atol=1e-5)
    assert (returns > -1e-6).all()  # a search that has measured its start never hands out anything slower


def test_an_episode_ends_by_measuring_and_spends_no_more_than_it_has():
    found = search(8, steps=6, measurements=2)
    episodes = play(found, Blind(0.0))
    assert (found.memory.measured == 1).all() and found.ended.all()
    assert (np.bincount(episodes.episode) == 6).all()
    greedy = search(8, steps=50, measurements=2)
    play(greedy, NoisyGreedy())
    assert (greedy.memory.measured == 2).all()


def test_each_episode_has_one_last_transition():
    episodes = play(search(8))
    assert np.bincount(episodes.episode, weights=episodes.terminals).tolist() == [1.0] * 8


def test_failures_are_bounded_and_never_reach_the_buffer_as_nan():
    found = search(8, world=WorldSettings(fail_rate=1.0))
    start = found.memory.level.copy()
    episodes = play(found, Blind(0.5))
    assert np.isfinite(episodes.rewards).all()
    cost = RewardSettings().failure_penalty * found.memory.measured
    np.testing.assert_allclose(episodes.returns(), -cost, atol=1e-5)
    np.testing.assert_allclose(found.memory.level, start)  # back where it came from


def test_buffer_refuses_a_reward_that_is_not_finite():
    episodes = play(search(2))
    with pytest.raises(AssertionError, match="not finite"):
        replace(episodes, rewards=np.full(len(episodes), np.inf, dtype=np.float32))


def test_crash_on_an_edge_shape_is_masked():
    crash, build = Outcome("crash", None), Outcome("compile_error", None)
    settings = RewardSettings()
    assert penalty(crash, ODD, settings) == 0
    assert penalty(crash, LARGE, settings) == settings.failure_penalty
    assert penalty(build, ODD, settings) == settings.failure_penalty
    assert penalty(crash, ODD, replace(settings, mask_crashes=False)) == settings.failure_penalty
    assert penalty(Outcome("contaminated", None), LARGE, settings) == 0


class Slow:
    """A world where nothing compiles in time."""

    baseline, pool = None, None

    def measure(self, some):  # type: ignore[no-untyped-def]
        return [Outcome("compile_timeout", None) for _ in some]


def test_choice_that_compiled_too_slowly_is_set_aside_for_a_while():
    settings = EpisodeSettings(steps=20, measurements=5, aside_steps=3)
    found = Search(scene(), Slow(), configs(1), settings, RewardSettings(), np.random.default_rng(0))
    row, go = np.array([0]), np.zeros(1, dtype=bool)
    moves = found.moves(row)
    move = np.array([np.flatnonzero(moves.legal[0])[0]])
    found.step(row, moves, behaviour.Choice(go, move))
    found.step(row, found.moves(row), behaviour.Choice(~go, move))
    assert not found.moves(row).legal[0, move[0]]
    for _ in range(3):
        moves = found.moves(row)
        found.step(row, moves, behaviour.Choice(go, np.array([np.flatnonzero(moves.legal[0])[-1]])))
    found.put(row, configs(1))
    assert found.moves(row).legal[0, move[0]]


def closed(n: int = 30) -> tuple[MeasuredWorld, list[dict[str, int]]]:
    world = MeasuredWorld(Replay(measured_frame(n, (LARGE,)), H200), LARGE)
    assert world.pool is not None
    return world, list(world.pool)


def test_closed_world_measures_only_what_it_holds():
    world, pool = closed()
    found = Search(scene(), world, pool[:4], EpisodeSettings(steps=5), RewardSettings(), np.random.default_rng(0))
    start = found.memory.level.copy()
    episodes = play(found, Blind(0.3))
    assert all(config_at(found.best_columns, row) in pool for row in range(4))
    assert {m.status for m in world.seen.values()} == {"ok"}
    np.testing.assert_allclose(episodes.returns(), found.memory.level - start, atol=1e-5)


def test_snapping_takes_the_nearest_and_leaves_out_what_was_tried():
    _, pool = closed()
    wanted = configs(5, LARGE, seed=9)
    index = Pool(TEMPLATE, pool)
    for config, place in zip(wanted, index.nearest(wanted), strict=True):
        gaps = space.distance(TEMPLATE, config, pool)
        assert gaps[place] == pytest.approx(gaps.min())
    first = index.nearest(wanted[:1])[0]
    assert index.nearest(wanted[:1], [{first}])[0] != first


def test_pool_is_not_in_the_order_of_the_times():
    world, pool = closed()
    times = [m.time_us for m in world.ask(pool)]
    assert times != sorted(times)  # a replay lists the fastest first; ties must not fall to it


def test_nothing_is_measured_twice():
    calls: list[int] = []

    class Counting(FakeMeasurer):
        def measure(self, candidates):  # type: ignore[no-untyped-def]
            calls.append(len(candidates))
            return super().measure(candidates)

    world = MeasuredWorld(Counting(H200), LARGE)
    some = configs(3)
    first: list[Measurement] = world.ask([*some, some[0]])
    assert world.ask(some) == first[:3] and calls[0] == 3 and sum(calls) == 3


def test_guide_is_asked_once_per_config():
    guide = Formula()
    model, some = Remembered(guide, TEMPLATE), columns_of(list(configs(4)), TEMPLATE.names)
    first = model.log_time(LARGE, some, H200)
    np.testing.assert_array_equal(model.log_time(LARGE, some, H200), first)
    np.testing.assert_allclose(first, guide.log_time(LARGE, some, H200))
    assert guide.calls == 2


def test_simulated_world_is_the_same_at_every_repeat_and_differs_by_seed():
    some = configs(6)
    one, again, other = simulated(seed=1), simulated(seed=1), simulated(seed=2)
    assert one.measure(some) == one.measure(some[::-1])[::-1] == again.measure(some) != other.measure(some)


def test_walking_to_a_goal_gets_nearer():
    world = simulated(settings=WorldSettings(fail_rate=0.0))
    start, goal = configs(2, seed=4)
    found = Search(scene(), world, [start], EpisodeSettings(steps=12), RewardSettings(), np.random.default_rng(0))
    before = space.distance(TEMPLATE, start, [goal])[0]
    for _ in range(8):
        moves = found.moves(np.array([0]))
        choice = Towards([goal], wander=0.0).choose(found, np.array([0]), moves, np.random.default_rng(0))
        if choice.measure[0]:
            break
        found.edit(np.array([0]), moves, choice.move)
    assert space.distance(TEMPLATE, config_at(found.columns, 0), [goal])[0] < before


def test_reward_is_the_log_of_the_ratio():
    assert log_speedup(200.0, 100.0) == pytest.approx(np.log(2))


def test_normaliser_keeps_one_operator_from_dominating():
    rng = np.random.default_rng(0)
    rewards = np.concatenate([rng.normal(size=3000), 100 * rng.normal(size=3000)])
    operator = np.repeat([0, 1], 3000)
    for settings in (RewardSettings(), RewardSettings(normalise="batch", centre=True)):
        scaled = normalised(rewards, operator, settings)
        assert scaled[:3000].std() == pytest.approx(1, abs=0.06) and scaled[3000:].std() == pytest.approx(1, abs=0.06)
    assert abs(zscore(rewards, operator)[3000:].mean()) < 1e-3
    np.testing.assert_allclose(normalised(rewards, operator, RewardSettings(normalise="none")), rewards, rtol=1e-6)


def test_normaliser_forgets_all_but_the_last():
    running = RunningNormaliser(window=1000)
    running.observe(np.linspace(-1e6, 1e6, 500), np.zeros(500))
    running.observe(np.tile([-2.0, 2.0], 500), np.zeros(1000))
    np.testing.assert_allclose(running(np.array([2.0]), np.zeros(1)), [1.0])


def test_equal_rewards_stay_finite():
    assert np.isfinite(normalised(np.ones(5), np.zeros(5), RewardSettings())).all()
    with pytest.raises(InputError, match="use running, batch or none"):
        RewardSettings(normalise="zscore")


def test_episodes_survive_the_disk_and_joining(tmp_path):
    one, two = play(search(2)), play(search(3, seed=1))
    one.save(tmp_path / "one.npz")
    back = Episodes.load(tmp_path / "one.npz")
    np.testing.assert_array_equal(back.states, one.states)
    joined = concatenate([one, two])
    assert joined.count == 5 and len(joined) == len(one) + len(two)
    np.testing.assert_allclose(joined.returns(), [*one.returns(), *two.returns()])
    (tmp_path / "one.npz").write_bytes(b"half a file")
    with pytest.raises(InputError, match="cannot be read"):
        Episodes.load(tmp_path / "one.npz")


def test_same_seed_same_episodes():
    one, two, other = play(search(4, seed=5)), play(search(4, seed=5)), play(search(4, seed=6))
    np.testing.assert_array_equal(one.actions, two.actions)
    np.testing.assert_array_equal(one.rewards, two.rewards)
    assert one.actions.shape != other.actions.shape or (one.actions != other.actions).any()
    assert one.states.shape[1] == LAYOUT.size
