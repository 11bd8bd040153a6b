"""Attention's kernels on the CPU: what is special to them. Random configs at edge shapes: test_operators_cpu.py."""

import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from templates.space import complete, violations
from templates.template import Limits, Template, load_template
from templates.workload import Workload
from tests.cpu_run import Arrays, KernelFault, compile_kernels, draw_inputs, job_of, run

ATTENTION = load_template("attention")


def workload(b: int, h: int, kv: int, q: int, k: int, d: int, causal: int = 0) -> Workload:
    return ATTENTION.workload(B=b, H=h, KV=kv, Q=q, K=k, D=d, causal=causal)


SMALL = {"shared": 1, "block_q": 16, "block_k": 32, "block_d": 32, "thread_q": 2, "lanes_k": 8, "vector": 2, "width": 4}
VARIANTS = {
    "naive": dict(ATTENTION.naive),
    "one barrier": complete(ATTENTION, {**SMALL, "stages": 2, "thread_q": 4}),
    "two barriers": complete(ATTENTION, {**SMALL, "skip_rescale": 1, "dynamic_smem": 0}),
    "through registers": complete(ATTENTION, {**SMALL, "async_copy": 0, "stages": 2, "transpose_q": 1, "transpose_k": 1}),
    "no prefetch, shuffles": complete(ATTENTION, {**SMALL, "async_copy": 0, "p_parts": 0, "lanes_k": 16}),
    "parts everywhere": complete(ATTENTION, {**SMALL, "split_k": 4, "warps_k": 2, "p_parts": 2, "heads_first": 1, "reverse": 1}),
}
"""One config of each way through the kernel."""
NAMES = list(VARIANTS)
LONG = workload(1, 2, 2, 19, 150, 32)


def results(w: Workload, inputs: Arrays, seed: int = 0) -> list[Arrays | KernelFault]:
    """What each variant makes of the inputs."""
    for config in VARIANTS.values():
        assert violations(ATTENTION, config, w, Limits()) == []
    jobs = [job_of(ATTENTION, i, config, w, inputs, seed) for i, config in enumerate(VARIANTS.values())]
    return compile_kernels(ATTENTION, list(VARIANTS.values())).run(jobs)


def magnitude(inputs: Arrays, w: Workload) -> np.ndarray:
    return ATTENTION.reference({**inputs, "V": np.abs(inputs["V"])}, w)


def error(result: Arrays | KernelFault, inputs: Arrays, w: Workload) -> float:
    """Largest error in units of the bound; infinite for a fault or a NaN."""
    if isinstance(result, KernelFault):
        return np.inf
    ratio = np.abs(result["O"] - ATTENTION.reference(inputs, w)) / (ATTENTION.error_bound(w) * magnitude(inputs, w))
    return float(np.max(np.where(np.isnan(ratio), np.inf, ratio)))


def each_within_bound(inputs: Arrays, w: Workload, most: float = 1.0) -> None:
    found = {name: error(result, inputs, w) for name, result in zip(NAMES, results(w, inputs), strict=True)}
    assert max(found.values()) <= most, found


@pytest.mark.parametrize("w", [LONG, workload(2, 4, 2, 19, 150, 20, 1), workload(1, 2, 1, 150, 130, 28, 1)], ids=str)
def test_every_way_through_the_kernel_is_right(w: Workload) -> None:
    each_within_bound(draw_inputs(ATTENTION, w, np.random.default_rng(0)), w, 0.5)


def test_large_scores_do_not_overflow() -> None:
    """Scores of about +-1e5: exp of any of them, not relative to the largest, would be infinite or zero."""
    inputs = draw_inputs(ATTENTION, LONG, np.random.default_rng(1))
    inputs["Q"] = np.round(inputs["Q"]) * 1024
    inputs["K"] = np.round(inputs["K"]) * 64  # exact products, so that only what follows them can go wrong
    each_within_bound(inputs, LONG, 2.0**17 / 16)  # the argument of exp is rounded relative to the score


def test_scores_that_only_rise_or_only_fall_are_rescaled_right() -> None:
    inputs = draw_inputs(ATTENTION, LONG, np.random.default_rng(2))
    inputs["Q"][:] = 1.0
    for order in (np.linspace(-2, 2, 150), np.linspace(2, -2, 150)):
        inputs["K"] = np.broadcast_to(order.astype(np.float32)[:, None], (1, 2, 150, 32)).copy()
        each_within_bound(inputs, LONG)


def test_keys_that_a_query_does_not_see_change_nothing() -> None:
    w = workload(1, 2, 2, 40, 150, 32, 1)
    inputs = draw_inputs(ATTENTION, w, np.random.default_rng(3))
    other = {name: values.copy() for name, values in inputs.items()}
    other["K"][:, :, 20:], other["V"][:, :, 20:] = 1e15, -1e30
    for name, before, after in zip(NAMES, results(w, inputs), results(w, other), strict=True):
        assert not isinstance(before, KernelFault) and not isinstance(after, KernelFault)
        assert np.array_equal(before["O"][:, :, :20], after["O"][:, :, :20]), name


def test_a_nan_stays_in_its_row() -> None:
    inputs = draw_inputs(ATTENTION, LONG, np.random.default_rng(4))
    inputs["Q"][0, 1, 7, 3] = np.nan
    for name, result in zip(NAMES, results(LONG, inputs), strict=True):
        assert not isinstance(result, KernelFault)
        lost = np.isnan(result["O"]).any(axis=-1)
        assert lost[0, 1, 7] and lost.sum() == 1, name


def test_the_order_of_blocks_and_threads_does_not_matter() -> None:
    inputs = draw_inputs(ATTENTION, LONG, np.random.default_rng(5))
    for name, once, again in zip(NAMES, results(LONG, inputs, 1), results(LONG, inputs, 2), strict=True):
        assert not isinstance(once, KernelFault) and not isinstance(again, KernelFault)
        assert np.array_equal(once["O"], again["O"]), name


def test_packed_heads_are_the_same_heads() -> None:
    """Tiles that hold rows of several heads, with and without a mask; a group that is no power of two."""
    packed = complete(ATTENTION, {**VARIANTS["two barriers"], "pack_heads": 1})
    for w in (workload(2, 6, 2, 1, 70, 32), workload(1, 6, 2, 9, 70, 32, 1), workload(1, 3, 1, 40, 33, 32, 1)):
        inputs = draw_inputs(ATTENTION, w, np.random.default_rng(6))
        assert error(run(ATTENTION, packed, w, inputs), inputs, w) <= 1


PLANTED = {
    "nothing rescaled": ("        shrink(out[m], sum[m], exp2f(before[m] - top[m]));\n", ""),
    "keys past the last one count": ("s[m][n] = LOWEST;", "s[m][n] += 0.0f;"),
    "queries see one key too many": ("    return min(keys, last + 1);", "    return min(keys, last + 2);"),
    "scores half as large": ("1.44269504f / sqrtf", "0.72134752f / sqrtf"),
    "weights read before they are written": ("                __syncwarp();\n", ""),
    "a tile overwritten while it is read": (
        "        __syncthreads();           // for all threads, and nobody reads the last tile of V any more\n", ""
    ),
    "lanes do not agree on the largest score": (
        "lanes < LANES_K; lanes *= 2)\n#pragma unroll\n", "lanes < 1; lanes *= 2)\n#pragma unroll\n"
    ),
    "one lane's sum": ("            sum[m] += __shfl_xor_sync(FULL_WARP, sum[m], lanes);", "            sum[m] += 0.0f;"),
}  # fmt: skip


@cache
def elsewhere(folder: Path) -> Template:
    """The template with another kernel file."""

    class Elsewhere(Template):
        source_path = folder / "kernel.cu"

    return Elsewhere(**{field.name: getattr(ATTENTION, field.name) for field in dataclasses.fields(ATTENTION)})


@pytest.mark.thorough
@pytest.mark.parametrize("mistake", PLANTED)
def test_planted_mistakes_are_caught(mistake: str, tmp_path: Path) -> None:
    before, after = PLANTED[mistake]
    source = ATTENTION.source_path.read_text()
    assert before in source
    (tmp_path / "kernel.cu").write_text(source.replace(before, after))
    config = complete(ATTENTION, SMALL)
    w = workload(1, 2, 2, 19, 150, 32, int("queries" in mistake))
    inputs = draw_inputs(ATTENTION, w, np.random.default_rng(7))
    (result,) = compile_kernels(elsewhere(tmp_path), [config]).run([job_of(ATTENTION, 0, config, w, inputs)])
    assert error(result, inputs, w) > 1
