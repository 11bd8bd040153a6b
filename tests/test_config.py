"""Settings: every file composes, every mistake is one line."""

from pathlib import Path

import pytest

from datasets import split
from pipeline import config
from pipeline.worlds import MODES
from templates.errors import InputError
from templates.workload import Workload

FILES = sorted(config.CONF.glob("*/*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}={f.stem}")
def test_every_file_of_every_group_composes(file: Path) -> None:
    settings = config.settings(f"{file.parent.name}={file.stem}")
    assert isinstance(settings, config.Settings)
    assert file.parent.name in config.GROUPS


def test_every_gpu_mode_has_a_file_that_sets_it() -> None:
    assert {config.settings(f"gpu={mode}").gpu.mode for mode in config.options("gpu")} == set(MODES)


@pytest.mark.parametrize("mode", ["auto", "shared", "dedicated"])
def test_clocks_are_locked_only_where_the_gpu_is_dedicated(mode: str) -> None:
    assert config.settings(f"gpu={mode}").farm.clocks.mode == mode


def test_settings_are_frozen_and_typed() -> None:
    settings = config.settings("seed=3", "evaluate.ks=[0,5]", "farm.build.jobs=7")
    assert (settings.seed, settings.evaluate.ks, settings.farm.build.jobs) == (3, [0, 5], 7)
    with pytest.raises(AttributeError):
        settings.seed = 4  # type: ignore[misc]


def test_the_unseen_experiment_trains_up_to_4096_and_judges_8192() -> None:
    settings = config.settings("experiment=unseen_8192")
    lists = split.workloads(settings.op.name)
    learnt = [extent for w in lists["train"] + lists["validation"] for _, extent in w.dims]
    assert max(learnt) < 4096 + 64
    judged = [Workload.parse(text) for text in settings.evaluate.workloads]
    assert judged
    assert all(w in lists["test"] and dict(w.dims) == {"M": 8192, "N": 8192, "K": 8192} for w in judged)


MISTAKES = {
    "seeed=1": "did you mean seed?",
    "collect.radnom=1": "did you mean collect.random",
    "farm.jobs=4": "farm.build.jobs",
    "seed=three": "seed=three",
    "seed": "write key=value",
    "+seed=1": "write key=value",
    "seed=[1": "cannot be read",
    "seed=1,2": "seed=1,2",
    "op=matmull": "use one of all, attention, conv2d, layernorm, matmul, softmax",
    "gpu=cloud": "auto, dedicated, replay, shared",
    "gpu.mode=cloud": "auto, dedicated, shared, replay",
    "experiment=nothing": "quick",
    "op.test=[x]": "conf/op/all.yaml",
    "collect.splits=3": "collect.splits",
    "evaluate.ks=[]": "evaluate.ks",
    "evaluate.methods=[magic]": "magic",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_is_one_line_that_names_it(override: str) -> None:
    with pytest.raises(InputError) as caught:
        config.settings(override)
    line = str(caught.value)
    assert MISTAKES[override] in line
    assert "\n" not in line
    assert len(line) < 300


def test_paths_start_at_the_repository_unless_absolute(tmp_path: Path) -> None:
    assert config.path("outputs") == config.ROOT / "outputs"
    assert config.path(str(tmp_path)) == tmp_path


def test_help_names_groups_and_settings() -> None:
    text = config.describe(config.compose_config([]))
    assert "gpu=auto|dedicated|replay|shared" in text
    assert "budget_s" in text
