"""Softmax over each row of an (M, N) array: knobs, launch geometry, reference. Storage f32, f16 or bf16, arithmetic fp32."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from templates.knob import Columns, Config, Knob
from templates.softmax.legality import CONSTRAINTS, HELD_WHOLE_BYTES
from templates.softmax.traffic import traffic
from templates.softmax.work import derived, tile_bytes
from templates.space import violations
from templates.template import ELEMENT_BYTES, Launch, Limits, Template, Tensor
from templates.workload import Workload

UNIT_ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}


def _stages_active(c: Columns) -> Any:
    return (c["rounds"] > 1) & ((c["async_copy"] == 1) | (c["storage"] == 2))


KNOBS = (
    Knob("threads_row", "layout", (4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024), 256,
         "threads that share a row: cheap reductions against many rows at once"),
    Knob("block_m", "layout", (1, 2, 4, 8, 16, 32), 1, "rows per thread block at a time"),
    Knob("width", "layout", (1, 2, 4, 8), 4, "elements per global access: up to 16 bytes"),
    Knob("peel", "layout", (0, 1), 1, "rows need not be aligned to the width: their ends go element by element",
         lambda c: c["width"] > 1),
    Knob("rounds", "layout", (1, 2, 4, 8, 16), 1, "rows a thread works on, one after another: fewer, longer blocks"),
    Knob("contiguous", "layout", (0, 1), 0, "a block's rows are neighbours instead of a grid apart: order of access",
         lambda c: c["rounds"] > 1),
    Knob("storage", "memory", (0, 1, 2), 2, "where a row is kept between its passes: nowhere, shared memory, registers"),
    Knob("async_copy", "memory", (0, 1), 0, "copy rows to shared memory without registers (cp.async)",
         lambda c: c["storage"] != 0),
    Knob("held", "memory", (2, 4, 6, 8), 8, "eighths of a row that shared memory keeps; the rest is read again",
         lambda c: (c["storage"] == 1) & (c["async_copy"] == 0)),
    Knob("read_only", "memory", (0, 1), 0, "load X through the read-only cache path (__ldg)", lambda c: c["async_copy"] == 0),
    Knob("stream_in", "memory", (0, 1), 0, "load X as data that leaves the caches first (__ldcs)",
         lambda c: (c["async_copy"] == 0) & (c["read_only"] == 0)),
    Knob("stream_out", "memory", (0, 1), 0, "store Y as data that leaves the caches first (__stcs)"),
    Knob("keep_powers", "memory", (0, 1), 0, "keep the exponentials in registers instead of computing them twice",
         lambda c: c["storage"] == 2),
    Knob("vectors", "schedule", (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32), 4,
         "vectors of a row that a thread loads before it uses them: accesses in flight, loop unrolling"),
    Knob("stages", "schedule", (1, 2, 3), 1, "rows in flight: software pipelining over a thread's rows", _stages_active),
    Knob("online", "schedule", (0, 1), 0, "find maximum and sum together: one reduction, one pass less without storage"),
    Knob("serial", "schedule", (0, 1), 0, "each thread goes through the warps' parts by itself instead of by shuffles",
         lambda c: c["threads_row"] > 32),
    Knob("fast_math", "schedule", (0, 1), 0, "__expf and __fdividef instead of expf and a division"),
    Knob("min_blocks", "schedule", (1, 2, 4, 8), 1,
         "resident blocks per SM the compiler must leave registers for"),
)  # fmt: skip


def launch(config: Config, w: Workload) -> Launch:
    """One block per block_m x rounds rows; shared memory for the rows in flight where rows pass through it."""
    d = derived(config, w)
    return Launch((int(d["blocks"]), 1, 1), (int(d["threads"]), 1, 1), int(tile_bytes(config, w)), 0)


def tensors(w: Workload) -> tuple[Tensor, ...]:
    """X and Y, both (M, N). X is drawn well above 0, so that exponentials that are not relative to the maximum overflow."""
    shape = (w["M"], w["N"])
    return (Tensor("X", "in", shape, w.dtype, 80.0, 100.0), Tensor("Y", "out", shape, w.dtype))


def error_bound(w: Workload) -> float:
    """Unit roundoff u of the stored type: what rounding the result costs.

    The reference's magnitude is y (1 + a (1 + d + sqrt(N))) + t: d is how far the element lies below the row's maximum, t the
    smallest normal number (below it rounding is absolute), and a = 4 u32 / u. In a: the rounded difference x - max costs d u32
    in the exponential, whose own error is up to 2 + 1.173 d ulp (CUDA C++ Programming Guide, __expf); the sum of N positive
    terms costs lambda sqrt(N) u32 with lambda = 4 (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis,
    SIAM J. Sci. Comput. 41(5), 2019, theorem 3.1), which is ample, for no thread adds up all of a long row. The worst case,
    N u32, would let a dropped term pass.
    """
    return UNIT_ROUNDOFF[w.dtype]


def reference(inputs: Mapping[str, np.ndarray], w: Workload) -> np.ndarray:
    """Y in float64 on the CPU, shape (M, N)."""
    x = inputs["X"].astype(np.float64)
    with np.errstate(invalid="ignore"):
        powers = np.exp(x - x.max(axis=1, keepdims=True))
        y: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return y


def edge_shapes(config: Config) -> list[Workload]:
    """Shapes round the rows of a block and what its threads hold of a row at once, those on which the config is legal.

    In fp32 where the config allows it. Rows that registers must hold end at what they hold. Long rows come with few of them.
    """
    rows, step = config["block_m"] * config["rounds"], config["threads_row"] * config["vectors"] * config["width"]
    unit = 1 if config["peel"] else config["width"]
    least = 0 if config["held"] == 8 else -(-HELD_WHOLE_BYTES // (2 * step)) * step  # also of the shortest elements
    sizes = [1, unit, step // 2 + unit, step - unit, step - 1, step, step + 1, step + unit, 2 * step + unit]
    heights = sorted({max(1, m) for m in (1, rows // 2 + 1, rows - 1, rows, rows + 1, 2 * rows + 1)})
    for dtype in ("f32", "f16"):
        ns = [n for n in sorted({least + size for size in sizes}, reverse=True) if _is_legal(config, dtype, rows, n)]
        ms = [m for m in heights if ns and _is_legal(config, dtype, m, ns[0])]
        if ms:
            count = max(len(ms), len(ns))
            pairs = [(ms[i % len(ms)], ns[(i + shift) % len(ns)]) for shift in (0, 1) for i in range(count)]
            return [Workload("softmax", dtype, (("M", m), ("N", n))) for m, n in dict.fromkeys(pairs)]
    raise AssertionError(f"no shape round its tiles suits {config}")


def _is_legal(config: Config, dtype: str, m: int, n: int) -> bool:
    return n > 0 and not violations(TEMPLATE, config, Workload("softmax", dtype, (("M", m), ("N", n))), Limits())


NAIVE = {
    "threads_row": 32, "block_m": 4, "width": 1, "peel": 1, "rounds": 1, "contiguous": 0, "storage": 0, "async_copy": 0,
    "held": 8, "read_only": 0, "stream_in": 0, "stream_out": 0, "keep_powers": 0, "vectors": 1, "stages": 1, "online": 0,
    "serial": 0, "fast_math": 0, "min_blocks": 1,
}  # fmt: skip
"""One warp per row, which reads it three times, element by element."""


def expert(w: Workload) -> dict[str, int]:
    """The config an engineer would write down without searching: 16-byte accesses; rows in registers, a warp for short ones, a
    block for long ones; longer rows in shared memory, and those too long for that read twice.
    """
    widest = 16 // ELEMENT_BYTES[w.dtype]
    aligned = max(width for width in (1, 2, 4, 8) if width <= widest and w["N"] % width == 0)
    width = widest if aligned == 1 and w["N"] >= 64 else aligned
    config = {**NAIVE, "width": width, "peel": int(width == 1 or aligned < width), "fast_math": 1, "block_m": 1}
    row_vectors = w["N"] // width
    threads = next((t for t in (32, 128, 256, 512, 1024) if row_vectors <= 8 * t), None)
    if threads is not None:
        vectors = max(1, -(-row_vectors // threads))
        return config | {"threads_row": threads, "storage": 2, "vectors": vectors, "block_m": 4 if threads == 32 else 1}
    config |= {"threads_row": 1024, "vectors": 4}
    in_shared = config | {"storage": 1}
    return config | {"online": 1} if violations(TEMPLATE, in_shared, w, Limits()) else in_shared


TEMPLATE = Template(
    op="softmax",
    entry="softmax",
    dims=("M", "N"),
    dtypes=("f32", "f16", "bf16"),
    knobs=KNOBS,
    constraints=CONSTRAINTS,
    naive=NAIVE,
    expert=expert,
    launch=launch,
    tensors=tensors,
    scalars=lambda w: (w["M"], w["N"]),
    flops=lambda w: 5.0 * w["M"] * w["N"],
    bytes=lambda w: 2.0 * ELEMENT_BYTES[w.dtype] * w["M"] * w["N"],
    error_bound=error_bound,
    reference=reference,
    derived=derived,
    edge_shapes=edge_shapes,
    traffic=traffic,
    reference_threads=lambda w: 256 * w["M"],
)
