"""The learner: better than chance on a toy landscape, the same by seed, the same after an interruption, no pickles."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from datasets.episodes import Episodes
from pipeline.policy import behaviour
from pipeline.policy.behaviour import Acting, Blind
from pipeline.policy.iql import Policy
from pipeline.policy.iql_settings import IqlSettings
from pipeline.policy.reward import RewardSettings
from pipeline.policy.world import WorldSettings
from templates.errors import InputError
from tests.policy_world import LAYOUT, TINY, VOCAB, search, some_episodes


@cache
def episodes() -> Episodes:
    return some_episodes()


def fresh(settings: IqlSettings = TINY, seed: int = 0) -> Policy:
    return Policy.create(LAYOUT, VOCAB, settings, episodes().states, seed, ["matmul/f32/M=1,N=1,K=1"])


def taught(policy: Policy, steps: int, seed: int = 0) -> Policy:
    policy.train(policy.prepare(episodes(), RewardSettings()), steps, seed)
    return policy


def actions(policy: Policy) -> np.ndarray:
    return policy.sample_actions(episodes().states[:5], 3, np.random.default_rng(1))


def test_learns_a_toy_landscape_better_than_chance():
    policy = taught(fresh(replace(TINY, batch=128, hidden=[64, 64], learning_rate=3e-3)), 250)
    gains = {}
    for name, way in (("random", Blind()), ("policy", Acting(policy, samples=8))):
        runs = [behaviour.run(search(16, 100 + i, WorldSettings(fail_rate=0.0)), way, np.random.default_rng(i)) for i in range(3)]
        gains[name] = np.mean([run.returns().mean() for run in runs])
    assert gains["policy"] > gains["random"] + 0.2


def test_same_seed_same_policy():
    one, two, other = taught(fresh(), 10), taught(fresh(), 10), taught(fresh(seed=1), 10, seed=1)
    np.testing.assert_array_equal(actions(one), actions(two))
    assert (actions(one) != actions(other)).any()


def test_continued_from_a_checkpoint_equals_uninterrupted(tmp_path):
    whole = taught(fresh(), 14)
    taught(fresh(), 6).save(tmp_path)
    resumed = taught(Policy.load(tmp_path), 8)
    assert resumed.steps == whole.steps == 14
    np.testing.assert_allclose(actions(resumed), actions(whole), atol=1e-6)
    some = episodes()
    np.testing.assert_allclose(resumed.q(some.states, some.actions), whole.q(some.states, some.actions), atol=1e-5)


def test_without_the_optimisers_state_it_would_not(tmp_path):
    """The check above bites: dropping Adam's moments changes the result."""
    whole = taught(fresh(), 14)
    taught(fresh(), 6).save(tmp_path)
    resumed = Policy.load(tmp_path)
    resumed.algo.impl.modules.reset_optimizer_states()  # type: ignore[union-attr]
    assert np.abs(actions(taught(resumed, 8)) - actions(whole)).max() > 1e-4


def test_saved_policy_reloads_to_equal_actions_and_holds_no_pickle(tmp_path):
    policy = taught(fresh(), 5)
    policy.save(tmp_path)
    back = Policy.load(tmp_path)
    np.testing.assert_array_equal(actions(back), actions(policy))
    np.testing.assert_array_equal(back.value(episodes().states), policy.value(episodes().states))
    assert back.workloads == policy.workloads and back.layout == policy.layout and back.vocab == policy.vocab
    assert sorted(path.name for path in tmp_path.iterdir()) == ["networks.safetensors", "policy.json"]
    for path in tmp_path.iterdir():
        assert not path.read_bytes().startswith((b"PK", b"\x80"))  # torch's zip of pickles, a bare pickle


@pytest.mark.parametrize("damage", ["cut", "missing", "format"])
def test_damaged_policy_is_one_clear_line(tmp_path, damage):
    fresh().save(tmp_path)
    if damage == "cut":
        file = tmp_path / "networks.safetensors"
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "missing":
        (tmp_path / "policy.json").unlink()
    else:
        about = tmp_path / "policy.json"
        about.write_text(about.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(InputError, match="run `make pretrain` again") as caught:
        Policy.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_fresh_episodes_take_their_share_of_every_batch():
    """With rewards of 0 offline and 1 fresh, the critics' target tells the shares apart."""
    some = episodes()
    ends = replace(some, terminals=np.ones(len(some), dtype=bool))
    seen = {}
    for share in (0.0, 0.5, 1.0):
        policy = fresh(replace(TINY, learning_rate=3e-3))
        none, all_ones = (
            policy.prepare(replace(ends, rewards=np.full(len(ends), reward, dtype=np.float32)), RewardSettings(normalise="none"))
            for reward in (0.0, 1.0)
        )
        policy.train(none, 60, 0, fresh=all_ones, fresh_share=share)
        seen[share] = policy.q(some.states, some.actions).mean()
    assert seen[0.0] < 0.25 < seen[0.5] < 0.75 < seen[1.0]


def test_constant_features_do_not_blow_up_on_another_device():
    policy = fresh()
    states = episodes().states[:4].copy()
    states[:, LAYOUT.places["device_log_sm_count"]] += 3.0  # the same in every training state
    assert np.isfinite(policy.value(states)).all()
    assert np.abs(policy._scaled(states)).max() <= 8.0


def test_wrong_state_size_and_bad_settings_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="run `make pretrain` again"):
        fresh().value(np.zeros((1, 3)))
    with pytest.raises(InputError, match="expectile"):
        IqlSettings(expectile=1.5)
