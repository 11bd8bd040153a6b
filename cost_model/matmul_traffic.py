"""How much of A and B a matmul config reads again, and from where."""

from typing import Any

import numpy as np

from datasets.device import Device
from templates.knob import Columns
from templates.workload import Workload


def traffic(workload: Workload, c: Columns, d: dict[str, Any], device: Device) -> dict[str, Any]:
    """Bytes that pass L2 and DRAM, and FLOPs per byte of it, as log2; the order in which tiles are walked decides the reuse.

    A wave of blocks covers a patch of tiles; what it reads is its rows of A and columns of B. DRAM delivers each patch's
    rows and columns once, L2 one tile of A and B to every block.
    """
    m, n, k = workload["M"], workload["N"], workload["K"]
    depth = k / c["split_k"]
    l2 = 4.0 * d["blocks"] * depth * (c["block_m"] + c["block_n"])
    writes = 4.0 * m * n * np.where(c["split_k"] > 1, 2.0 * c["split_k"] + 1.0, 1.0)
    patch = np.minimum(device.sm_count, d["tiles_m"] * d["tiles_n"])
    across, down = (np.where(c["column_order"] == 1, d[a], d[b]) for a, b in (("tiles_m", "tiles_n"), ("tiles_n", "tiles_m")))
    strip = np.minimum(np.where(c["group"] > 1, c["group"], 1), down)
    along = np.where(c["group"] > 1, np.minimum(-(-patch // strip), across), np.minimum(patch, across))
    other = np.where(c["group"] > 1, strip, np.minimum(-(-patch // along), down))
    rows = np.where(c["column_order"] == 1, along, other) * c["block_m"]
    cols = np.where(c["column_order"] == 1, other, along) * c["block_n"]
    working_set = 4.0 * depth * (rows + cols)
    patches = d["tiles_m"] * d["tiles_n"] / np.maximum(along * other, 1)
    dram = np.maximum(patches * working_set * c["split_k"], 4.0 * (m * k + k * n)) + writes
    flops = 2.0 * m * n * k
    return {
        "log_l2_bytes": np.log2(l2),
        "log_dram_bytes": np.log2(dram),
        "log_flops_l2_byte": np.log2(flops / l2),
        "log_dram_us": np.log2(dram / (device.memory_bandwidth_gbs * 1e3)),
        "working_set_l2": np.log2(working_set / device.l2_bytes),
        "log_copies_a": np.log2(c["block_m"] * c["block_k"] / (c["width_a"] * np.maximum(d["threads"], 1))),
        "log_copies_b": np.log2(c["block_n"] * c["block_k"] / (c["width_b"] * np.maximum(d["threads"], 1))),
        "log_accumulators": np.log2(c["thread_m"] * c["thread_n"]),
        "aspect": np.log2(c["block_m"] / c["block_n"]),
        "log_k_tiles_part": np.log2(np.maximum(d["k_tiles"] / c["split_k"], 1.0)),
        "unrolled": np.log2(c["thread_m"] * c["thread_n"] * np.where(c["pragma_unroll"] == 1, c["unroll"], 1)),
    }
