"""Pretraining: on training shapes only, resumable to the same result, the same by seed."""

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cost_model.model import CostModel, CostModelSettings
from datasets import split
from datasets.device import H200
from datasets.measurement import Candidate
from datasets.schema import frame_of
from pipeline.measure.fake import FakeMeasurer
from pipeline.policy.env import EpisodeSettings
from pipeline.policy.iql import Policy
from pipeline.pretraining import Lesson, PretrainSettings, pretrain, synthetic
from pipeline.progress import Progress
from templates import space
from templates.errors import InputError
from templates.template import load_template, operators
from tests.policy_world import TEMPLATE, TINY, measured_frame

SETTINGS = PretrainSettings(searches=4, episodes=4, bank=8, chunk=2, use_source=False, iql=TINY, episode=EpisodeSettings(steps=5))
TREES = CostModelSettings(members=2, trees=10, depth=3, threads=1)


@cache
def frame():  # type: ignore[no-untyped-def]
    return measured_frame(30)


@cache
def model() -> CostModel:
    return CostModel.fit(frame(), H200, TREES)


def run(folder: Path, settings: PretrainSettings = SETTINGS, seed: int = 0):  # type: ignore[no-untyped-def]
    return pretrain([Lesson(model(), frame())], H200, settings, seed, folder)


def weights(folder: Path) -> bytes:
    return (folder / "policy" / "networks.safetensors").read_bytes()


def test_leaves_a_policy_its_losses_and_its_episodes(tmp_path):
    result = run(tmp_path)
    assert Policy.load(tmp_path / "policy").steps == TINY.steps
    (gains,) = result.gains.values()
    assert set(gains) == {"random", "greedy", "policy"} and np.isfinite(list(gains.values())).all()
    assert (tmp_path / "losses.csv").read_text().count("\n") == 1 + TINY.steps // TINY.checkpoint_every
    assert len(list((tmp_path / "episodes").glob("*.npz"))) == 2 and result.episodes.count == 16


def test_same_seed_same_policy_and_another_seed_another(tmp_path):
    for name, seed in (("one", 0), ("two", 0), ("other", 1)):
        run(tmp_path / name, seed=seed)
    assert weights(tmp_path / "one") == weights(tmp_path / "two") != weights(tmp_path / "other")


def test_killed_run_continues_to_the_same_policy(tmp_path):
    run(tmp_path / "whole")

    class Killed(Exception):
        pass

    class Killing(Progress):
        def advance(self, n: int = 1, note: str = "") -> None:
            super().advance(n, note)
            if self.what == "learning" and self.done > 25:
                raise Killed

    with pytest.raises(Killed):
        pretrain([Lesson(model(), frame())], H200, SETTINGS, 0, tmp_path / "killed", show=Killing)
    assert json.loads((tmp_path / "killed" / "policy" / "policy.json").read_text())["steps"] == 20
    (tmp_path / "killed" / "episodes" / "chunk-00002.npz").unlink()  # and half of the simulation was lost too
    run(tmp_path / "killed")
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")


def test_chunks_that_exist_are_not_simulated_again(tmp_path):
    run(tmp_path / "one")
    shutil.copytree(tmp_path / "one" / "episodes", tmp_path / "two" / "episodes")
    before = (tmp_path / "two" / "episodes" / "chunk-00000.npz").stat().st_mtime_ns
    run(tmp_path / "two")
    assert (tmp_path / "two" / "episodes" / "chunk-00000.npz").stat().st_mtime_ns == before


def test_rows_of_evaluation_workloads_are_refused(tmp_path):
    leaked = measured_frame(5, (split.workloads("matmul")["test"][0],))
    with pytest.raises(InputError, match="for evaluation"):
        pretrain([Lesson(model(), leaked)], H200, SETTINGS, 0, tmp_path)


def test_synthetic_workloads_are_never_evaluated_on_nor_larger_than_the_training_set():
    lists, rng = split.workloads("matmul"), np.random.default_rng(0)
    made = [synthetic(TEMPLATE, lists["train"], rng) for _ in range(400)]
    assert not set(made) & {*lists["test"], *lists["validation"]}
    assert len(set(made)) > 200
    largest = max(extent for workload in lists["train"] for _, extent in workload.dims)
    assert max(extent for workload in made for _, extent in workload.dims) <= largest + 16  # a perturbation


@pytest.mark.parametrize("op", operators())
@pytest.mark.filterwarnings("error")
def test_synthetic_workloads_of_every_operator_are_workloads_of_it(op):
    template, train = load_template(op), split.workloads(op)["train"]
    rng = np.random.default_rng(0)
    made = {template.check_workload(synthetic(template, train, rng)) for _ in range(100)}
    assert len(made - set(train)) > 30


def test_several_operators_are_taught_in_one_policy(tmp_path):
    softmax = load_template("softmax")
    known = FakeMeasurer(H200)
    rows = []
    for workload in split.workloads("softmax")["train"][:2]:
        drawn = space.sample(softmax, workload, H200.limits, 30, np.random.default_rng(0))
        rows += list(known.measure([Candidate(workload, config, "random") for config in [dict(softmax.naive), *drawn]]))
    lesson = Lesson(CostModel.fit(frame_of(rows), H200, TREES), frame_of(rows))
    result = pretrain([Lesson(model(), frame()), lesson], H200, SETTINGS, 0, tmp_path)
    assert set(result.gains) == {"matmul", "softmax"}
    assert {text.split("/")[0] for text in result.policy.workloads} == {"matmul", "softmax"}
    columns = [result.policy.layout.places[f"op_{op}"] for op in ("matmul", "softmax")]
    assert (result.episodes.states[:, columns].sum(axis=1) == 1).all() and result.episodes.states[:, columns].any(axis=0).all()
    assert len(set(result.episodes.operator)) == 2


def test_source_counts_can_be_in_the_state(tmp_path):
    settings = replace(SETTINGS, searches=1, episodes=2, bank=2, use_source=True, iql=replace(TINY, steps=2))
    result = run(tmp_path, settings)
    assert any(name.startswith("ast_") for name in result.policy.layout.names())
    at = [i for i, name in enumerate(result.policy.layout.names()) if name.startswith("ast_")]
    assert (result.episodes.states[:, at] != 0).any()


def test_nothing_to_simulate_is_refused():
    with pytest.raises(InputError, match="1 or more"):
        PretrainSettings(searches=0)
