"""16-bit floats on the CPU: conversions to the last bit, as numpy has them; arithmetic rounds after each operation."""

from functools import cache

import numpy as np
import pytest

from templates.template import Launch, Tensor
from tests.cpu_run import Arrays, Job, KernelFault, compile_program, from_words, program, to_words

CONVERSIONS = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Floats to words (H, B) and words to floats (FH, FB); `wrong` where the paired functions say otherwise than the single ones.
extern "C" __global__ void convert(const float *X, float *H, float *B, float *FH, float *FB, float *wrong, int n, int words)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        const __half h = __float2half_rn(X[i]), other = __float2half(X[i]);
        const __nv_bfloat16 b = __float2bfloat16_rn(X[i]);
        H[i] = __half_as_ushort(h);
        B[i] = __bfloat16_as_ushort(b);
        const __half2 h2 = __float22half2_rn(make_float2(1.0f, X[i]));
        const __nv_bfloat162 b2 = __float22bfloat162_rn(make_float2(X[i], 1.0f));
        wrong[i] = __half_as_ushort(h2.y) != __half_as_ushort(h) || __bfloat16_as_ushort(b2.x) != __bfloat16_as_ushort(b)
            || __half_as_ushort(other) != __half_as_ushort(h) || __half2float(h2.x) != 1.0f || __bfloat162float(b2.y) != 1.0f;
    }
    if (i < words) {
        const __half h = __ushort_as_half(i);
        const __nv_bfloat16 b = __ushort_as_bfloat16(i);
        FH[i] = __half2float(h);
        FB[i] = __bfloat162float(b);
        const float2 h2 = __half22float2(__halves2half2(h, h)), b2 = __bfloat1622float2(__halves2bfloat162(b, b));
        wrong[i] += __float_as_uint(h2.y) != __float_as_uint(FH[i]) || __float_as_uint(b2.x) != __float_as_uint(FB[i]);
    }
}
"""
WORDS = 1 << 16


def launch(n: int) -> Launch:
    return Launch((-(-n // 256), 1, 1), (256, 1, 1), 0, 0)


def middles() -> np.ndarray:
    """Every value halfway between two neighbouring halves or bfloat16s, and the floats on both sides of it."""
    with np.errstate(over="ignore", invalid="ignore"):
        halves = np.arange(WORDS, dtype=np.uint16).view(np.float16).astype(np.float32)
        exact = ((halves[:-1] + halves[1:]) / 2).astype(np.float32)
    tops = np.arange(WORDS, dtype=np.int64) << 16 | 0x8000
    return np.concatenate([exact, np.nextafter(exact, -np.inf), np.nextafter(exact, np.inf),
                           *((tops + step).astype(np.uint32).view(np.float32) for step in (-1, 0, 1))])  # fmt: skip


@cache
def converted() -> tuple[np.ndarray, Arrays]:
    """Floats that are hard to round, random bit patterns, and what the kernel makes of them; and of every 16-bit word."""
    drawn = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    special = [0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.996, 65520, 65536, 2**-24, 2**-25, 3.4e38, 1e-45]
    x = np.concatenate([np.array(special, np.float32), drawn, middles()])
    n = len(x)
    sizes = {"H": n, "B": n, "FH": WORDS, "FB": WORDS, "wrong": n}
    tensors = (Tensor("X", "in", (n,), "f32"), *(Tensor(name, "out", (size,), "f32") for name, size in sizes.items()))
    binary = compile_program(program([CONVERSIONS], "convert", 6, 2, workspace=False))
    (result,) = binary.run([Job(0, launch(n), tensors, (n, WORDS), {"X": x})])
    assert not isinstance(result, KernelFault), result
    return x, result


def test_every_half_is_the_float_that_numpy_says() -> None:
    values = np.arange(WORDS, dtype=np.uint16).view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(converted()[1]["FH"], values)
    np.testing.assert_array_equal(np.signbit(converted()[1]["FH"]), np.signbit(values))


def test_every_bfloat16_is_the_upper_half_of_a_float() -> None:
    np.testing.assert_array_equal(converted()[1]["FB"], (np.arange(WORDS, dtype=np.uint32) << 16).view(np.float32))


def test_floats_round_to_the_half_that_numpy_says() -> None:
    x, result = converted()
    with np.errstate(over="ignore"):
        expected = np.where(np.isnan(x), 0x7FFF, x.astype(np.float16).view(np.uint16))
    np.testing.assert_array_equal(result["H"], expected)


def test_floats_round_to_the_nearest_bfloat16_and_to_even() -> None:
    """Judged in float64 by distance to the neighbouring words, not by the same trick."""
    x, result = converted()
    numbers = np.isfinite(x)
    assert (result["B"][np.isnan(x)] == 0x7FFF).all()
    down = x[numbers].view(np.uint32) >> 16  # towards zero
    up = down + 1
    sizes = [np.abs((word << 16).astype(np.uint32).view(np.float32).astype(np.float64)) for word in (down, up)]
    sizes[1] = np.where(np.isinf(sizes[1]), 2.0**128, sizes[1])
    below, above = (np.abs(size - np.abs(x[numbers].astype(np.float64))) for size in sizes)
    nearest = np.where(below < above, down, np.where(above < below, up, np.where(down % 2 == 0, down, up)))
    np.testing.assert_array_equal(result["B"][numbers], nearest)
    np.testing.assert_array_equal(result["B"][np.isinf(x)], np.where(x[np.isinf(x)] > 0, 0x7F80, 0xFF80))


def test_paired_conversions_agree_with_single_ones() -> None:
    assert not converted()[1]["wrong"].any()


def test_arrays_are_rounded_as_the_kernels_round() -> None:
    x, result = converted()
    np.testing.assert_array_equal(to_words(x, "bf16"), result["B"])
    words = np.arange(WORDS).astype(np.uint16)
    np.testing.assert_array_equal(from_words(words, "bf16"), result["FB"])


ARITHMETIC = """
extern "C" __global__ void arithmetic(const TYPE *A, const TYPE *B, TYPE *C, TYPE *sums, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        C[0 * n + i] = A[i] + B[i];
        C[1 * n + i] = A[i] - B[i];
        C[2 * n + i] = A[i] * B[i];
        C[3 * n + i] = A[i] / B[i];
    }
    TYPE sum = i < n ? A[i] : TYPE(0.0f);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    if (i < n)
        sums[i] = sum;
}
"""


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_arithmetic_rounds_after_each_operation(dtype: str) -> None:
    kind, header = {"f16": ("__half", "cuda_fp16.h"), "bf16": ("__nv_bfloat16", "cuda_bf16.h")}[dtype]
    n, rng = 10_000, np.random.default_rng(1)
    a, b = (from_words(to_words(rng.uniform(-2, 2, n) * 2.0 ** rng.integers(-9, 9, n), dtype), dtype) for _ in range(2))
    tensors = (Tensor("A", "in", (n,), dtype), Tensor("B", "in", (n,), dtype), Tensor("C", "out", (4, n), dtype),
               Tensor("sums", "out", (n,), dtype))  # fmt: skip
    source = f"#include <{header}>\n" + ARITHMETIC.replace("TYPE", kind)
    binary = compile_program(program([source], "arithmetic", 4, 1, workspace=False))
    (result,) = binary.run([Job(0, launch(n), tensors, (n,), {"A": a, "B": b})])
    assert not isinstance(result, KernelFault), result
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    exact = np.stack([wide_a + wide_b, wide_a - wide_b, wide_a * wide_b, wide_a / wide_b])
    with np.errstate(over="ignore"):
        expected = from_words(to_words(exact.astype(np.float32), dtype), dtype) if dtype == "bf16" else exact.astype(np.float16)
    np.testing.assert_array_equal(result["C"], expected)
    pairs = wide_a + wide_a.reshape(-1, 2)[:, ::-1].ravel()
    np.testing.assert_array_equal(result["sums"], from_words(to_words(pairs.astype(np.float32), dtype), dtype))
