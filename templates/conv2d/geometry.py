"""What follows from a convolution's shape and a config: sizes, tiles, launch."""

from typing import Any

import numpy as np

from templates.conv2d.knobs import tiled
from templates.knob import Columns, Config
from templates.template import Launch
from templates.workload import Workload

ROW_BYTES = 8
"""A row of the table that tells where a tile's rows lie: an offset and a tap's bits."""


def out_size(w: Workload) -> tuple[int, int]:
    """(OH, OW), 0 or less where the filter does not fit the padded image."""
    reach = {"H": w["dilation"] * (w["R"] - 1), "W": w["dilation"] * (w["S"] - 1)}
    high, wide = ((w[dim] + 2 * w["pad"] - reach[dim] - 1) // w["stride"] + 1 for dim in ("H", "W"))
    return high, wide


def filters(w: Workload) -> int:
    """Filters of one group."""
    return w["K"] // w["groups"]


def channels(w: Workload) -> int:
    """Channels of one group."""
    return w["C"] // w["groups"]


def depth(w: Workload) -> int:
    """Terms of one output element's sum."""
    return channels(w) * w["R"] * w["S"]


def pixels(w: Workload) -> int:
    """Output pixels of all images."""
    high, wide = out_size(w)
    return w["N"] * high * wide


def smem_bytes(c: Columns) -> Any:
    """Shared memory per block: the tiles, and the table of rows where the walk needs one."""
    x_row = c["block_p"] + np.where(c["channels_last"] == 1, c["skew"], 0)
    tiles = 4 * c["stages"] * c["block_c"] * (c["block_k"] + c["skew"] + x_row)
    return np.where(tiled(c), tiles + np.where(c["walk"] == 0, 2 * ROW_BYTES * c["block_c"], 0), 0)


def registers(c: Columns, threads: Any) -> Any:
    """A floor per thread: accumulators, operands, staging, where the pixels begin, addresses."""
    f_floats, x_floats = (c["block_c"] * c[block] // np.maximum(threads, 1) for block in ("block_k", "block_p"))
    staging = np.where(c["async_copy"] == 0, f_floats + x_floats, 0)
    starts = np.where(c["channels_last"] == 1, x_floats // c["width_x"], np.maximum(c["block_p"] // c["width_x"] // threads, 1))
    product = c["fragment_buffers"] * (c["thread_k"] + c["thread_p"]) + staging + np.where(c["walk"] == 3, 1, 2) * starts
    row = c["filter_size"] * np.where(c["depthwise"] == 1, c["thread_k"], 1)
    direct = np.maximum(c["thread_k"] * c["filter_size"] ** 2, c["thread_k"]) + np.maximum(row, 1)
    return c["thread_k"] * c["thread_p"] + np.where(tiled(c), product, direct) + 24


def derived(c: Columns, w: Workload) -> dict[str, Any]:
    """Quantities that follow from knobs and shape, used by constraints, launch and features; ints or int arrays.

    threads: per block. lanes_k, warps_p: the warp's shape and their arrangement. smem_bytes: per block. registers: a floor per
    thread. tiles_k, tiles_p, blocks: grid. depth_tiles: tiles of depth block_c in the sum (direct: its channels).
    fma_per_load: FMAs per operand read. work: multiplications with those on padding and tails, per useful one.
    """
    shared, high, wide = tiled(c), *out_size(w)
    lanes_k = 32 // c["lanes_p"]
    threads = np.where(
        shared, (c["block_k"] // c["thread_k"]) * (c["block_p"] // c["thread_p"]), c["block_p"] // c["lanes_p"] * 32
    )
    columns = w["N"] * -(-high // c["thread_p"]) * wide
    filters_block = np.where(shared, c["block_k"], c["thread_k"] * lanes_k)
    tiles_k = -(-np.where(shared, filters(w), w["K"]) // filters_block)
    tiles_p = -(-np.where(shared, pixels(w), columns) // c["block_p"])
    blocks = tiles_k * tiles_p * np.where(shared, w["groups"], 1)
    by_tap = -(-channels(w) // c["block_c"]) * (w["R"] * w["S"])
    straight = -(-depth(w) // c["block_c"])
    depth_tiles = np.where(shared, np.where((c["walk"] == 1) | (c["walk"] == 2), by_tap, straight), channels(w))
    terms = np.where(shared, depth_tiles * c["block_c"], depth(w))
    pixels_block = c["block_p"] * np.where(shared, 1, c["thread_p"])
    return {
        "threads": threads,
        "lanes_k": lanes_k,
        "warps_p": np.where(shared, c["block_p"] // (c["thread_p"] * c["lanes_p"]), c["block_p"] // c["lanes_p"]),
        "smem_bytes": smem_bytes(c),
        "registers": registers(c, np.maximum(threads, 1)),
        "tiles_k": tiles_k,
        "tiles_p": tiles_p,
        "blocks": blocks * c["split"],
        "depth_tiles": depth_tiles,
        "fma_per_load": c["thread_k"] * c["thread_p"] / (c["thread_k"] + c["thread_p"]),
        "work": blocks * filters_block * pixels_block * terms / (w["K"] * pixels(w) * depth(w)),
    }


def launch(config: Config, w: Workload) -> Launch:
    """One block per tile in x, groups in y, parts of the sum in z. Workspace: a counter per tile, then the parts' tiles."""
    d = {name: int(value) for name, value in derived(config, w).items()}
    groups = w["groups"] if config["shared"] else 1
    tiles = d["tiles_k"] * d["tiles_p"]
    partial = 4 * tiles * groups * config["split"] * config["block_k"] * config["block_p"]
    return Launch(
        grid=(tiles, groups, config["split"]),
        block=(d["threads"], 1, 1),
        dynamic_smem_bytes=d["smem_bytes"] if config["dynamic_smem"] else 0,
        workspace_bytes=counter_bytes(tiles * groups) + partial if config["split"] > 1 else 0,
    )


def counter_bytes(tiles: int) -> int:
    """Bytes of the per-tile counters, padded so that the partial tiles behind them are 16-byte aligned."""
    return -(-4 * tiles // 16) * 16
