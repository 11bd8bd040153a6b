"""How much of Q, K and V an attention config reads again, and what else its blocks do: estimates for the cost model."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from templates.knob import Columns
from templates.workload import Workload


def traffic(c: Columns, w: Workload, d: Mapping[str, Any], sm_count: int, l2_bytes: int) -> dict[str, Any]:
    """Bytes that pass L2 and DRAM, FLOPs per byte, work per step and per block; all positive, ints, floats or arrays.

    Every block of rows reads all keys it sees, so L2 delivers K and V once per block of rows. Blocks that run at once work on
    the same head or on different ones: what they read in a wave is what L2 has to hold.
    """
    packed = c["pack_heads"] == 1
    heads = np.where(packed, w["KV"], w["H"]) * w["B"]
    seen = seen_keys(w)
    kv_bytes = 8.0 * w["K"] * w["D"]  # of one head
    row_bytes = 8.0 * w["B"] * w["H"] * w["Q"] * w["D"]
    tiles = heads * d["tiles_q"]
    l2 = tiles * 8.0 * seen * w["D"] + row_bytes
    parts = np.where(c["split_k"] > 1, 2.0 * c["split_k"] * tiles * c["block_q"] * c["block_d"] * 4.0, 0.0)
    wave = np.minimum(sm_count, tiles)
    heads_at_once = np.where(c["heads_first"] == 1, np.minimum(wave, heads), np.maximum(wave / d["tiles_q"], 1.0))
    working_set = heads_at_once * kv_bytes
    misses = np.where(working_set > l2_bytes, np.minimum(d["tiles_q"], working_set / l2_bytes), 1.0)
    flops = 4.0 * w["B"] * w["H"] * w["Q"] * seen * w["D"]
    threads = np.maximum(d["threads"], 1)
    depth = np.where(c["shared"] == 1, c["vector"], c["width"])
    return {
        "l2_bytes": l2,
        "dram_bytes": row_bytes + kv_bytes * w["B"] * w["KV"] * misses + parts,
        "flops_l2_byte": flops / l2,
        "working_set_l2": working_set / l2_bytes,
        "flops_done": flops / d["d_used"] * tiles * c["block_q"] / (w["B"] * w["H"] * w["Q"]),
        "copies": c["block_k"] * c["block_d"] / (c["width"] * threads),
        "scores": np.maximum(c["thread_q"] * d["thread_k"], 1),
        "sums": np.maximum(c["thread_q"] * d["thread_d"], 1),
        "tiles_part": np.maximum(d["k_tiles"] / c["split_k"], 1.0),
        "warps": threads / 32.0,
        "unrolled": depth * np.where(c["pragma_unroll"] == 1, c["unroll"], 1) * c["thread_q"] * np.maximum(d["thread_k"], 1),
        "seen_share": seen / w["K"],
    }


def seen_keys(w: Workload) -> float:
    """Keys that a query sees on average: all of them, or with a causal mask those up to its own index."""
    if not w["causal"]:
        return float(w["K"])
    inside = min(w["Q"], w["K"])
    return (inside * (inside + 1) / 2 + (w["Q"] - inside) * w["K"]) / w["Q"]
