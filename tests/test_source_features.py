"""Features of the source: known counts on small kernels, and every knob of a template moves some of them."""

from itertools import islice

import numpy as np
import pytest

from cost_model.source import NAMES, source_features
from cost_model.syntax import SourceError
from datasets.device import H200
from templates.knob import columns_of, configs_of
from templates.render import render
from templates.space import canonical, legal
from templates.template import Template, load_template, operators
from templates.workload import Workload
from tests.operator_cases import CASES, IDS, configs, listed, with_value

NOT_IN_THE_SOURCE: dict[tuple[str, str], str] = {}
"""Knobs (operator, name) that act through the launch alone, with the reason; none at present."""

KERNEL = """
constexpr int DEPTH = 8;
constexpr int WIDE = DEPTH / 4;
extern "C" __global__ void __launch_bounds__(128, 2) kernel(const float *A, float *B, int n)
{
    __shared__ float tile[DEPTH][32];
    float sum[WIDE] = {};
    for (int step = 0; step < n; ++step) {
        tile[step % DEPTH][threadIdx.x] = A[step * 32 + threadIdx.x];
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < DEPTH; ++k)
#pragma unroll
            for (int i = 0; i < WIDE; i += 1)
                sum[i] += tile[k][i] * 2.0f;
    }
    *reinterpret_cast<float2 *>(B) = *reinterpret_cast<const float2 *>(sum);
}
"""


def test_counts_of_a_small_kernel_are_what_a_reader_counts() -> None:
    found = source_features(KERNEL)
    expected = {
        "fma": 1, "w_fma": 16, "load_global_1": 1, "w_load_global_1": 1, "store_shared_1": 1, "w_load_shared_1": 16,
        "load_shared_1": 1, "store_global_2": 1, "barrier": 1, "loops": 3, "loops_runtime": 1, "loop_nesting": 3,
        "unroll_pragmas": 2, "unroll_limit": 2, "shared_bytes": 8 * 32 * 4, "local_bytes": 8, "block_threads": 128,
        "min_blocks": 2, "w_depth": 8, "branch": 0, "async_copy": 0, "mul": 0,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_weighted_counts_follow_the_constants() -> None:
    deeper = source_features(KERNEL.replace("DEPTH = 8", "DEPTH = 16"))
    assert deeper["fma"] == 1 and deeper["w_fma"] == 16 * 4 and deeper["w_depth"] == 16


def test_unrolling_grows_code_but_not_work() -> None:
    rolled = source_features(KERNEL.replace("#pragma unroll 4\n", ""))
    unrolled = source_features(KERNEL)
    assert unrolled["w_fma"] == rolled["w_fma"] and unrolled["code_size"] > 2 * rolled["code_size"]


def test_functions_are_followed_with_the_memory_their_pointers_point_to() -> None:
    found = source_features(
        """
template <int WIDTH> __device__ void move(float *to, const float *from)
{
    if constexpr (WIDTH == 4)
        *reinterpret_cast<float4 *>(to) = *reinterpret_cast<const float4 *>(from);
    else
        *to = *from;
}
__global__ void kernel(const float *A, float *B)
{
    __shared__ float4 tile[64];
    float *const mine = reinterpret_cast<float *>(tile) + 4 * threadIdx.x;
    for (int i = 0; i < 3; ++i)
        move<4>(mine, A + 4 * i);
    __syncthreads();
    move<1>(B, mine);
}
"""
    )
    expected = {"w_load_global_4": 3, "w_store_shared_4": 3, "w_load_shared_1": 1, "w_store_global_1": 1}
    moved = {name: value for name, value in found.items() if name.startswith(("w_load", "w_store")) and value}
    assert moved == expected


WARP_KERNEL = """
#include <cuda_fp16.h>
extern "C" __global__ void kernel(const __half *X, __half *Y, float *Z, int n)
{
    extern __shared__ __align__(16) unsigned char memory[];
    float *const row = reinterpret_cast<float *>(memory);
    float most = -INFINITY;
    __builtin_assume(n % 8 == 0);
    for (int i = threadIdx.x; i < n; i += 32) {
        const uint4 wide = __ldcs(reinterpret_cast<const uint4 *>(X) + i);
        const float2 pair = __half22float2(*reinterpret_cast<const __half2 *>(&wide.x));
        most = fmaxf(most, max(pair.x, pair.y));
        row[i] = __expf(__half2float(X[i]));
    }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 16));
    __syncwarp();
    if (__any_sync(0xffffffffu, most > 0.0f))
        __stcs(reinterpret_cast<float4 *>(Z) + threadIdx.x, make_float4(most, most, most, most));
    Y[threadIdx.x] = __float2half_rn(min(most, 1.0f));
    __stcg(Z, 1.0f);
}
"""


def test_counts_of_a_kernel_with_shuffles_and_halves_are_what_a_reader_counts() -> None:
    found = source_features(WARP_KERNEL)
    expected = {
        "shuffle": 2, "barrier": 1, "special": 1, "load_global_4": 1, "load_global_1": 1, "load_read_only": 0,
        "store_global_4": 1, "store_global_1": 2, "store_shared_1": 1, "branch": 1, "compare": 2, "int_div": 0,
        "add": 8, "mul": 0, "fma": 0,  # four of fmax, max and min, three conversions, a sign
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(("type", "header"), [("__half", "cuda_fp16.h"), ("__nv_bfloat16", "cuda_bf16.h")])
def test_arithmetic_on_16_bit_floats_counts_as_arithmetic(type: str, header: str) -> None:
    source = f"#include <{header}>\n__global__ void kernel({type} *A) {{ A[0] = A[1] * A[2] + A[3] / A[4]; }}"
    found = source_features(source)
    counted = {name: found[name] for name in ("mul", "add", "special", "load_global_1", "store_global_1")}
    assert counted == {"mul": 1, "add": 1, "special": 1, "load_global_1": 4, "store_global_1": 1}


@pytest.mark.parametrize(("loop", "count"), [
    ("int i = 0; i < 10; i += 3", 4), ("int i = 10; i > 0; --i", 10), ("int i = 1; i <= 8; i++", 8), ("int i = 5; i < 5; ++i", 0),
])  # fmt: skip
def test_trip_counts(loop: str, count: int) -> None:
    source = f"__global__ void kernel(float *A) {{ for ({loop}) A[i] = 1.0f; }}"
    assert source_features(source)["w_store_global_1"] == count


def test_syntax_error_is_reported_with_its_line() -> None:
    with pytest.raises(SourceError, match="line 2: .*undeclared"):
        source_features("__global__ void kernel(float *A) {\n A[0] = missing; }")


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=IDS)
def test_the_same_names_for_every_operator_dtype_and_config(op: str, dtype: str) -> None:
    template = load_template(op)
    for config in configs(template, dtype, 10, np.random.default_rng(0)):
        assert tuple(source_features(render(template, config, dtype))) == NAMES
    assert len(set(NAMES)) == len(NAMES)


Pair = tuple[dict[str, int], dict[str, int]]


def neighbours(template: Template, w: Workload, knob: str, low: int, high: int, rng: np.random.Generator) -> list[Pair]:
    """Up to 20 configs of a workload with the lower value, each with its like that has the higher one; the workload may decide
    a knob's value, a layout's say, so the like is legal on a listed workload, on this one if there are such.
    """
    found = list(islice(with_value(template, w, knob, low, rng), 200))
    if not found:
        return []
    likes = canonical(template, {**columns_of(found, template.names), knob: np.full(len(found), high)})
    for others in ([w], listed(template, w.dtype)):
        fits = np.any([legal(template, likes, other, H200.limits) for other in others], axis=0) & (likes[knob] == high)
        if fits.any():
            pairs = zip(found, configs_of(likes), strict=True)
            return [pair for pair, fit in zip(pairs, fits, strict=True) if fit][:20]
    return []


@pytest.mark.parametrize(("op", "knob"), [(op, knob) for op in operators() for knob in load_template(op).names])
def test_every_knob_moves_a_feature(op: str, knob: str) -> None:
    """Each pair of a knob's neighbouring values differs in the source's features somewhere."""
    if (op, knob) in NOT_IN_THE_SOURCE:
        pytest.skip(NOT_IN_THE_SOURCE[op, knob])
    template, rng = load_template(op), np.random.default_rng(1)
    workloads = [w for dtype in template.dtypes for w in listed(template, dtype)]
    values = template.knob[knob].values
    for low, high in zip(values, values[1:], strict=False):
        tried = 0
        for w in (workloads[i] for i in rng.permutation(len(workloads))):
            pairs = neighbours(template, w, knob, low, high, rng)
            tried += len(pairs)
            sources = ([render(template, config, w.dtype) for config in pair] for pair in pairs)
            if any(source_features(a) != source_features(b) for a, b in sources):
                break
        else:
            assert tried == 0, f"{knob}: {low} and {high} look the same in all of {tried} pairs of configs"


def test_a_knob_that_only_renames_would_be_caught() -> None:
    """The planted bug: a constant that nothing uses moves no feature."""
    plain = KERNEL.replace("constexpr int DEPTH", "constexpr int UNUSED = 1;\nconstexpr int DEPTH")
    other = plain.replace("UNUSED = 1", "UNUSED = 2")
    assert plain != other and source_features(plain) == source_features(other)
