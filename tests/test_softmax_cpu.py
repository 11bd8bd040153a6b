"""Softmax kernels on the CPU: special and large values as PyTorch treats them, rows longer than shared memory, planted bugs."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from templates.knob import config_text
from templates.render import render
from templates.space import complete, violations
from templates.template import Limits, load_template
from templates.workload import Workload
from tests.cpu_run import Arrays, KernelFault, Sanitizer, compile_kernels, compile_program, draw_inputs, job_of, program

SOFTMAX = load_template("softmax")
TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
LARGEST = {"f32": 3.4028234e38, "f16": 65504.0, "bf16": 3.3895314e38}

ONE_OF_EACH = [
    {},
    {"storage": 2, "vectors": 3, "width": 2, "threads_row": 16, "block_m": 2},
    {"storage": 2, "vectors": 2, "online": 1, "keep_powers": 1, "threads_row": 64, "block_m": 1, "rounds": 4, "stages": 2},
    {"storage": 2, "vectors": 1, "width": 2, "peel": 0, "threads_row": 64, "async_copy": 1, "rounds": 4, "stages": 2},
    {"storage": 1, "width": 2, "threads_row": 64, "block_m": 2, "fast_math": 1, "serial": 1},
    {"storage": 1, "online": 1, "vectors": 2, "width": 2, "threads_row": 8, "block_m": 4},
    {"storage": 0, "online": 1, "vectors": 2, "threads_row": 64, "rounds": 2, "contiguous": 1, "fast_math": 1},
    {"storage": 0, "online": 1, "width": 4, "threads_row": 16, "block_m": 2, "serial": 0},
]
"""A config of each way through the kernel, as what it changes of the naive one."""


def configs() -> list[dict[str, int]]:
    return [complete(SOFTMAX, partial) for partial in ONE_OF_EACH]


def run_all(chosen: Sequence[dict[str, int]], w: Workload, inputs: Arrays, sanitize: Sanitizer = "none") -> dict[str, np.ndarray]:
    """Y by config, for the configs that are legal on the workload."""
    binary = compile_kernels(SOFTMAX, chosen, sanitize, w.dtype)
    legal = [i for i, config in enumerate(chosen) if not violations(SOFTMAX, config, w, Limits())]
    jobs = [job_of(SOFTMAX, i, chosen[i], w, inputs) for i in legal]
    results = {}
    for job, result in zip(jobs, binary.run(jobs), strict=True):
        assert not isinstance(result, KernelFault), result
        results[job.label] = result["Y"]
    return results


def magnitude(x: np.ndarray, w: Workload) -> np.ndarray:
    """What `error_bound` says it is, shape (M, N)."""
    unit, smallest = SOFTMAX.error_bound(w), 2.0**-14 if w.dtype == "f16" else 2.0**-126
    below = x.max(axis=1, keepdims=True).astype(np.float64) - x
    result: np.ndarray = SOFTMAX.reference({"X": x}, w) * (1 + 4 * 2.0**-24 / unit * (1 + below + np.sqrt(w["N"]))) + smallest
    return result


def error(y: np.ndarray, x: np.ndarray, w: Workload) -> float:
    """The largest error in units of what is allowed; NaN where there is a NaN."""
    off = np.abs(y.astype(np.float64) - SOFTMAX.reference({"X": x}, w))
    return float(np.max(off / (SOFTMAX.error_bound(w) * magnitude(x, w))))


def special_rows(n: int, dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Rows (10, n) of values that the dtype holds exactly."""
    x = np.round(rng.uniform(-4, 4, (10, n)) * 8).astype(np.float32) / 8
    x[0, rng.random(n) < 0.5] = -np.inf
    x[1, 1:] = -np.inf
    x[2, :] = -np.inf
    x[3, n // 2] = np.inf
    x[4, :2] = np.inf
    x[5, n - 1] = np.nan
    x[6, 0], x[6, 1:] = np.nan, -np.inf
    x[7, :] = LARGEST[dtype]
    x[8, :], x[8, n // 3] = -LARGEST[dtype], LARGEST[dtype]
    x[9, :] = -LARGEST[dtype]
    return x


@pytest.mark.parametrize("dtype", SOFTMAX.dtypes)
def test_special_values_are_those_of_pytorch(dtype: str) -> None:
    seen: set[str] = set()
    for n in (96, 77):
        w = SOFTMAX.workload(dtype, M=10, N=n)
        x = special_rows(n, dtype, np.random.default_rng(n))
        want = torch.softmax(torch.from_numpy(x).to(TORCH[dtype]), dim=-1).float().numpy()
        assert np.isnan(want).all(axis=1).tolist() == [False, False, True, True, True, True, True, False, False, False]
        for label, y in run_all(configs(), w, {"X": x}).items():
            seen.add(label.split()[-1])
            assert np.array_equal(np.isnan(y), np.isnan(want)), label
            assert np.all(y[0][np.isneginf(x[0])] == 0), label
            np.testing.assert_allclose(y, want, rtol=4 * SOFTMAX.error_bound(w) + 1e-6, atol=1e-7, err_msg=label)
    assert len(seen) == len(ONE_OF_EACH)


@pytest.mark.parametrize(("dtype", "size"), [("f32", 1e30), ("f16", 6e4), ("bf16", 1e30)])
def test_large_values_lose_nothing_but_their_own_digits(dtype: str, size: float) -> None:
    w = SOFTMAX.workload(dtype, M=4, N=96)
    steps = np.random.default_rng(1).integers(0, 3, (4, 96))
    x = (size * (1 + np.where(steps == 2, 0, -steps))).astype(np.float32)
    x = torch.from_numpy(x).to(TORCH[dtype]).float().numpy()
    for label, y in run_all(configs(), w, {"X": x}).items():
        highest = x == x.max(axis=1, keepdims=True)
        want = highest / highest.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(y, want, rtol=4 * SOFTMAX.error_bound(w), err_msg=label)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_rows_far_longer_than_shared_memory(dtype: str) -> None:
    w = SOFTMAX.workload(dtype, M=2, N=200_003)
    long = {"threads_row": 256, "block_m": 1, "width": 4, "vectors": 4}
    chosen = [SOFTMAX.expert(w), *(complete(SOFTMAX, long | part) for part in (
        {}, {"online": 1}, {"storage": 1, "held": 2}, {"storage": 1, "held": 2, "online": 1, "rounds": 2}))]  # fmt: skip
    inputs = draw_inputs(SOFTMAX, w, np.random.default_rng(2))
    results = run_all(chosen, w, inputs, "address")
    assert len(results) == len(chosen)
    for label, y in results.items():
        assert error(y, inputs["X"], w) <= 1, label


def variant(config: dict[str, int], dtype: str, old: str, new: str) -> str:
    """The kernel of a config with a mistake in it."""
    source = render(SOFTMAX, config, dtype)
    assert source.count(old) >= 1, f"{old!r} is not in the kernel of {config_text(config)}"
    return source.replace(old, new)


MISTAKES = {
    "no maximum": ("power(x.at[i] - maximum)", "power(x.at[i])"),
    "a power of 2": ("return expf(x);", "return exp2f(x);"),
    "a vector too few": ("v < count ?", "v < count - 1 ?"),
    "an element behind the vectors is forgotten": ("lane >= row.singles", "lane >= row.singles - 1"),
    "its result is forgotten": ("lane < row.singles", "lane < row.singles - 1"),
    "half a warp is not added": ("value += __shfl_xor_sync(ALL_LANES, value, distance)",
                                 "value += distance > 8 ? 0.0f : __shfl_xor_sync(ALL_LANES, value, distance)"),
    "a warp's part is not added": ("part < WARPS_ROW ? parts[part] : 0.0f", "part + 1 < WARPS_ROW ? parts[part] : 0.0f"),
    "the sum is kept in half precision": ("sum += power(x.at[i] - maximum)",
                                          "sum = __half2float(__float2half_rn(sum + power(x.at[i] - maximum)))"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_errors_beyond_the_bound(mistake: str) -> None:
    config = complete(SOFTMAX, {"storage": 0, "width": 4, "vectors": 2, "threads_row": 96, "block_m": 1})
    w = SOFTMAX.workload(M=5, N=1537)
    inputs = draw_inputs(SOFTMAX, w, np.random.default_rng(3))
    right, (old, new) = render(SOFTMAX, config), MISTAKES[mistake]
    sources = [right, "#include <cuda_fp16.h>\n" + variant(config, "f32", old, new)]
    binary = compile_program(program(sources, SOFTMAX.entry, 2, 2), "none")
    good, bad = binary.run([job_of(SOFTMAX, i, config, w, inputs) for i in range(2)])
    assert not isinstance(good, KernelFault) and error(good["Y"], inputs["X"], w) <= 1
    assert not isinstance(bad, KernelFault) and not error(bad["Y"], inputs["X"], w) <= 1


def test_one_place_for_the_parts_of_two_rows_is_a_race() -> None:
    """Why the parts of an online sum have two places in turn: with one, the thread sanitizer objects."""
    config = complete(SOFTMAX, {"storage": 2, "vectors": 2, "threads_row": 64, "block_m": 1, "online": 1, "rounds": 4})
    w = SOFTMAX.workload(M=4, N=128)
    inputs = draw_inputs(SOFTMAX, w, np.random.default_rng(4))
    sources = [render(SOFTMAX, config), variant(config, "f32", "parts[round % 2]", "parts[0]")]
    binary = compile_program(program(sources, SOFTMAX.entry, 2, 2), "thread")
    good, bad = binary.run([job_of(SOFTMAX, i, config, w, inputs) for i in range(2)])
    assert not isinstance(good, KernelFault), good
    assert isinstance(bad, KernelFault) and "data race" in str(bad)
