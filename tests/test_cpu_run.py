"""The CPU harness bites: a small right matmul passes, and each planted bug is named."""

import re
from functools import cache

import numpy as np
import pytest

from templates.template import Launch, Tensor
from tests.cpu_run import Arrays, Binary, Job, KernelFault, Sanitizer, compile_program, for_cpu, program

TILE, DEPTH = 32, 8

KERNEL = """
#include <cuda_pipeline_primitives.h>
constexpr int TILE = 32, DEPTH = 8, THREADS = 64;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    product(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ C, int M, int N, int K, void *workspace)
{
    __shared__ float4 tile_b[2][DEPTH * TILE / 4];
    __shared__ bool last;
    extern __shared__ float tile_a[];
    const int thread = threadIdx.x;
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE, own = thread % 8 * 4, own_row = thread / 8 * 4;
    float sum[4][4] = {};
    const int steps = (K + DEPTH - 1) / DEPTH;
    for (int step = 0; step < steps + 1; ++step) {
        if (step < steps) {
            const int k = step * DEPTH + thread / 8;
            float4 *to = &tile_b[step % 2][thread];
            __pipeline_memcpy_async(to, B + (k < K ? k * N + column + own : 0), 16, k < K ? 0 : 16);
            for (int i = thread; i < TILE * DEPTH; i += THREADS) {
                const int m = row + i / DEPTH, l = step * DEPTH + i % DEPTH;
                tile_a[step % 2 * TILE * DEPTH + i] = m < M && l < K ? __ldg(A + m * K + l) : 0.0f;
            }
        }
        __pipeline_commit();
        if (step > 0) {
#pragma unroll
            for (int k = 0; k < DEPTH; ++k) {
                const float4 b = tile_b[(step - 1) % 2][k * TILE / 4 + thread % 8];
                for (int m = 0; m < 4; ++m) {
                    const float a = tile_a[(step - 1) % 2 * TILE * DEPTH + (own_row + m) * DEPTH + k];
                    sum[m][0] = fmaf(a, b.x, sum[m][0]);
                    sum[m][1] = fmaf(a, b.y, sum[m][1]);
                    sum[m][2] = fmaf(a, b.z, sum[m][2]);
                    sum[m][3] = fmaf(a, b.w, sum[m][3]);
                }
            }
        }
        __pipeline_wait_prior(0);
        __syncthreads();
    }
    for (int m = 0; m < 4; ++m)
        if (row + own_row + m < M)
            *reinterpret_cast<float4 *>(C + (row + own_row + m) * N + column + own) =
                make_float4(sum[m][0], sum[m][1], sum[m][2], sum[m][3]);
    __threadfence();
    if (thread == 0)
        last = atomicInc(static_cast<unsigned *>(workspace), gridDim.x * gridDim.y - 1) == gridDim.x * gridDim.y - 1;
    __syncthreads();
    if (last && thread == 0 && *static_cast<unsigned *>(workspace) != 0)
        C[0] = -1.0f;
}
"""

PLANTED: dict[str, tuple[Sanitizer, str, str, str]] = {
    "missing barrier": ("address", "        __syncthreads();\n    }", "    }", "nan"),
    "missing wait for an asynchronous copy": ("address", "__pipeline_wait_prior(0)", "__pipeline_wait_prior(1)", "nan"),
    "uninitialised shared memory": ("address", ": 0.0f;", ": tile_a[step % 2 * TILE * DEPTH + i];", "nan"),
    "half-written output": ("address", "row + own_row + m < M)\n", "row + own_row + m < M && thread > 0)\n", "nan"),
    "read one element past the end": ("address", "m < M && l < K", "m < M + 1 && l < K", "heap-buffer-overflow"),
    "asynchronous read past the end": ("address", "(k < K ? k * N + column + own : 0), 16, k < K ? 0 : 16",
                                       "(k * N + column + own), 16", "heap-buffer-overflow"),
    "write past the end": ("address", "+ m < M)\n", "+ m <= M)\n", "heap-buffer-overflow"),
    "static shared memory overrun": ("address", "&tile_b[step % 2][thread]",
                                     "tile_b[0] + step % 2 * (DEPTH * TILE / 4) + thread + 1", "global-buffer-overflow"),
    "dynamic shared memory overrun": ("address", "i < TILE * DEPTH", "i < TILE * DEPTH + 1", "heap-buffer-overflow"),
    "register array overrun": ("address", "sum[m][3] = fmaf", "*(sum[m] + 16) = fmaf", "stack-buffer-overflow"),
    "index beyond a row": ("address", "sum[m][3] = fmaf", "sum[m][blockDim.x / 16] = fmaf", "out of bounds"),
    "misaligned float4": ("address", "C + (row + own_row + m) * N + column", "C + 1 + (row + own_row + m) * N + column",
                          "misaligned address"),
    "misaligned asynchronous copy": ("address", "k * N + column + own :", "k * N + column + own + 1 :",
                                     "misaligned source"),
    "barrier some threads never reach": ("address", "__pipeline_wait_prior(0);",
                                         "__pipeline_wait_prior(0); if (thread == 5) return;", "some threads have left"),
    "barriers on two branches": ("address", "        __syncthreads();\n    }",
                                 "if (thread < 32) __syncthreads();\nelse __syncthreads();\n}", "wait at different barriers"),
    "race: barrier missing": ("thread", "        __syncthreads();\n    }", "    }", "data race"),
    "race: buffer refilled while it is read": ("thread", "step % 2]", "0 * step]", "data race"),
    "race: two threads write one place": ("thread", "    if (thread == 0)\n        last", "        last", "data race"),
}  # fmt: skip


Result = Arrays | KernelFault


@cache
def binary_of(sanitize: Sanitizer) -> tuple[Binary, list[str]]:
    """All planted kernels of one sanitizer in one binary, the right one first; and their names."""
    planted = {bug: (right, wrong) for bug, (kind, right, wrong, _) in PLANTED.items() if kind == sanitize}
    for bug, (right, _) in planted.items():
        assert KERNEL.count(right) == 1, f"{bug}: the place to plant it is gone"
    sources = [KERNEL] + [KERNEL.replace(*change) for change in planted.values()]
    return compile_program(program(sources, "product", 3, 3), sanitize), ["", *planted]


def job(kernel: int, m: int, n: int, k: int, seed: int = 0) -> Job:
    rng = np.random.default_rng(seed)
    inputs = {"A": rng.uniform(-1, 1, (m, k)).astype(np.float32), "B": rng.uniform(-1, 1, (k, n)).astype(np.float32)}
    tensors = (Tensor("A", "in", (m, k), "f32"), Tensor("B", "in", (k, n), "f32"), Tensor("C", "out", (m, n), "f32"))
    launch = Launch((n // TILE, -(-m // TILE), 1), (64, 1, 1), 2 * 4 * TILE * DEPTH, 4)
    return Job(kernel, launch, tensors, (m, n, k), inputs, seed, repeats=2, label="product")


def launch_bug(bug: str, *jobs: tuple[int, int, int, int]) -> list[Result]:
    binary, names = binary_of(PLANTED[bug][0])
    return binary.run([job(names.index(bug), *shape) for shape in jobs])


@pytest.mark.parametrize("sanitize", ["address", "thread"])
def test_right_kernel_passes(sanitize: Sanitizer) -> None:
    jobs = [job(0, *shape) for shape in [(32, 32, 8, 0), (33, 64, 17, 1), (1, 32, 1, 2), (70, 96, 23, 3)]]
    for done, result in zip(jobs, binary_of(sanitize)[0].run(jobs), strict=True):
        assert not isinstance(result, KernelFault), result
        reference = done.inputs["A"].astype(np.float64) @ done.inputs["B"].astype(np.float64)
        np.testing.assert_allclose(result["C"], reference, atol=1e-5)
        assert np.linalg.norm(reference) > 0


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_found(bug: str) -> None:
    verdict = PLANTED[bug][3]
    results = launch_bug(bug, (33, 64, 33, 0), (33, 64, 5, 0))
    faults = [str(result) for result in results if isinstance(result, KernelFault)]
    outputs = [result["C"] for result in results if not isinstance(result, KernelFault)]
    if verdict == "nan":
        assert not faults and any(np.isnan(out).any() for out in outputs)
    else:
        assert any(verdict in fault for fault in faults), faults


def test_report_names_the_line_of_the_kernel() -> None:
    number = KERNEL[: KERNEL.index("*reinterpret_cast<float4 *>")].count("\n") + 1
    (result,) = launch_bug("write past the end", (33, 64, 33, 0))
    assert isinstance(result, KernelFault) and re.search(rf"kernel_\d+\.cu:({number}|{number + 1})\b", str(result))


def test_schedule_follows_the_seed() -> None:
    first, again, other = launch_bug("missing barrier", (64, 64, 33, 1), (64, 64, 33, 1), (64, 64, 33, 2))
    assert not isinstance(first, KernelFault) and not isinstance(again, KernelFault) and not isinstance(other, KernelFault)
    np.testing.assert_array_equal(first["C"], again["C"])
    assert (np.isnan(first["C"]) != np.isnan(other["C"])).any()


def test_fault_costs_one_job_only() -> None:
    binary, names = binary_of("address")
    bad = names.index("write past the end")
    first, second, third = binary.run([job(0, 33, 32, 8), job(bad, 33, 32, 8), job(0, 33, 32, 8)])
    assert not isinstance(first, KernelFault) and not isinstance(third, KernelFault)
    assert isinstance(second, KernelFault)
    np.testing.assert_array_equal(first["C"], third["C"])


@pytest.mark.parametrize("declared", [
    "extern __shared__ float name[];", "extern __shared__ __align__(16) unsigned char name[];",
    "extern __align__(16) __shared__ float4 name[];", "alignas(16) extern __shared__ unsigned name[];",
    "extern __shared__ alignas(16) __nv_bfloat16 name[];",
])  # fmt: skip
def test_dynamic_shared_memory_may_be_declared_in_any_form(declared: str) -> None:
    kind = declared.removesuffix(" name[];").split(") ")[-1].split("__shared__ ")[-1]
    assert for_cpu(f"{{\n    {declared}\n}}") == f"{{\n    CUDA_ON_CPU_DYNAMIC({kind}, name);\n}}"


HELPERS = """
#include <math.h>
template <int STEP> __device__ __forceinline__ float neighbour(float value)
{
    __shared__ float values[32];
    values[threadIdx.x] = value;
    __syncthreads();
    return values[(threadIdx.x + STEP) % 32];
}

extern "C" __global__ void helpers(const float *X, float *Y, int n)
{
    const float x = X[threadIdx.x];
    Y[threadIdx.x] = neighbour<1>(x) + 8.0f * neighbour<3>(x);
    Y[32 + threadIdx.x] = __expf(x) + __logf(x) + __fdividef(x, 3.0f) + rsqrtf(x) + exp2f(x) + __frcp_rn(x) + fmaxf(x, 1.0f);
    __stcs(&Y[64 + threadIdx.x], __ldcs(&X[threadIdx.x]) + __ldcg(&X[threadIdx.x]) + __ldg(&X[threadIdx.x]));
    Y[96 + threadIdx.x] = (int)max(min((int)threadIdx.x, 20u), 3u) + (int)__umulhi(1u << 31, 6u) + __mul24(-3, 7);
    Y[128 + threadIdx.x] = fminf(x, __int_as_float(0x7f800000)) + (x < INFINITY);
}
"""


@pytest.mark.parametrize("sanitize", ["address", "thread"])
def test_helpers_with_shared_memory_and_fast_functions_do_what_cuda_does(sanitize: Sanitizer) -> None:
    x = np.random.default_rng(5).uniform(0.5, 4, 32).astype(np.float32)
    tensors = (Tensor("X", "in", (32,), "f32"), Tensor("Y", "out", (5, 32), "f32"))
    binary = compile_program(program([HELPERS, HELPERS], "helpers", 2, 1, workspace=False), sanitize)
    for result in binary.run([Job(which, Launch((1, 1, 1), (32, 1, 1), 0, 0), tensors, (32,), {"X": x}) for which in (0, 1)]):
        assert not isinstance(result, KernelFault), result
        wide, lane = x.astype(np.float64), np.arange(32)
        fast = np.exp(wide) + np.log(wide) + wide / 3 + wide**-0.5 + np.exp2(wide) + 1 / wide + np.maximum(wide, 1)
        np.testing.assert_array_equal(result["Y"][0], x[(lane + 1) % 32] + 8 * x[(lane + 3) % 32])
        np.testing.assert_allclose(result["Y"][1], fast, rtol=1e-6)
        np.testing.assert_allclose(result["Y"][2], 3 * x, rtol=1e-6)
        np.testing.assert_array_equal(result["Y"][3], np.clip(lane, 3, 20) + 3 - 21)
        np.testing.assert_array_equal(result["Y"][4], x + 1)
