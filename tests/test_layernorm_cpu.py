"""Layernorm kernels on the CPU: each path under both sanitizers, large means, special values, and bugs planted in a source."""

import numpy as np
import pytest

from templates.render import render
from templates.space import complete, violations
from templates.workload import Workload
from tests.cpu_run import (
    Arrays,
    KernelFault,
    Sanitizer,
    compile_kernels,
    compile_program,
    draw_inputs,
    job_of,
    program,
    run,
)
from tests.layernorm_world import LAYERNORM, LIMITS, error, shape

REGISTERS = {"storage": 2, "threads_row": 64, "vectors": 3, "width": 4, "block_m": 2, "shuffle": 1}
PATHS = {
    "registers": REGISTERS,
    "registers, next row ahead": {**REGISTERS, "rounds": 4, "stages": 2, "parameters": 2, "read_only": 1, "stream_in": 1},
    "registers, part of a warp": {**REGISTERS, "threads_row": 8, "block_m": 8, "one_pass": 1, "stream_out": 1},
    "registers, merged, in rounds": {**REGISTERS, "one_pass": 1, "rounds": 2, "contiguous": 1, "parameters": 1},
    "registers, summed in shared memory": {**REGISTERS, "shuffle": 0, "rounds": 2},
    "registers after asynchronous copies": {**REGISTERS, "async_copy": 1, "rounds": 4, "stages": 3, "parameters": 2},
    "shared memory": {**REGISTERS, "storage": 1},
    "shared memory, asynchronous": {**REGISTERS, "storage": 1, "async_copy": 1, "rounds": 8, "stages": 4, "dynamic_smem": 1},
    "read again": {**REGISTERS, "storage": 0, "unroll": 2},
    "read again, merged": {**REGISTERS, "storage": 0, "one_pass": 1, "read_only": 1},
}
CONFIGS = {name: complete(LAYERNORM, partial) for name, partial in PATHS.items()}
PEELED = {name: complete(LAYERNORM, {**partial, "peel": 1, "parameters": partial.get("parameters", 0) % 2})
          for name, partial in PATHS.items()}  # fmt: skip


def verdicts(configs: list[dict[str, int]], shapes: list[Workload], sanitize: Sanitizer) -> list[str]:
    """What is wrong with the answers of some configs, each at those shapes that are legal for it."""
    rng = np.random.default_rng(0)
    todo = [(i, c, w) for i, c in enumerate(configs) for w in shapes if not violations(LAYERNORM, c, w, LIMITS)]
    assert {i for i, _, _ in todo} == set(range(len(configs)))
    jobs = [job_of(LAYERNORM, i, c, w, draw_inputs(LAYERNORM, w, rng), seed) for seed, (i, c, w) in enumerate(todo)]
    results = compile_kernels(LAYERNORM, configs, sanitize, shapes[0].dtype).run(jobs)
    wrong = []
    for job, (_, _, w), result in zip(jobs, todo, results, strict=True):
        if isinstance(result, KernelFault):
            wrong.append(str(result))
        elif not (off := error(result["Y"], job.inputs, w)) <= 1:
            wrong.append(f"{job.label}: {off:.3g} x what is allowed")
    return wrong


def aligned(dtype: str) -> list[Workload]:
    return [shape(m, n, dtype) for m, n in ((17, 768), (16, 764), (8, 388), (9, 96), (7, 40), (33, 520))]


def unaligned(dtype: str) -> list[Workload]:
    return [shape(m, n, dtype) for m, n in ((17, 765), (16, 753), (8, 386), (9, 93), (7, 41), (33, 517))]


@pytest.mark.parametrize("dtype", ["f32"])
def test_every_path_is_right_at_row_ends(dtype: str) -> None:
    assert verdicts(list(CONFIGS.values()), aligned(dtype), "address") == []


@pytest.mark.parametrize("dtype", ["bf16"])
def test_every_path_is_right_on_unaligned_rows(dtype: str) -> None:
    assert verdicts(list(PEELED.values()), unaligned(dtype), "address") == []


def test_no_path_has_a_race() -> None:
    assert verdicts(list(CONFIGS.values()), [shape(17, 764), shape(9, 96), shape(8, 388)], "thread") == []


NUMERICS = ("registers", "registers, merged, in rounds", "shared memory", "read again", "read again, merged")


def answers(w: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
    """Y of the configs that differ in how they find mean and variance."""
    configs = [CONFIGS[name] for name in NUMERICS]
    jobs = [job_of(LAYERNORM, i, config, w, inputs) for i, config in enumerate(configs)]
    results = compile_kernels(LAYERNORM, configs, "none").run(jobs)
    assert not any(isinstance(result, KernelFault) for result in results), results
    return {name: result["Y"] for name, result in zip(NUMERICS, results, strict=True) if not isinstance(result, KernelFault)}


def test_large_mean_costs_no_digits_of_the_variance() -> None:
    """Mean 1000, deviation 1: a variance from the mean of squares is off by 6 %, these are not."""
    w = shape(16, 768)
    inputs = draw_inputs(LAYERNORM, w, np.random.default_rng(1))
    inputs["X"] = np.random.default_rng(2).normal(1000.0, 1.0, (16, 768)).astype(np.float32)
    for name, y in answers(w, inputs).items():
        assert error(y, inputs, w) < 0.5, name
        assert np.max(np.abs(y - LAYERNORM.reference(inputs, w))) < 3e-4, name


@pytest.mark.parametrize("merged", [0, 1])
def test_row_longer_than_shared_memory(merged: int) -> None:
    w = shape(2, 200_000)
    config = {**LAYERNORM.expert(w), "one_pass": merged}
    assert violations(LAYERNORM, config, w, LIMITS) == []
    inputs = draw_inputs(LAYERNORM, w, np.random.default_rng(3))
    assert error(run(LAYERNORM, config, w, inputs, "none")["Y"], inputs, w) < 1


def test_special_values_stay_in_their_row() -> None:
    """A NaN or an infinity makes its row NaN, as in PyTorch; a constant row gives the bias; other rows are untouched."""
    w = shape(16, 388)
    inputs = draw_inputs(LAYERNORM, w, np.random.default_rng(4))
    inputs["X"][3, 100], inputs["X"][5, 0], inputs["X"][6, 387] = np.nan, np.inf, -np.inf
    inputs["X"][8], inputs["X"][9], inputs["X"][10] = 0.0, 0.125, 1e15 * inputs["X"][2]
    special = [3, 5, 6]
    rest = [row for row in range(16) if row not in special]
    for name, y in answers(w, inputs).items():
        assert np.all(np.isnan(y[special])), name
        np.testing.assert_array_equal(y[8], inputs["bias"])
        np.testing.assert_allclose(y[9], inputs["bias"], atol=1e-4)
        assert error(y[rest], {**inputs, "X": inputs["X"][rest]}, shape(len(rest), 388)) < 1, name


def test_one_element_rows_give_the_bias() -> None:
    for dtype in ("f32", "bf16"):
        w = shape(5, 1, dtype)
        inputs = draw_inputs(LAYERNORM, w, np.random.default_rng(5))
        y = run(LAYERNORM, LAYERNORM.expert(w), w, inputs, "none")["Y"]
        np.testing.assert_array_equal(y, np.broadcast_to(inputs["bias"], (5, 1)))


def test_largest_half_values_do_not_overflow() -> None:
    w = shape(4, 768, "f16")
    inputs = draw_inputs(LAYERNORM, w, np.random.default_rng(6))
    inputs["X"] = np.where(np.random.default_rng(7).random((4, 768)) < 0.5, 60000.0, -60000.0).astype(np.float16)
    assert error(run(LAYERNORM, LAYERNORM.expert(w), w, inputs, "none")["Y"], inputs, w) < 1


def planted(name: str, right: str, wrong: str, w: Workload, sanitize: Sanitizer = "address") -> Arrays | KernelFault:
    """The outcome of a config's source in which `right` is replaced."""
    source = render(LAYERNORM, CONFIGS[name], w.dtype)
    assert right in source
    inputs = draw_inputs(LAYERNORM, w, np.random.default_rng(8))
    binary = compile_program(program([source.replace(right, wrong)], "layernorm", 4, 2), sanitize)
    (result,) = binary.run([job_of(LAYERNORM, 0, CONFIGS[name], w, inputs)])
    return result if isinstance(result, KernelFault) else {"Y": result["Y"], **inputs}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("registers", "first < n ? sum : 0.0f", "sum"),  # what is outside a row counts
        ("registers", "rsqrtf(variance + EPSILON)", "rsqrtf(variance)"),
        ("registers, merged, in rounds", "a.count * share", "share"),
        ("read again", "first += STEP", "first += 2 * STEP"),
    ],
)
def test_planted_arithmetic_is_a_wrong_answer(name: str, right: str, wrong: str) -> None:
    w = shape(8, 388)
    result = planted(name, right, wrong, w)
    assert not isinstance(result, KernelFault) and not error(result["Y"], result, w) <= 1


@pytest.mark.parametrize(
    ("name", "right", "wrong", "sanitize", "said"),
    [
        ("registers", "start + i * STEP < n ?", "true ?", "address", "overflow"),
        ("registers", "    __syncthreads();\n", "", "thread", "data race"),
        ("registers", "parts[1][team]", "parts[0][team]", "thread", "data race"),
        ("shared memory", "+ threadIdx.x", "+ thread", "thread", "data race"),
    ],
)
def test_planted_faults_are_named(name: str, right: str, wrong: str, sanitize: Sanitizer, said: str) -> None:
    result = planted(name, right, wrong, shape(8, 388), sanitize)
    assert isinstance(result, KernelFault) and said in str(result)


def test_missing_wait_gives_nan() -> None:
    name, w = "shared memory, asynchronous", shape(16, 388)
    result = planted(name, "__pipeline_wait_prior(STAGES - 1);", "", w)
    assert not isinstance(result, KernelFault) and np.isnan(error(result["Y"], result, w))
