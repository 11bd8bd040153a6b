"""Layer normalisation of the rows of X (M, N) with weight and bias (N): launch geometry, reference, error bound, edges."""

from collections.abc import Mapping

import numpy as np

from templates.knob import Config
from templates.layernorm.knobs import CONSTRAINTS, KNOBS, derived, parts_bytes
from templates.layernorm.traffic import traffic
from templates.template import ELEMENT_BYTES, Launch, Limits, Template, Tensor
from templates.workload import Workload

EPSILON = 1e-5
UNIT_ROUNDOFF = 2.0**-24


def launch(config: Config, w: Workload) -> Launch:
    """A block per BLOCK_M x ROUNDS rows."""
    d = {name: int(value) for name, value in derived(config, w).items()}
    rows_bytes = d["smem_bytes"] - int(parts_bytes(config))
    return Launch((d["blocks"], 1, 1), (d["threads"], 1, 1), rows_bytes if config["dynamic_smem"] else 0, 0)


def tensors(w: Workload) -> tuple[Tensor, ...]:
    """X (M, N), weight (N), bias (N), Y (M, N). X has a mean that is not 0 and a variance that the epsilon shows in."""
    m, n, t = w["M"], w["N"], w.dtype
    parameters = (Tensor("weight", "in", (n,), t), Tensor("bias", "in", (n,), t))
    return (Tensor("X", "in", (m, n), t, -0.25, 0.75), *parameters, Tensor("Y", "out", (m, n), t))


def error_bound(w: Workload) -> float:
    """The unit roundoff of fp32, which the reference's magnitude counts in: 8 + 8 sqrt(8 + N / 3072) roundings of |weight|
    (|x - mean| + mean |x|) / sigma + |bias|, where sigma^2 = variance + epsilon, and that of Y to its type.

    A sum of n terms by T threads, each adding c = n / T of them, errs by at most lambda u sqrt(2 + c / 3 T) of the sum of
    their absolute values, up to a failure probability below 1e-13 for lambda = 8 (Higham and Mary, A New Approach to
    Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41(5), 2019: errors of partial sums as independent random
    variables; here with the size of each partial sum, at most k / n of the whole after k terms). T is 32 or more for long rows;
    c / 3 T is at most 5.4 for 128 values by each of 8 threads. The mean has that error, 1 / sigma half of the same for the
    sum of squares - the mean's own error enters it squared (Chan, Golub, LeVeque, Algorithms for Computing the Sample
    Variance, Am. Stat. 37(3), 1983) - and 8 roundings come from 1 / sigma, the products and the last sum. A variance from the
    mean of squares would err by (mean / sigma)^2, and fails.
    """
    return UNIT_ROUNDOFF


def reference(inputs: Mapping[str, np.ndarray], w: Workload) -> np.ndarray:
    """Y in float64 on the CPU, shape (M, N)."""
    x, weight, bias = (np.asarray(inputs[name], dtype=np.float64) for name in ("X", "weight", "bias"))
    deviation = x - x.mean(axis=1, keepdims=True)
    variance = np.mean(deviation**2, axis=1, keepdims=True)
    result: np.ndarray = deviation / np.sqrt(variance + EPSILON) * weight + bias
    return result


def edge_shapes(config: Config) -> list[Workload]:
    """Numbers of rows round those of a block, row lengths round what its threads hold, that keep the config legal."""
    rows, width = config["block_m"] * config["rounds"], config["width"]
    strip = config["threads_row"] * width
    room = config["vectors"] * strip if config["storage"] else (config["unroll"] + 1) * strip
    ms = (1, rows - config["block_m"] + 1, rows - 1, rows, rows + 1, 2 * rows + 1)
    ns = (1, width, strip - width, strip, strip + width, 2 * strip + width, room // 2 + width, room - width, room)
    odd = {size - width + extra for size in ns for extra in (-1, 1)}
    pairs = [(m, n) for m in sorted(set(ms)) for n in sorted({*ns, *odd}) if m > 0 and n > 0]
    for dtype in ("f32", "f16"):  # some configs are legal for one of them only
        shapes = [Workload("layernorm", dtype, (("M", m), ("N", n))) for m, n in pairs]
        if legal := [w for w in shapes if all(np.all(c.holds(config, w, Limits())) for c in CONSTRAINTS)]:
            return _few(legal)
    return []


def _few(shapes: list[Workload]) -> list[Workload]:
    """Each M and each N of some shapes, with few of their pairs."""
    ms, ns = sorted({w["M"] for w in shapes}), sorted({w["N"] for w in shapes}, reverse=True)
    count = max(len(ms), len(ns))
    pairs = {(ms[i % len(ms)], ns[i % len(ns)]) for i in range(count)}
    return [w for w in shapes if (w["M"], w["N"]) in pairs]


NAIVE = {
    "threads_row": 256, "block_m": 1, "width": 1, "peel": 0, "storage": 0, "vectors": 4, "async_copy": 0, "dynamic_smem": 0,
    "parameters": 0, "read_only": 0, "stream_in": 0, "stream_out": 0, "one_pass": 0, "shuffle": 0, "rounds": 1,
    "contiguous": 0, "stages": 1, "unroll": 1, "min_blocks": 1,
}  # fmt: skip
"""A thread block per row, which it reads three times, element by element; sums by a tree in shared memory."""


def expert(w: Workload) -> dict[str, int]:
    """The config an engineer would write down without searching: 16-byte accesses, the row in registers, a warp for a short
    row and a block for a long one, reduced by shuffles. Rows too long for that are read twice, by 1024 threads.
    """
    most = 16 // ELEMENT_BYTES[w.dtype]
    width = max((v for v in (2, 4, 8) if v <= most and w["N"] % v == 0), default=1)
    config = {**NAIVE, "width": width, "shuffle": 1, "read_only": 1, "unroll": 4}
    vectors = -(-w["N"] // width)
    threads = next((t for t in (32, 64, 128, 256, 512, 1024) if vectors <= t * (4 if t > 32 else 8)), 0)
    if not threads:
        return {**config, "threads_row": 1024, "one_pass": 1}
    held = next(v for v in (1, 2, 3, 4, 5, 6, 8) if vectors <= v * threads)
    return {**config, "threads_row": threads, "block_m": max(1, 128 // threads), "storage": 2, "vectors": held, "unroll": 4}


TEMPLATE = Template(
    op="layernorm",
    entry="layernorm",
    dims=("M", "N"),
    dtypes=("f32", "f16", "bf16"),
    knobs=KNOBS,
    constraints=CONSTRAINTS,
    naive=NAIVE,
    expert=expert,
    launch=launch,
    tensors=tensors,
    scalars=lambda w: (w["M"], w["N"]),
    flops=lambda w: 8.0 * w["M"] * w["N"],
    bytes=lambda w: float(ELEMENT_BYTES[w.dtype] * (2 * w["M"] * w["N"] + 2 * w["N"])),
    error_bound=error_bound,
    reference=reference,
    derived=derived,
    edge_shapes=edge_shapes,
    traffic=traffic,
    reference_threads=lambda w: 256 * w["M"],
)
