"""What follows from an attention config and a shape: thread tiles, memory, registers, grid; and what does not fit together."""

from typing import Any

import numpy as np

from templates.attention.knobs import BLOCKS_D, is_p_shared, is_shared
from templates.knob import Columns
from templates.template import Constraint, Limits
from templates.workload import Workload

MOST_FMAS = 2048  # in the unrolled bodies of both loops: 16 bytes each, a quarter of a 128 KiB instruction cache
MOST_COPIES = 32  # vectors of one tile that a thread copies
MOST_WORKSPACE = 2**28  # bytes


def derived(c: Columns, w: Workload) -> dict[str, Any]:
    """Quantities that follow from knobs and shape, used by constraints, launch and features; ints or int arrays.

    threads: per block. lanes_q, warps_q: the warp's shape, warps along the rows. thread_k, thread_d: keys and columns of a
    thread. smem_bytes: shared memory per block. registers: a floor per thread: scores, sums, fragments, staging, addresses.
    tiles_q: blocks of rows per head (per group of heads where packed). blocks: grid. k_tiles: tiles of keys in all of them.
    fma_per_load: FMAs per fragment float read, of the scores and of O. d_used: share of a tile's columns that hold data.
    """
    shared, p_shared = is_shared(c), is_p_shared(c)
    lanes_q = 32 // c["lanes_k"]
    warp_q = c["thread_q"] * lanes_q
    warps_q = c["block_q"] // warp_q
    threads = 32 * warps_q * c["warps_k"]
    thread_k = c["block_k"] // (c["warps_k"] * c["lanes_k"])
    thread_d = columns_held(c) // c["lanes_k"]
    heads = np.where(c["pack_heads"] == 1, w["KV"], w["H"])
    tiles_q = -(-(w["H"] // heads * w["Q"]) // c["block_q"])
    scores, sums = c["thread_q"] * thread_k, c["thread_q"] * thread_d
    depth = np.where(shared, c["vector"], c["width"])
    of_scores, of_sums = (c["thread_q"] + np.minimum(thread_k, 2)) * depth, np.where(p_shared, c["thread_q"], 0) + thread_d
    staging = np.where(shared & (c["async_copy"] == 0), c["block_k"] * c["block_d"] // np.maximum(threads, 1), 0)
    pointers = np.where(shared, 0, 2 * (c["thread_q"] + thread_k) + thread_d)  # and a second row of V on its way
    d_used = w["D"] / np.where(shared, c["block_d"], w["D"])
    return {
        "threads": threads,
        "lanes_q": lanes_q,
        "warps_q": warps_q,
        "thread_k": thread_k,
        "thread_d": thread_d,
        "smem_bytes": 4 * np.maximum(tile_floats(c), np.where(c["warps_k"] > 1, sum_floats(c), 0)),
        "registers": scores + sums + 2 * c["thread_q"] + np.maximum(of_scores, of_sums) + staging + pointers + 20,
        "tiles_q": tiles_q,
        "blocks": w["B"] * heads * tiles_q * c["split_k"],
        "k_tiles": -(-w["K"] // c["block_k"]),
        "fma_per_load": (scores + sums) / np.maximum(2 * c["thread_q"] + thread_k + thread_d, 1),
        "d_used": d_used,
    }


def tile_floats(c: Columns) -> Any:
    """Floats of shared memory for the tiles of Q, K, V and P; 0 where nothing passes through it."""
    q_floats = np.where(
        c["transpose_q"] == 1, c["block_d"] * (c["block_q"] + c["pad"]), c["block_q"] * (c["block_d"] + c["pad"])
    )
    k_floats = np.where(
        c["transpose_k"] == 1, c["block_d"] * (c["block_k"] + c["pad"]), c["block_k"] * (c["block_d"] + c["pad"])
    )
    buffers = np.where(c["async_copy"] == 1, c["stages"], 1)
    warp_q = c["thread_q"] * (32 // c["lanes_k"])
    part_k = c["block_k"] // (c["warps_k"] * np.maximum(c["p_parts"], 1))
    p_floats = np.where(c["transpose_q"] == 1, part_k * (warp_q + c["pad"]), warp_q * (part_k + c["pad"]))
    warps = c["block_q"] // warp_q * c["warps_k"]
    floats = q_floats + buffers * (k_floats + c["block_k"] * c["block_d"]) + np.where(is_p_shared(c), warps * p_floats, 0)
    return np.where(is_shared(c), floats, 0)


def sum_floats(c: Columns) -> Any:
    """Floats that a block hands over when others share its rows: O, and two statistics per thread and row."""
    return c["block_q"] * (columns_held(c) + 2 * c["lanes_k"])


def columns_held(c: Columns) -> Any:
    """Columns that a block keeps of O: without tiles, as many as any head may have."""
    return np.where(c["shared"] == 1, c["block_d"], BLOCKS_D[-1])


def workspace_bytes(c: Columns, w: Workload) -> Any:
    """Bytes of the counters, one per rows' block, padded to 16, and of the partial results of each part of the keys."""
    tiles = derived(c, w)["blocks"] // c["split_k"]
    return np.where(c["split_k"] > 1, -(-4 * tiles // 16) * 16 + 4 * tiles * c["split_k"] * sum_floats(c), 0)


def _tiles_divide(c: Columns, w: Workload, limits: Limits) -> Any:
    rows = c["block_q"] % (c["thread_q"] * (32 // c["lanes_k"])) == 0
    return rows & (c["block_k"] % (c["warps_k"] * c["lanes_k"]) == 0) & (columns_held(c) % c["lanes_k"] == 0)


def _head_fits(c: Columns, w: Workload, limits: Limits) -> Any:
    least, following = [v for v in (*BLOCKS_D, BLOCKS_D[-1]) if v >= w["D"]][:2]
    return (c["shared"] == 0) | (c["block_d"] == least) | (c["block_d"] == following)


def _parts_divide(c: Columns, w: Workload, limits: Limits) -> Any:
    thread_k = derived(c, w)["thread_k"]
    step_k = np.where(c["transpose_k"] == 1, np.minimum(thread_k, 4), 1)
    parts = np.maximum(c["p_parts"], 1)
    part_k = c["block_k"] // (c["warps_k"] * parts)
    even = (thread_k % parts == 0) & (thread_k // parts % np.maximum(step_k, 1) == 0)
    return (c["shared"] == 0) | (c["p_parts"] == 0) | (even & (part_k % c["vector"] == 0))


def _copies_divide(c: Columns, w: Workload, limits: Limits) -> Any:
    threads = np.maximum(derived(c, w)["threads"], 1)
    row_vectors = c["block_d"] // c["width"]
    row_threads = np.minimum(row_vectors & -row_vectors, 32)  # the largest power of two that divides them
    return (c["shared"] == 0) | (c["block_k"] * row_threads % threads == 0)


def _copies_are_few(c: Columns, w: Workload, limits: Limits) -> Any:
    threads = np.maximum(derived(c, w)["threads"], 1)
    return (c["shared"] == 0) | (c["block_k"] * c["block_d"] // (c["width"] * threads) <= MOST_COPIES)


def _bodies_fit(c: Columns, w: Workload, limits: Limits) -> Any:
    d = derived(c, w)
    depth = np.where(is_shared(c), c["vector"], c["width"])
    steps = np.where(c["pragma_unroll"] == 1, c["unroll"], 1)
    scores = np.where(is_shared(c), np.minimum(steps, c["block_d"] // depth), steps) * depth * c["thread_q"] * d["thread_k"]
    parts = np.maximum(c["p_parts"], 1)
    through_memory = np.minimum(steps, c["block_k"] // (c["warps_k"] * parts * depth)) * depth * parts
    through_shuffles = np.minimum(steps, c["lanes_k"]) * d["thread_k"]
    sums = np.where(is_p_shared(c), through_memory, through_shuffles) * c["thread_q"] * d["thread_d"]
    return scores + sums <= MOST_FMAS


def _smem_fits(c: Columns, w: Workload, limits: Limits) -> Any:
    smem = derived(c, w)["smem_bytes"] + np.where(c["split_k"] > 1, 16, 0)  # and the flag of the last block
    dynamic = is_shared(c) & (c["dynamic_smem"] == 1)
    return smem <= np.where(dynamic, limits.smem_block_bytes, limits.smem_static_bytes)


def _registers_fit(c: Columns, w: Workload, limits: Limits) -> Any:
    d = derived(c, w)
    budget = np.minimum(limits.registers_per_sm // np.maximum(d["threads"] * c["min_blocks"], 1), limits.registers_per_thread)
    return d["registers"] <= budget


def _stages_fit(c: Columns, w: Workload, limits: Limits) -> Any:
    return (c["shared"] == 0) | (c["async_copy"] == 1) | (c["stages"] <= 2)


CONSTRAINTS = (
    Constraint("block_d must hold the head dimension: the least that does, or the next one", _head_fits),
    Constraint("D is not a multiple of width: rows are not aligned", lambda c, w, _: w["D"] % c["width"] == 0),
    Constraint("the warps' tiles (thread tile x lanes) must divide the block tile", _tiles_divide),
    Constraint(
        "more threads than a block may have: enlarge thread_q or shrink the block tile",
        lambda c, w, limits: derived(c, w)["threads"] <= limits.threads_per_block,
    ),
    Constraint("a block's threads must share the copies of K's and V's tiles evenly", _copies_divide),
    Constraint("a thread would copy more than 32 vectors of a tile: widen them or use more threads", _copies_are_few),
    Constraint("asynchronous copies have 1 to 3 stages, copies through registers 1 or 2", _stages_fit),
    Constraint(
        "an asynchronous copy moves whole vectors, so it transposes K only float by float (width=1)",
        lambda c, *_: (c["shared"] == 0) | (c["async_copy"] == 0) | (c["transpose_k"] == 0) | (c["width"] == 1),
    ),
    Constraint(
        "asynchronous copies need compute capability 8.0",
        lambda c, _, limits: (c["shared"] == 0) | (c["async_copy"] == 0) | (limits.compute_capability >= (8, 0)),
    ),
    Constraint("a part of P must hold whole steps of a thread's keys and whole vectors", _parts_divide),
    Constraint("the unrolled loops would not stay in the instruction cache: lower unroll, vector or p_parts", _bodies_fit),
    Constraint("shared memory does not fit: shrink the tiles or the stages, or set dynamic_smem=1", _smem_fits),
    Constraint("too few registers for scores and sums, they would spill: shrink the thread tile or min_blocks", _registers_fit),
    Constraint(
        "heads can only be packed where some share keys (H > KV)", lambda c, w, _: (c["pack_heads"] == 0) | (w["H"] > w["KV"])
    ),
    Constraint("split_k leaves some blocks without keys", lambda c, w, _: c["split_k"] <= derived(c, w)["k_tiles"]),
    Constraint(
        "the partial results would take more than 256 MiB: lower split_k", lambda c, w, _: workspace_bytes(c, w) <= MOST_WORKSPACE
    ),
    Constraint(
        "the grid is too large for this GPU",
        lambda c, w, limits: derived(c, w)["blocks"] // c["split_k"] <= limits.grid_x,
    ),
)
