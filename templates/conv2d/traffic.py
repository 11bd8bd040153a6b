"""How much of x, the filters and y a conv2d config moves, and from where: estimates for the cost model."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from templates.conv2d.geometry import channels, depth, filters, pixels
from templates.conv2d.knobs import tiled
from templates.knob import Columns
from templates.workload import Workload


def traffic(c: Columns, w: Workload, d: Mapping[str, Any], sm_count: int, l2_bytes: int) -> dict[str, Any]:
    """Bytes that pass L2 and DRAM, FLOPs per byte of it, copies and code per thread; all positive, ints, floats or arrays.

    L2 delivers one tile of filters and of x to every block; a tile's x is gathered once per tap. What a wave of blocks reads
    together comes from DRAM once: with the filters first, blocks that share pixels run side by side.
    """
    terms = w["K"] // w["groups"] * depth(w)
    shared, groups = tiled(c), w["groups"]
    tiles = d["blocks"] / c["split"]
    columns_block = np.where(shared, c["block_p"], c["block_p"] * c["thread_p"])
    filters_block = np.where(shared, c["block_k"], c["thread_k"] * d["lanes_k"])
    l2 = 4.0 * tiles * depth(w) * (filters_block + columns_block)
    writes = 4.0 * w["K"] * pixels(w) * np.where(c["split"] > 1, 2.0 * c["split"] + 1.0, 1.0)
    x_bytes, f_bytes = 4.0 * w["N"] * w["C"] * w["H"] * w["W"], 4.0 * groups * terms
    wave = np.minimum(sm_count, tiles)
    across = np.where(c["pixels_first"] == 1, np.maximum(1.0, wave / d["tiles_p"]), np.minimum(wave, d["tiles_k"]))
    passes = np.where(x_bytes > 0.5 * l2_bytes, np.ceil(d["tiles_k"] / across), 1.0)
    threads = np.maximum(d["threads"], 1)
    return {
        "l2_bytes": l2,
        "dram_bytes": passes * x_bytes + f_bytes + writes,
        "flops_l2_byte": 2.0 * groups * terms * pixels(w) / l2,
        "x_l2": x_bytes / l2_bytes,
        "copies_f": np.where(shared, c["block_k"] * c["block_c"] / (c["width_f"] * threads), c["thread_k"]),
        "copies_x": np.where(shared, c["block_p"] * c["block_c"] / (c["width_x"] * threads), c["thread_p"]),
        "filter_use": filters(w) / np.where(shared, -(-filters(w) // c["block_k"]) * c["block_k"], filters(w)),
        "depth_use": channels(w) / np.where(shared, -(-channels(w) // c["block_c"]) * c["block_c"], channels(w)),
        "accumulators": c["thread_k"] * c["thread_p"],
        "aspect": filters_block / columns_block,
        "steps_part": np.maximum(d["depth_tiles"] / c["split"], 1.0),
        "unrolled": c["thread_k"] * c["thread_p"] * np.where(c["pragma_unroll"] == 1, c["unroll"], 1),
    }
