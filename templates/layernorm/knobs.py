"""The choices that layernorm's kernel leaves open, what follows from them, and which of them go together."""

from typing import Any

import numpy as np

from templates.knob import Columns, Knob
from templates.template import ELEMENT_BYTES, Constraint, Limits
from templates.workload import Workload

MOST_VALUES = 128  # of a row per thread, in unrolled loops of some 15 instructions a value: a quarter of the instruction cache
MOST_PEELED_VALUES = 32  # and some 60 a value where each may be outside the row
MOST_ROOM = 3  # for vectors, times what a row needs


def _kept(c: Columns) -> Any:
    return c["storage"] > 0


def _in_shared(c: Columns) -> Any:
    return (c["storage"] == 1) | (c["async_copy"] == 1)


KNOBS = (
    Knob("threads_row", "layout", (8, 16, 32, 64, 128, 256, 512, 1024), 256, "threads that share a row: latency of a row"),
    Knob("block_m", "layout", (1, 2, 4, 8, 16, 32), 1, "rows per thread block at a time: full warps and blocks for short rows"),
    Knob("width", "layout", (1, 2, 4, 8), 4, "elements per global access (up to 16 bytes)"),
    Knob("peel", "layout", (0, 1), 0, "wide accesses to unaligned rows, element by element at their ends"),
    Knob("storage", "memory", (0, 1, 2), 2, "where a row is between the passes: read again, in shared memory, in registers"),
    Knob("vectors", "layout", (1, 2, 3, 4, 5, 6, 8, 10, 12, 16), 4, "vectors of a row a thread keeps: loads under way", _kept),
    Knob("async_copy", "memory", (0, 1), 0, "copy global to shared memory without registers (cp.async)", _kept),
    Knob("dynamic_smem", "memory", (0, 1), 0, "shared memory sized at launch: needed above 48 KiB", _in_shared),
    Knob("parameters", "memory", (0, 1, 2), 0, "load weight and bias where needed, before the statistics, or once", _kept),
    Knob("read_only", "memory", (0, 1), 0, "load through the read-only cache path (__ldg): may pass stores"),
    Knob(
        "stream_in",
        "memory",
        (0, 1),
        0,
        "load X so that it leaves the caches first (__ldcs)",
        lambda c: (c["storage"] > 0) & (c["async_copy"] == 0),
    ),
    Knob("stream_out", "memory", (0, 1), 0, "store Y so that it leaves the caches first (__stcs)"),
    Knob("one_pass", "schedule", (0, 1), 0, "merge means and variances of parts: one reduction, or one read, less"),
    Knob("shuffle", "schedule", (0, 1), 1, "reduce within a warp by shuffles instead of in shared memory"),
    Knob("rounds", "schedule", (1, 2, 4, 8, 16, 32, 64), 1, "rows a thread works on in turn: longer blocks"),
    Knob("contiguous", "schedule", (0, 1), 0, "a block's rows are neighbours instead of a grid apart", lambda c: c["rounds"] > 1),
    Knob(
        "stages",
        "schedule",
        (1, 2, 3, 4),
        1,
        "rows in flight: the next ones are fetched during the arithmetic of this one",
        lambda c: (c["rounds"] > 1) & ((c["storage"] == 2) | (c["async_copy"] == 1)),
    ),
    Knob("unroll", "schedule", (1, 2, 4, 8), 4, "vectors per iteration where rows are read again", lambda c: c["storage"] == 0),
    Knob("min_blocks", "schedule", (1, 2, 4, 8), 1, "resident blocks per SM the compiler must leave registers for"),
)


def derived(c: Columns, w: Workload) -> dict[str, Any]:
    """Quantities that follow from knobs and shape, used by constraints, launch and features; ints or int arrays.

    threads, blocks: of the launch. smem_bytes: shared memory per block: rows and the reduction's parts. registers: a floor
    per thread: values of the row, weight and bias, addresses. groups: times BLOCK_M rows. vectors_row: vectors with an element
    of a row, at most. vectors_thread: those of one thread. access_bytes, values_thread: of one access, per thread and row.
    passes: how often X is read. in_flight_bytes: what a block may have under way.
    """
    element = ELEMENT_BYTES[w.dtype]
    kept, shared, peel = _kept(c), _in_shared(c), c["peel"] == 1
    threads = c["threads_row"] * c["block_m"]
    access = c["width"] * element
    vectors_row = np.where(peel, w["N"] + 2 * c["width"] - 2, w["N"]) // c["width"]
    vectors_thread = -(-vectors_row // c["threads_row"])
    slots = np.where(shared, c["stages"] * c["vectors"] * threads * access, 0)
    groups = -(-w["M"] // c["block_m"])
    ahead = np.where(kept, c["vectors"] * c["stages"], c["unroll"])
    return {
        "threads": threads,
        "blocks": -(-groups // c["rounds"]),
        "smem_bytes": slots + parts_bytes(c),
        "registers": 22 + _row_registers(c, element),
        "groups": groups,
        "vectors_row": vectors_row,
        "vectors_thread": vectors_thread,
        "values_thread": np.where(kept, c["vectors"] * c["width"], c["width"]),
        "access_bytes": access,
        "passes": np.where(kept, 1, np.where(c["one_pass"] == 1, 2, 3)),
        "in_flight_bytes": ahead * threads * access,
    }


def _row_registers(c: Columns, element: int) -> Any:
    """Of the vectors that a thread has at once: a row's values in fp32, the next row's and the parameters' as stored."""
    vector = -(-c["width"] * element // 4)
    packed = c["vectors"] * vector
    row = np.where(c["storage"] == 2, c["vectors"] * c["width"], c["width"])
    following = np.where((c["storage"] == 2) & (c["async_copy"] == 0) & (c["stages"] == 2), packed, 0)
    lasting = np.where((c["parameters"] == 2) | (following > 0), 8, 0)  # addresses and counters that outlive a row
    guards = np.where(c["peel"] == 1, 10, 0)  # which elements are inside the row
    return row + following + lasting + guards + np.where(c["parameters"] > 0, 2 * packed, 2 * vector)


def parts_bytes(c: Columns) -> Any:
    """Shared memory of the reduction: two buffers of what each warp, or each thread, has of its row."""
    threads = c["threads_row"] * c["block_m"]
    parts = np.where(c["shuffle"] == 0, threads, np.where(c["threads_row"] > 32, threads // 32, 0))
    return 2 * parts * np.where(c["one_pass"] == 1, 12, 4)


def _fits_row(c: Columns, w: Workload, limits: Limits) -> Any:
    return (c["storage"] == 0) | (derived(c, w)["vectors_thread"] <= c["vectors"])


def _fills_row(c: Columns, w: Workload, limits: Limits) -> Any:
    room = c["vectors"] * c["threads_row"]  # some waste is allowed: one knob doubled on the way to halving another
    least = (c["vectors"] == 1) & (c["threads_row"] <= 32)
    return (c["storage"] == 0) | least | (room <= MOST_ROOM * derived(c, w)["vectors_row"])


def _is_small_code(c: Columns, w: Workload, limits: Limits) -> Any:
    most = np.where(c["peel"] == 1, MOST_PEELED_VALUES, MOST_VALUES)
    return np.where(c["storage"] == 0, c["unroll"], c["vectors"]) * c["width"] <= most


def _smem_fits(c: Columns, w: Workload, limits: Limits) -> Any:
    return derived(c, w)["smem_bytes"] <= np.where(c["dynamic_smem"] == 1, limits.smem_block_bytes, limits.smem_static_bytes)


def _registers_fit(c: Columns, w: Workload, limits: Limits) -> Any:
    d = derived(c, w)
    budget = np.minimum(limits.registers_per_sm // np.maximum(d["threads"] * c["min_blocks"], 1), limits.registers_per_thread)
    return d["registers"] <= budget


def _stages_fit(c: Columns, w: Workload, limits: Limits) -> Any:
    return (c["stages"] <= c["rounds"]) & ((c["stages"] <= 2) | (c["async_copy"] == 1))


CONSTRAINTS = (
    Constraint("threads must come in whole warps: raise block_m", lambda c, *_: c["threads_row"] * c["block_m"] % 32 == 0),
    Constraint(
        "more threads than a block may have: lower block_m or threads_row",
        lambda c, _, limits: c["threads_row"] * c["block_m"] <= limits.threads_per_block,
    ),
    Constraint("an access moves at most 16 bytes", lambda c, w, _: c["width"] * ELEMENT_BYTES[w.dtype] <= 16),
    Constraint(
        "N is not a multiple of width: rows are not aligned; lower width or set peel=1",
        lambda c, w, _: (c["peel"] == 1) | (w["N"] % c["width"] == 0),
    ),
    Constraint(
        "rows are aligned for accesses of any width: nothing to peel",
        lambda c, w, _: (c["peel"] == 0) | (w["N"] * ELEMENT_BYTES[w.dtype] % 16 > 0),
    ),
    Constraint("a row does not fit: raise vectors, threads_row or width, or set storage=0", _fits_row),
    Constraint("two thirds of the room for a row would be empty: lower vectors or threads_row", _fills_row),
    Constraint(
        "rows that are read again need 32 threads or more: a long sum by few threads rounds too much",
        lambda c, *_: (c["storage"] > 0) | (c["threads_row"] >= 32),
    ),
    Constraint("the unrolled loops would not stay in the instruction cache: lower vectors or width", _is_small_code),
    Constraint("shared memory does not fit: lower vectors, block_m or stages, or set dynamic_smem=1", _smem_fits),
    Constraint("too few registers for a row, they would spill: lower vectors, stages or min_blocks", _registers_fit),
    Constraint(
        "an asynchronous copy moves 4, 8 or 16 bytes",
        lambda c, w, _: (c["async_copy"] == 0) | (c["width"] * ELEMENT_BYTES[w.dtype] >= 4),
    ),
    Constraint(
        "asynchronous copies need compute capability 8.0",
        lambda c, _, limits: (c["async_copy"] == 0) | (limits.compute_capability >= (8, 0)),
    ),
    Constraint("more rows in flight than rounds, or more than 2 without asynchronous copies", _stages_fit),
    Constraint(
        "weight and bias are loaded once only where there are several rounds and the thread has the same elements in each",
        lambda c, *_: (c["parameters"] < 2) | ((c["rounds"] > 1) & (c["peel"] == 0)),
    ),
    Constraint("some rounds would have no rows: lower rounds", lambda c, w, _: c["rounds"] <= -(-w["M"] // c["block_m"])),
    Constraint("offsets need 32 bits: M and N must be at most 2^30", lambda c, w, _: w["M"] <= 2**30 and w["N"] <= 2**30),
)
