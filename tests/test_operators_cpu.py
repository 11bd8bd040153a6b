"""Random legal kernels of every operator and dtype give the right answer on the CPU, at shapes round their tile sizes, under
both sanitizers.

CPU_CONFIGS sets how many under the address sanitizer (6; a third for an operator's further dtypes), CPU_CONFIGS_THREAD under
the thread sanitizer (2), CPU_SEED which.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from templates.knob import Config, config_text
from templates.template import Template, load_template
from templates.workload import Workload
from tests.cpu_run import Arrays, KernelFault, Sanitizer, compile_kernels, draw_inputs, from_words, job_of, to_words
from tests.operator_cases import CASES, IDS, SEED, answers, configs, count, edges, errors, judge, legal_values, roundoff, shapes

BATCH = 8  # kernels per binary
MOST_SHAPES = {"address": 99, "thread": 5, "none": 99}  # per config: the thread sanitizer takes seconds a launch
MOST_FLOPS = {"address": 2e6, "thread": 4e5, "none": 1e9}  # per launch, beyond which only new sizes are run: bounds the time
each_case = pytest.mark.parametrize(("op", "dtype"), CASES, ids=IDS)


def spread(every: Sequence[Workload], n: int) -> list[Workload]:
    """At most n of some shapes in order of size, the smallest and the largest among them."""
    return [every[i] for i in sorted({round(place) for place in np.linspace(0, len(every) - 1, min(n, len(every)))})]


def check(template: Template, dtype: str, batch: Sequence[Config], sanitize: Sanitizer, seed: int) -> tuple[int, list[str]]:
    """Run each config at its edge shapes; how many launches, and what went wrong."""
    rng = np.random.default_rng(seed)
    tried = [shapes(template, dtype, config, MOST_FLOPS[sanitize]) for config in batch]
    todo = [(i, w) for i, every in enumerate(tried) for w in spread(every, MOST_SHAPES[sanitize])]
    inputs = [(w, draw_inputs(template, w, rng)) for _, w in todo]
    jobs = [job_of(template, i, batch[i], w, inputs[j][1], seed + j) for j, (i, w) in enumerate(todo)]
    results = compile_kernels(template, batch, sanitize, dtype).run(jobs)
    right = answers(template, inputs)
    assert all(np.linalg.norm(one.reference) > 0 for one in right)
    verdicts = [judge(template, w, result, one) for (_, w), result, one in zip(todo, results, right, strict=True)]
    return len(jobs), [f"{config_text(batch[i])}\n{said}" for (i, _), said in zip(todo, verdicts, strict=True) if said]


def check_all(template: Template, dtype: str, chosen: Sequence[Config], sanitize: Sanitizer) -> None:
    batches = [chosen[i : i + BATCH] for i in range(0, len(chosen), BATCH)]
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as pool:
        seeds = [1000 * (SEED + i) for i in range(len(batches))]
        done = list(pool.map(lambda batch, seed: check(template, dtype, batch, sanitize, seed), batches, seeds))
    wrong = [said for _, verdicts in done for said in verdicts]
    assert sum(launches for launches, _ in done) >= 3 * len(chosen)
    assert not wrong, f"{len(wrong)} launches are wrong; the first:\n" + "\n\n".join(wrong[:5])


@each_case
def test_random_configs_are_right_at_edge_shapes(op: str, dtype: str) -> None:
    template = load_template(op)
    chosen = configs(template, dtype, count("CPU_CONFIGS", 6, template, dtype), np.random.default_rng(SEED))
    check_all(template, dtype, chosen, "address")


@each_case
def test_random_configs_have_no_race(op: str, dtype: str) -> None:
    template = load_template(op)
    n = count("CPU_CONFIGS_THREAD", 2, template, dtype)
    check_all(template, dtype, configs(template, dtype, n, np.random.default_rng(SEED + 1), threads=256), "thread")


@each_case
def test_many_configs_have_every_value_of_every_knob(op: str, dtype: str) -> None:
    template = load_template(op)
    chosen = configs(template, dtype, 100, np.random.default_rng(SEED))
    assert {pair for config in chosen for pair in config.items()} == legal_values(op, dtype)
    assert len({config_text(config) for config in chosen}) == 100


@each_case
def test_every_edge_size_of_every_dimension_is_run(op: str, dtype: str) -> None:
    template = load_template(op)
    for config in configs(template, dtype, 12, np.random.default_rng(SEED)):
        run = shapes(template, dtype, config, MOST_FLOPS["address"])
        every = edges(template, dtype, config)
        for dim in template.dims:
            assert {w[dim] for w in run} == {w[dim] for w in every}, (dim, config_text(config))
        assert max(len({w[dim] for w in run}) for dim in template.dims) >= 3


def small_workloads(template: Template, dtype: str) -> list[tuple[Workload, Arrays]]:
    """Edge shapes of a few configs, with inputs."""
    rng = np.random.default_rng(SEED + 2)
    chosen = configs(template, dtype, 4, rng)
    every = dict.fromkeys(w for config in chosen for w in shapes(template, dtype, config, 0))
    cheap = sorted(every, key=template.flops)[: max(6, len(every) // 2)]
    return [(w, draw_inputs(template, w, rng)) for w in cheap]


@each_case
def test_reference_kernel_agrees_with_numpy(op: str, dtype: str) -> None:
    """reference.cu itself, on the CPU under the address sanitizer, with last blocks that are not full."""
    template = load_template(op)
    todo = small_workloads(template, dtype)
    for (w, inputs), found in zip(todo, answers(template, todo, "address"), strict=True):
        expected = template.reference(inputs, w)
        assert np.max(errors(found.reference, expected.ravel(), 1e-13 * found.magnitude + 1e-300)) <= 1.0, w


@each_case
def test_error_bound_leaves_room_for_rounding_the_output_and_for_little_more(op: str, dtype: str) -> None:
    template = load_template(op)
    todo = sorted(small_workloads(template, dtype), key=lambda item: template.flops(item[0]))
    for (w, _), right in zip(todo, answers(template, todo), strict=True):
        tolerance = template.error_bound(w) * right.magnitude
        assert np.isfinite(right.magnitude).all() and (tolerance >= roundoff(template, w) * np.abs(right.reference)).all(), w
    # Of the last, the largest one: rows of one element and the like may cancel to nothing.
    assert np.median(tolerance) <= 0.05 * np.max(np.abs(right.reference)), f"{w}: outputs could be off by a twentieth"


def rounded(template: Template, w: Workload, row: np.ndarray) -> Arrays:
    """Outputs that are the right answers rounded to their dtype: what a perfect kernel returns."""
    outputs, offset = {}, 0
    for tensor in (tensor for tensor in template.tensors(w) if tensor.role == "out"):
        size = int(np.prod(tensor.shape))
        values = from_words(to_words(row[offset : offset + size].astype(np.float32), tensor.dtype), tensor.dtype)
        outputs[tensor.name], offset = values.reshape(tensor.shape), offset + size
    return outputs


@each_case
def test_wrong_outputs_are_caught(op: str, dtype: str) -> None:
    """The check itself bites: a NaN, a zero, a wrong scale, a wrong place and a fault are each named; the right answer passes."""
    template = load_template(op)
    w, inputs = max(small_workloads(template, dtype), key=lambda item: template.flops(item[0]))
    (right,) = answers(template, [(w, inputs)])
    assert judge(template, w, rounded(template, w, right.reference), right) == ""
    largest = int(np.argmax(np.abs(right.reference)))
    changes = {"NaN": np.nan, "zero": 0.0, "scale": 1.05 * right.reference[largest], "infinity": np.inf}
    for name, value in changes.items():
        row = right.reference.copy()
        row[largest] = value
        assert "error" in judge(template, w, rounded(template, w, row), right), name
    assert "error" in judge(template, w, rounded(template, w, np.roll(right.reference, 1)), right)
    assert "overflow" in judge(template, w, KernelFault("heap-buffer-overflow"), right)


def test_special_values_are_compared_as_such() -> None:
    right, tolerance = np.array([np.nan, np.inf, -np.inf, 1.0]), np.full(4, 0.1)
    assert errors(right, right, tolerance).max() == 0
    for place, value in ((0, 1.0), (1, -np.inf), (1, np.nan), (2, 3.0), (3, np.nan), (3, np.inf)):
        out = right.copy()
        out[place] = value
        assert errors(out, right, tolerance).max() == np.inf, (place, value)
    assert errors(np.array([1.2]), np.array([1.0]), np.array([0.1]))[0] == pytest.approx(2.0)
