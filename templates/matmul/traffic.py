"""How much of A and B a matmul config reads again, and from where: estimates for the cost model."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from templates.knob import Columns
from templates.workload import Workload


def traffic(c: Columns, w: Workload, d: Mapping[str, Any], sm_count: int, l2_bytes: int) -> dict[str, Any]:
    """Bytes that pass L2 and DRAM, FLOPs per byte of it, copies and code per thread; all positive, ints, floats or arrays.

    A wave of blocks covers a patch of tiles; what it reads is its rows of A and columns of B. DRAM delivers each patch's
    rows and columns once, L2 one tile of A and B to every block. The order in which tiles are walked decides the reuse.
    """
    m, n, k = w["M"], w["N"], w["K"]
    depth = k / c["split_k"]
    l2 = 4.0 * d["blocks"] * depth * (c["block_m"] + c["block_n"])
    writes = 4.0 * m * n * np.where(c["split_k"] > 1, 2.0 * c["split_k"] + 1.0, 1.0)
    patch = np.minimum(sm_count, d["tiles_m"] * d["tiles_n"])
    across, down = (np.where(c["column_order"] == 1, d[a], d[b]) for a, b in (("tiles_m", "tiles_n"), ("tiles_n", "tiles_m")))
    strip = np.minimum(np.where(c["group"] > 1, c["group"], 1), down)
    along = np.where(c["group"] > 1, np.minimum(-(-patch // strip), across), np.minimum(patch, across))
    other = np.where(c["group"] > 1, strip, np.minimum(-(-patch // along), down))
    rows = np.where(c["column_order"] == 1, along, other) * c["block_m"]
    cols = np.where(c["column_order"] == 1, other, along) * c["block_n"]
    working_set = 4.0 * depth * (rows + cols)
    patches = d["tiles_m"] * d["tiles_n"] / np.maximum(along * other, 1)
    threads = np.maximum(d["threads"], 1)
    return {
        "l2_bytes": l2,
        "dram_bytes": np.maximum(patches * working_set * c["split_k"], 4.0 * (m * k + k * n)) + writes,
        "flops_l2_byte": 2.0 * m * n * k / l2,
        "working_set_l2": working_set / l2_bytes,
        "copies_a": c["block_m"] * c["block_k"] / (c["width_a"] * threads),
        "copies_b": c["block_n"] * c["block_k"] / (c["width_b"] * threads),
        "accumulators": c["thread_m"] * c["thread_n"],
        "aspect": c["block_m"] / c["block_n"],
        "k_tiles_part": np.maximum(d["k_tiles"] / c["split_k"], 1.0),
        "unrolled": c["thread_m"] * c["thread_n"] * np.where(c["pragma_unroll"] == 1, c["unroll"], 1),
    }
