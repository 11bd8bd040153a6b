"""A GPU left out: the ruler, what the others say of it, the strategies on it, and that none of this knows its times."""

from dataclasses import replace

import numpy as np
import pytest
from spaces import space

from cost_model.model import CostModelSettings
from datasets.measured_space import Parameter
from pipeline.spaces.known import LeftOut, SpaceReplay
from pipeline.spaces.methods import METHODS, Knowledge
from pipeline.spaces.score import Ruler
from pipeline.spaces.study import Course, groups, scores
from pipeline.strategies.expert_fit import fitted, log_likelihood
from pipeline.strategies.experts import Experts, ExpertSettings, Opinions, expected_improvement
from pipeline.strategies.trial import Memory, Trial, run_trials
from templates.errors import InputError
from templates.knob import config_text

SMALL = CostModelSettings(members=2, trees=20, depth=4, threads=1)
TARGET = space("GPU A", best_block=64)
KNOWN = (space("GPU B", best_block=64, failing=128), space("GPU C", best_block=16))
HERE = LeftOut.of(TARGET, KNOWN)


def searched(name: str, here: LeftOut = HERE, n: int = 12) -> list[float | None]:
    trial = Trial(Knowledge(here, SMALL, 0).strategy(name), 0, np.random.default_rng(0))
    run_trials([trial], Memory(SpaceReplay(here), here.task), [1, n], 3)
    return [m.time_us for m in trial.history]


def test_random_search_expects_what_many_random_searches_find() -> None:
    ruler = Ruler.of(TARGET, 20)
    rng, times = np.random.default_rng(0), [row.time_us for row in TARGET.rows]
    drawn = [[times[i] for i in rng.permutation(len(times))[:20]] for _ in range(3000)]
    found = np.mean([ruler.best_so_far(course, 20) for course in drawn], axis=0)
    np.testing.assert_allclose(found, ruler.random_us, rtol=0.03)
    assert abs(np.mean([ruler.score(course, 20) for course in drawn])) < 0.05


def test_the_optimum_at_once_scores_one_and_failures_only_below_random() -> None:
    ruler = Ruler.of(TARGET, 10)
    assert ruler.score([ruler.best_us], 10) == pytest.approx(1.0)
    assert ruler.fraction([ruler.best_us], 10) == 1.0
    assert ruler.score([None] * 10, 10) < 0 and ruler.fraction([None] * 10, 10) == 0.0
    assert ruler.score([], 10) < 0
    assert ruler.fraction([4 * ruler.best_us, ruler.best_us], 1) == 0.25
    assert Ruler.of(TARGET, 100).random_us[-1] == ruler.best_us


@pytest.mark.parametrize("name", METHODS)
def test_every_method_measures_distinct_configs_of_the_left_out_gpu(name: str) -> None:
    trial = Trial(Knowledge(HERE, SMALL, 0).strategy(name), 0, np.random.default_rng(0))
    run_trials([trial], Memory(SpaceReplay(HERE), HERE.task), [1, 12], 3)
    texts = [config_text(m.config) for m in trial.history]
    assert len(texts) == len(set(texts)) == 12 and trial.strategy.name == name
    assert set(texts) <= {config_text(config) for config in HERE.task.pool or ()}


@pytest.mark.parametrize("name", METHODS)
def test_no_method_sees_a_time_that_it_has_not_measured(name: str) -> None:
    """With times that are all different in the file of the left-out GPU, the first batch stays the same."""
    rng = np.random.default_rng(1)
    rows = tuple(replace(r, time_us=None if r.time_us is None else float(rng.uniform(1, 1e6))) for r in TARGET.rows)
    scrambled = LeftOut.of(replace(TARGET, rows=rows), KNOWN)
    proposed = [
        Knowledge(here, SMALL, 0).strategy(name).propose(here.task, [], 4, np.random.default_rng(0)) for here in (HERE, scrambled)
    ]
    assert proposed[0] == proposed[1]


@pytest.mark.parametrize("name", ["known_best", "average", "cost_model", "round_robin", "experts", "experts_model"])
def test_what_other_gpus_say_beats_random(name: str) -> None:
    ruler = Ruler.of(TARGET, 12)
    assert ruler.score(searched(name), 12) > 0.5


def test_experts_learn_whom_to_trust() -> None:
    """Two experts, one of them right: after some measurements the picks follow that one, whichever it is."""
    ruler = Ruler.of(TARGET, 12)
    liar = replace(space("GPU C", best_block=16), rows=tuple(
        replace(r, time_us=None if r.time_us is None else 1e6 / r.time_us) for r in TARGET.rows
    ))  # fmt: skip
    for known in ((liar, space("GPU B")), (space("GPU B"), liar)):
        here = LeftOut.of(TARGET, known)
        strategy = Experts(here.experts, ExpertSettings(trust=1.0))
        trial = Trial(strategy, 0, np.random.default_rng(0))
        run_trials([trial], Memory(SpaceReplay(here), here.task), [1, 12], 3)
        assert ruler.fraction([m.time_us for m in trial.history], 12) == 1.0


def test_expected_improvement_is_the_mean_of_the_improvements() -> None:
    draws = np.random.default_rng(0).normal(1.0, 0.5, 400_000)
    found = expected_improvement(np.array([1.0]), np.array([0.5]), 0.8)[0]
    assert found == pytest.approx(np.maximum(0.8 - draws, 0).mean(), rel=0.01)


def test_settings_are_fitted_to_what_the_experts_are_worth() -> None:
    rng = np.random.default_rng(0)
    said, places = rng.normal(size=(120, 2)), rng.random((120, 3))
    good = fitted([(Opinions(said, places), said.mean(axis=1) + 0.02 * rng.normal(size=120))])
    useless = fitted([(Opinions(said, places), rng.normal(size=120))])
    assert good.noise + good.sd < 0.2 < useless.noise + useless.sd
    last = fitted([(Opinions(said, places), said[:, 1] + 0.02 * rng.normal(size=120))])
    assert last.last_share == 1.0 and fitted([]) == ExpertSettings()
    case = (Opinions(said, places), said[:, 1])
    assert log_likelihood(*case, ExpertSettings(1.0)) > log_likelihood(*case, ExpertSettings(0.5))


def test_missing_and_failed_configs_have_an_opinion_and_a_risk() -> None:
    configs = list(HERE.task.pool or ())
    said = [expert(HERE.workload, configs) for expert in HERE.experts]
    assert all(np.isfinite(values).all() for values in said)
    risk = HERE.risk(HERE.workload, configs)
    at = {config_text(config): value for config, value in zip(configs, risk, strict=True)}
    assert at["block=128,cache=0,tile=8"] == at["block=256,cache=0,tile=8"] == 0.5 and at["block=16,cache=0,tile=1"] == 0.0


def test_parameters_that_are_no_small_integers_are_numbered() -> None:
    names = Parameter("mode", ("slow", "fast")), Parameter("ratio", (0.5, 1.5)), Parameter("wide", (False, True))
    numbers = (Parameter("block", (16, 32)), Parameter("tile", (1, 8)), Parameter("cache", (0, 1)))
    spaces = [space(name, parameters=(*numbers, *names)) for name in ("GPU A", "GPU B")]
    here = LeftOut.of(spaces[0], spaces[1:])
    assert here.codes[3:] == ({"slow": 0, "fast": 1}, {0.5: 0, 1.5: 1}, {False: 0, True: 1})
    assert len({config_text(config) for config in here.task.pool or ()}) == len(spaces[0].rows)


def test_a_copy_of_a_gpus_file_is_not_another_gpu() -> None:
    copy = replace(TARGET, device="GPU A again")
    assert [s.device for s in groups([TARGET, copy, KNOWN[0]])["toy"]] == ["GPU A", "GPU B"]
    with pytest.raises(InputError, match="no kernel measured on two GPUs"):
        groups([TARGET, copy])


def test_scores_are_means_over_gpus_and_seeds() -> None:
    rulers = {("toy", s.device): Ruler.of(s, 4) for s in (TARGET, KNOWN[0])}
    best = {s.device: rulers["toy", s.device].best_us for s in (TARGET, KNOWN[0])}
    found = [Course("toy", "GPU A", "m", i, (best["GPU A"],)) for i in range(2)]
    found += [Course("toy", "GPU B", "m", i, (best["GPU B"] * 2, None)) for i in range(2)]
    whole, one, other = scores(found, rulers, [4])
    assert (whole.gpu, one.gpu, other.gpu) == ("", "GPU A", "GPU B")
    assert (one.fraction, other.fraction, whole.fraction, whole.worst_fraction) == (1.0, 0.5, 0.75, 0.5)
    assert whole.p == pytest.approx((one.p + other.p) / 2) and one.p == pytest.approx(1.0) and other.p < 1.0


