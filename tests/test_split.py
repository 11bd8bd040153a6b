"""Training never reads a test shape."""

from itertools import combinations

import numpy as np
import pytest

from datasets import split
from templates.errors import InputError
from templates.template import load_template
from templates.workload import Workload

LISTS = split.workloads("matmul")
CUBE = load_template("matmul").workload(M=8192, N=8192, K=8192)


def test_splits_are_disjoint() -> None:
    for one, other in combinations(split.SPLITS, 2):
        assert not set(LISTS[one]) & set(LISTS[other])


def test_there_are_enough_workloads_of_every_kind() -> None:
    assert sum(map(len, LISTS.values())) >= 24 and len(LISTS["test"]) >= 8


def test_8192_cubed_is_a_test_workload_and_nothing_of_that_size_is_learnt_from() -> None:
    assert CUBE in LISTS["test"]
    assert max(extent for s in ("train", "validation") for w in LISTS[s] for _, extent in w.dims) <= 4112
    assert max(extent for w in LISTS["train"] for _, extent in w.dims) <= 4096


def test_split_of_names_the_list() -> None:
    assert split.split_of(CUBE) == "test"
    assert split.split_of(LISTS["train"][0]) == "train"
    assert split.split_of(Workload("matmul", "f32", (("M", 7), ("N", 7), ("K", 7)))) == "unlisted"


def test_unknown_operator_is_an_input_error() -> None:
    with pytest.raises(InputError, match="known: .*matmul"):
        split.workloads("matmull")


def test_perturbed_shapes_are_near_new_and_never_held_out() -> None:
    rng = np.random.default_rng(0)
    held_out = {*LISTS["validation"], *LISTS["test"]}
    for workload in LISTS["train"]:
        for _ in range(30):
            shape = split.perturbed(workload, rng)
            assert shape not in held_out and shape != workload
            moves = [b - a for (_, a), (_, b) in zip(workload.dims, shape.dims, strict=True)]
            assert all(move % 8 == 0 and abs(move) <= 16 for move in moves)


def test_perturbation_does_avoid_a_held_out_shape_that_is_one_move_away() -> None:
    """4096^3 is one move from the validation shape 4112^3: the draws that hit it are thrown away."""
    start = load_template("matmul").workload(M=4096, N=4096, K=4096)
    seen = {split.perturbed(start, np.random.default_rng(seed)) for seed in range(1500)}
    assert len(seen) > 100 and load_template("matmul").workload(M=4112, N=4112, K=4112) not in seen


def test_a_workload_listed_twice_is_refused(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    text = (split.CONF / "matmul.yaml").read_text()
    faulty = Path(str(tmp_path)) / "matmul.yaml"
    faulty.write_text(text.replace("M=512,N=512,K=512", "M=8192,N=8192,K=8192"))
    monkeypatch.setattr(split, "CONF", faulty.parent)
    with pytest.raises(InputError, match="M=8192,N=8192,K=8192 is listed twice"):
        split.workloads("matmul")
