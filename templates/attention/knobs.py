"""The knobs of fp32 attention."""

from typing import Any

from templates.knob import Columns, Knob


def is_shared(c: Columns) -> Any:
    """Tiles of Q, K and V pass through shared memory."""
    return c["shared"] == 1


def is_p_shared(c: Columns) -> Any:
    """So do the weights."""
    return (c["shared"] == 1) & (c["p_parts"] > 0)


BLOCKS_D = (32, 40, 64, 80, 96, 128, 160, 192, 256)

KNOBS = (
    Knob("shared", "memory", (0, 1), 1, "stage tiles of Q, K and V in shared memory"),
    Knob("block_q", "layout", (4, 8, 16, 32, 64, 128, 256), 128, "rows of O per thread block: reuse of K and V"),
    Knob("block_k", "layout", (16, 32, 64, 128), 64, "keys per tile: fewer barriers and rescalings against memory"),
    Knob(
        "block_d",
        "layout",
        BLOCKS_D,
        64,
        "columns of a tile, the head dimension rounded up: waste against access width",
        is_shared,
    ),
    Knob("thread_q", "layout", (1, 2, 4, 8, 16), 8, "rows per thread: FMAs per shared-memory load"),
    Knob("lanes_k", "layout", (4, 8, 16, 32), 8, "lanes of a warp along keys and columns: shape of the thread tiles"),
    Knob("warps_k", "layout", (1, 2, 4), 1, "warps that share the keys of a tile: many warps for few rows"),
    Knob("width", "layout", (1, 2, 4), 4, "floats per global access (float, float2, float4)"),
    Knob("pack_heads", "layout", (0, 1), 0, "rows of all heads that share keys make up one matrix: grouped-query decoding"),
    Knob("heads_first", "layout", (0, 1), 0, "neighbouring blocks work on different heads: working set in L2, even load"),
    Knob("reverse", "layout", (0, 1), 0, "last rows first: with a causal mask they take longest"),
    Knob("transpose_q", "memory", (0, 1), 0, "keep Q's tile dim-major and P's key-major: vector reads along the rows", is_shared),
    Knob("transpose_k", "memory", (0, 1), 0, "keep K's tile dim-major: vector reads along the keys", is_shared),
    Knob("pad", "memory", (0, 4), 4, "unused floats at the end of each row of these tiles: bank conflicts", is_shared),
    Knob("p_parts", "memory", (0, 1, 2, 4), 1, "parts in which the weights P pass through shared memory; 0: shuffles", is_shared),
    Knob("async_copy", "memory", (0, 1), 1, "copy global to shared memory without registers (cp.async)", is_shared),
    Knob(
        "read_only",
        "memory",
        (0, 1),
        0,
        "load through the read-only cache path (__ldg)",
        lambda c: (c["shared"] == 0) | (c["async_copy"] == 0),
    ),
    Knob("dynamic_smem", "memory", (0, 1), 1, "shared memory sized at launch: needed above 48 KiB", is_shared),
    Knob("stages", "schedule", (1, 2, 3), 1, "tiles in flight: software pipelining of the loop over the keys", is_shared),
    Knob(
        "vector",
        "schedule",
        (1, 2, 4),
        4,
        "values of the summed index per read of a tile that is not transposed",
        lambda c: is_shared(c) & ((c["transpose_q"] == 0) | (c["transpose_k"] == 0)),
    ),
    Knob("pragma_unroll", "schedule", (0, 1), 1, "tell the compiler how far to unroll the loops over the summed index"),
    Knob("unroll", "schedule", (1, 2, 4, 8), 2, "how far", lambda c: c["pragma_unroll"] == 1),
    Knob("fma_order", "schedule", (0, 1, 2), 0, "order of a thread's FMAs: rows, columns, columns there and back"),
    Knob("skip_rescale", "schedule", (0, 1), 0, "rescale O only where a row's largest score has grown"),
    Knob("split_k", "schedule", (1, 2, 4, 8, 16), 1, "blocks that share the keys of their rows: small grids"),
    Knob("min_blocks", "schedule", (1, 2, 3), 1, "resident blocks per SM the compiler must leave registers for"),
)
