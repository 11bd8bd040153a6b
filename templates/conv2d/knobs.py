"""The choices that conv2d's kernel leaves open."""

from typing import Any

from templates.knob import Columns, Config, Knob


def tiled(c: Columns) -> Any:
    """Whether the sum runs through shared memory as a matrix product."""
    return c["shared"] == 1


def direct(c: Columns) -> Any:
    """Whether each thread reads global memory for itself."""
    return c["shared"] == 0


def _fixed_filter(c: Columns) -> Any:
    return direct(c) & (c["filter_size"] > 0)


def _for_one_layout(c: Columns) -> Any:
    return tiled(c) | _fixed_filter(c)


def _depthwise(c: Columns) -> Any:
    return c["depthwise"] == 1


def _filters_in_vectors(c: Columns) -> Any:
    """An asynchronous copy transposes float by float; of one tap, KCRS filters have no two values side by side."""
    return tiled(c) & (c["async_copy"] == 0) & ((c["channels_last"] == 1) | (c["walk"] == 0) | (c["walk"] == 3))


def _x_in_vectors(c: Columns) -> Any:
    """Along the channels of NHWC unless copied asynchronously, along the pixels of a matrix, over a thread's own channels."""
    last = (c["channels_last"] == 1) & (c["async_copy"] == 0)
    own = _depthwise(c) & (c["channels_last"] == 1)
    return own | (tiled(c) & (last | ((c["channels_last"] == 0) & (c["walk"] == 3))))


def _has_loop(c: Columns) -> Any:
    return tiled(c) | (c["depthwise"] == 0)


KNOBS = (
    Knob("shared", "memory", (0, 1), 1, "a matrix product through tiles in shared memory; 0: directly from global memory"),
    Knob("filter_size", "layout", (0, 3, 5, 7), 0, "direct: R = S compiled in, each row of x is read once", direct),
    Knob("filter_step", "layout", (1, 2), 1, "the stride compiled in with it", _fixed_filter),
    Knob("depthwise", "layout", (0, 1), 0, "direct: each filter has a channel of its own, a thread takes several", _fixed_filter),
    Knob("channels_last", "layout", (0, 1), 0, "compiled for NHWC: lanes and vectors along the channels", _for_one_layout),
    Knob(
        "walk",
        "memory",
        (0, 1, 2, 3),
        0,
        "order of the sum: as the filters lie in memory, by a table of offsets; a tap at a time, taps or channels innermost; 1x1",
        tiled,
    ),
    Knob("async_copy", "memory", (0, 1), 0, "copy global to shared memory without registers (cp.async)", tiled),
    Knob("block_k", "layout", (8, 16, 32, 64, 128, 256), 128, "filters per thread block: reuse of x against parallelism", tiled),
    Knob("block_p", "layout", (8, 16, 32, 64, 128, 256), 128, "output pixels per thread block; direct: columns of them"),
    Knob("block_c", "memory", (4, 8, 16, 32), 8, "depth of the shared tiles: fewer barriers against more memory", tiled),
    Knob("thread_k", "layout", (1, 2, 4, 8, 16), 8, "filters per thread: FMAs per load of x"),
    Knob("thread_p", "layout", (1, 2, 4, 8, 16), 8, "output pixels per thread: FMAs per load of a filter; direct: a column"),
    Knob("lanes_p", "layout", (1, 2, 4, 8, 16, 32), 8, "lanes of a warp along the pixels, the others along the filters"),
    Knob("width_f", "layout", (1, 2, 4), 1, "floats per access to the filters (float, float2, float4)", _filters_in_vectors),
    Knob("width_x", "layout", (1, 2, 4), 1, "floats per access to x", _x_in_vectors),
    Knob("width_y", "layout", (1, 2, 4), 1, "floats per access to y"),
    Knob("pixels_first", "layout", (0, 1), 0, "walk the tiles along the pixels instead of along the filters: what stays in L2"),
    Knob("skew", "memory", (0, 4), 4, "unused floats at the end of a transposed tile's rows: bank conflicts", tiled),
    Knob("read_only", "memory", (0, 1), 0, "load through the read-only cache path (__ldg)", lambda c: c["async_copy"] == 0),
    Knob("dynamic_smem", "memory", (0, 1), 0, "shared memory sized at launch: needed above 48 KiB", tiled),
    Knob("stages", "schedule", (1, 2, 3, 4), 2, "shared tiles in flight: software pipelining of the outer loop", tiled),
    Knob("fragment_buffers", "schedule", (1, 2), 1, "2: read the next row of the tiles while computing this one", tiled),
    Knob("pragma_unroll", "schedule", (0, 1), 1, "say how far to unroll the loop over the depth; direct: channels", _has_loop),
    Knob("unroll", "schedule", (1, 2, 4, 8, 16), 8, "how far", lambda c: _has_loop(c) & (c["pragma_unroll"] == 1)),
    Knob("fma_order", "schedule", (0, 1, 2), 0, "order of a thread's FMAs: operand reuse, register banks", tiled),
    Knob("split", "schedule", (1, 2, 4, 8, 16), 1, "blocks that share one tile, each a part of the sum: small grids", tiled),
    Knob("min_blocks", "schedule", (1, 2, 3, 4), 1, "resident blocks per SM the compiler must leave registers for"),
)

NAIVE: Config = {
    **{knob.name: knob.default for knob in KNOBS},
    "shared": 0, "block_p": 64, "thread_k": 1, "thread_p": 1, "lanes_p": 8, "pragma_unroll": 0,
}  # fmt: skip
"""One thread per element of y, straight from global memory; a warp has 4 filters x 8 pixels, which suits both layouts."""
