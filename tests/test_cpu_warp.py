"""Warp operations on the CPU: they give what CUDA documents, and each planted misuse is named."""

import re
from functools import cache

import numpy as np
import pytest

from templates.template import Launch, Tensor
from tests.cpu_run import Binary, Job, KernelFault, Sanitizer, compile_program, program

WARPS = 3

KERNEL = """
constexpr unsigned ALL = 0xFFFFFFFFu;

__device__ __forceinline__ float sum_of_warp(float value)
{
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        value += __shfl_xor_sync(ALL, value, lanes);
    return value;
}

// The sum over the block, in every thread.
__device__ __forceinline__ float sum_of_block(float value)
{
    __shared__ float parts[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    value = sum_of_warp(value);
    if (lane == 0)
        parts[warp] = value;
    __syncthreads();
    return sum_of_warp(lane < blockDim.x / 32 ? parts[lane] : 0.0f);
}

// Y[row] = the sum of the row after each warp has reversed its part in shared memory and weighted it by the lane.
extern "C" __global__ void rows(const float *X, float *Y, int n)
{
    extern __shared__ __align__(16) unsigned char memory[];
    float *mine = reinterpret_cast<float *>(memory) + threadIdx.x / 32 * 32;
    const int lane = threadIdx.x % 32;
    float sum = 0.0f;
    for (int first = 0; first < n; first += blockDim.x) {
        const int i = first + threadIdx.x;
        mine[lane] = i < n ? X[blockIdx.x * n + i] : 0.0f;
        __syncwarp();
        const float turned = mine[31 - lane];
        if (__any_sync(ALL, turned != 0.0f))
            sum += turned * (31 - lane);
        __syncwarp();
    }
    sum = sum_of_block(sum);
    if (threadIdx.x == 0)
        Y[blockIdx.x] = sum;
}
"""

PLANTED: dict[str, tuple[Sanitizer, str, str, str]] = {
    "missing __syncwarp: wrong": ("address", "        __syncwarp();\n        const", "        const", "nan"),
    "missing barrier between warps": ("address", "    __syncthreads();\n    return", "    return", "nan"),
    "shuffle under divergence": ("address", "sum = sum_of_block(sum);", "if (lane < 16) sum = sum_of_warp(sum);",
                                 "lane that the mask names has left the kernel"),
    "shuffle on one side, barrier on the other": (
        "address", "sum = sum_of_block(sum);", "if (lane < 16) sum = sum_of_warp(sum); else __syncthreads();",
        "lane that the mask names waits at a barrier"),
    "different operations": ("address", "sum = sum_of_block(sum);", "if (lane < 16) sum = sum_of_warp(sum); else __syncwarp();",
                             "wait at different operations"),
    "different masks": ("address", "if (__any_sync(ALL,", "if (__any_sync(lane ? ALL : 0x7FFFFFFFu,",
                        "wait at different operations"),
    "caller outside the mask": ("address", "if (__any_sync(ALL,", "if (__any_sync(0xFFFFu,", "leaves out its caller"),
    "read from a lane outside the mask": (
        "address", "sum = sum_of_block(sum);", "if (lane < 16) sum = __shfl_down_sync(0xFFFFu, sum, 8);",
        "reads a lane outside its mask"),
    "width that is no power of two": ("address", "__shfl_xor_sync(ALL, value, lanes)", "__shfl_xor_sync(ALL, value, lanes, 24)",
                                      "width is"),
    "false assumption": ("address", "float sum = 0.0f;", "float sum = 0.0f; __builtin_assume(n % 2 == 0);", "a false assumption"),
    "race: missing __syncwarp": ("thread", "        __syncwarp();\n        const", "        const", "data race"),
    "race: buffer refilled while it is read": ("thread", "        __syncwarp();\n    }", "    }", "data race"),
    "race: a shuffle orders no memory": ("thread", "        __syncwarp();\n        const",
                                         "        __shfl_sync(ALL, 0, 0);\n        const", "data race"),
    "race: __syncwarp between warps": ("thread", "    __syncthreads();\n    return", "    __syncwarp();\n    return",
                                       "data race"),
}  # fmt: skip


@cache
def binary_of(sanitize: Sanitizer) -> tuple[Binary, list[str]]:
    """All planted kernels of one sanitizer in one binary, the right one first; and their names."""
    planted = {bug: (right, wrong) for bug, (kind, right, wrong, _) in PLANTED.items() if kind == sanitize}
    for bug, (right, _) in planted.items():
        assert KERNEL.count(right) == 1, f"{bug}: the place to plant it is gone"
    sources = [KERNEL] + [KERNEL.replace(*change) for change in planted.values()]
    return compile_program(program(sources, "rows", 2, 1, workspace=False), sanitize), ["", *planted]


def job(kernel: int, rows: int, n: int, seed: int = 0, threads: int = 32 * WARPS) -> Job:
    inputs = {"X": np.random.default_rng(seed).uniform(-1, 1, (rows, n)).astype(np.float32)}
    tensors = (Tensor("X", "in", (rows, n), "f32"), Tensor("Y", "out", (rows,), "f32"))
    return Job(kernel, Launch((rows, 1, 1), (threads, 1, 1), 4 * threads, 0), tensors, (n,), inputs, seed, label="rows")


def weighted_sums(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) @ (np.arange(x.shape[1]) % 32)


@pytest.mark.parametrize("sanitize", ["address", "thread"])
def test_right_kernel_passes(sanitize: Sanitizer) -> None:
    jobs = [job(0, *shape) for shape in [(1, 1, 0), (3, 95, 1), (2, 97, 2), (2, 300, 3)]]
    for done, result in zip(jobs, binary_of(sanitize)[0].run(jobs), strict=True):
        assert not isinstance(result, KernelFault), result
        np.testing.assert_allclose(result["Y"], weighted_sums(done.inputs["X"]), atol=1e-3)


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_found(bug: str) -> None:
    sanitize, _, wrong, verdict = PLANTED[bug]
    binary, names = binary_of(sanitize)
    (result,) = binary.run([job(names.index(bug), 2, 197)])
    if verdict == "nan":
        assert not isinstance(result, KernelFault) and np.isnan(result["Y"]).any()
    else:
        assert isinstance(result, KernelFault) and verdict in str(result), result


def test_report_names_the_line() -> None:
    binary, names = binary_of("address")
    (result,) = binary.run([job(names.index("caller outside the mask"), 1, 97)])
    number = KERNEL[: KERNEL.index("if (__any_sync")].count("\n") + 1
    assert isinstance(result, KernelFault) and re.search(rf"line {number}\b", str(result))


def test_mask_may_name_only_lanes_that_the_block_has() -> None:
    (result,) = binary_of("address")[0].run([job(0, 1, 97, threads=80)])
    assert isinstance(result, KernelFault) and "lanes that the block does not have" in str(result)


PRIMITIVES = """
extern "C" __global__ void primitives(const float *X, float *Y, double *D, float *I, int n)
{
    const int lane = threadIdx.x % 32;
    const unsigned ALL = 0xFFFFFFFFu, half = lane < 16 ? 0xFFFFu : 0xFFFF0000u;
    const float x = X[threadIdx.x];
    float *y = Y + threadIdx.x;
    y[0 * n] = __shfl_sync(ALL, x, 5);
    y[1 * n] = __shfl_sync(ALL, x, lane + 3, 8);
    y[2 * n] = __shfl_up_sync(ALL, x, 2);
    y[3 * n] = __shfl_up_sync(ALL, x, 3, 8);
    y[4 * n] = __shfl_down_sync(ALL, x, 1);
    y[5 * n] = __shfl_down_sync(ALL, x, 5, 16);
    y[6 * n] = __shfl_xor_sync(ALL, x, 21);
    y[7 * n] = __shfl_xor_sync(ALL, x, 9, 8);
    if (lane < 16)
        y[8 * n] = __shfl_xor_sync(half, x, 7);
    else
        y[8 * n] = __shfl_down_sync(half, x, 3, 16);
    D[threadIdx.x] = __shfl_xor_sync(ALL, 1.0 / (threadIdx.x + 3), 1);
    const unsigned positive = __ballot_sync(ALL, x > 0.0f);
    float *i = I + threadIdx.x;
    i[0 * n] = positive >> lane & 1;
    i[1 * n] = __popc(positive);
    i[2 * n] = __any_sync(ALL, x > 0.9f);
    i[3 * n] = __all_sync(half, x > -0.9f);
    i[4 * n] = __shfl_xor_sync(ALL, (long long)threadIdx.x << 33, 2) >> 33;
    i[5 * n] = __shfl_up_sync(ALL, (unsigned)lane, 1);
    i[6 * n] = __shfl_down_sync(ALL, -lane, 16);
}
"""


@pytest.mark.parametrize("sanitize", ["address", "thread"])
def test_primitives_give_what_cuda_documents(sanitize: Sanitizer) -> None:
    n, rng = 96, np.random.default_rng(4)
    x = rng.uniform(-1, 1, n).astype(np.float32)
    tensors = (Tensor("X", "in", (n,), "f32"), Tensor("Y", "out", (9, n), "f32"), Tensor("D", "out", (n,), "f64"),
               Tensor("I", "out", (7, n), "f32"))  # fmt: skip
    binary = compile_program(program([PRIMITIVES], "primitives", 4, 1, workspace=False), sanitize)
    jobs = [Job(0, Launch((1, 1, 1), (n, 1, 1), 0, 0), tensors, (n,), {"X": x}, seed) for seed in range(4)]
    thread = np.arange(n)
    lane, warp = thread % 32, thread // 32 * 32
    low = lane < 16
    sources = [
        5, lane // 8 * 8 + (lane + 3) % 8, np.where(lane < 2, lane, lane - 2), np.where(lane % 8 < 3, lane, lane - 3),
        np.where(lane == 31, lane, lane + 1), np.where(lane % 16 >= 11, lane, lane + 5), lane ^ 21,
        np.where((lane ^ 9) // 8 > lane // 8, lane, lane ^ 9), np.where(low, lane ^ 7, np.where(lane >= 29, lane, lane + 3)),
    ]  # fmt: skip
    positive = (x > 0).reshape(-1, 32)
    halves = (x > -0.9).reshape(-1, 16).all(axis=1)
    votes = [positive.ravel(), np.repeat(positive.sum(axis=1), 32), np.repeat((x > 0.9).reshape(-1, 32).any(axis=1), 32),
             np.repeat(halves, 16), thread ^ 2, np.maximum(lane - 1, 0), np.where(low, -16 - lane, -lane)]  # fmt: skip
    for result in binary.run(jobs):
        assert not isinstance(result, KernelFault), result
        for number, source in enumerate(sources):
            np.testing.assert_array_equal(result["Y"][number], x[warp + source], err_msg=str(number))
        np.testing.assert_array_equal(result["D"], 1.0 / ((thread ^ 1) + 3.0))
        np.testing.assert_array_equal(result["I"], np.array(votes, dtype=np.float32))
