"""Which configs are legal on which convolutions."""

from typing import Any

import numpy as np

from templates.conv2d.geometry import channels, depth, derived, filters, out_size
from templates.conv2d.knobs import direct, tiled
from templates.knob import Columns
from templates.template import Constraint, Limits
from templates.workload import Workload

MOST_FMAS = 4096  # in an unrolled loop body: 16 bytes each, so half of a 128 KiB instruction cache
MOST_DIRECT_FMAS = 512  # straight-line code with its loads, which ptxas takes seconds to schedule


def _warps_tile_block(c: Columns, w: Workload, limits: Limits) -> Any:
    lanes_k = 32 // c["lanes_p"]
    whole = (c["block_k"] % (c["thread_k"] * lanes_k) == 0) & (c["block_p"] % (c["thread_p"] * c["lanes_p"]) == 0)
    return np.where(tiled(c), whole, c["block_p"] % c["lanes_p"] == 0)


def _threads_fit(c: Columns, w: Workload, limits: Limits) -> Any:
    return derived(c, w)["threads"] <= limits.threads_per_block


def _copies_divide(c: Columns, w: Workload, limits: Limits) -> Any:
    threads = np.maximum(derived(c, w)["threads"], 1)
    f_vectors, x_vectors = (c["block_c"] * c[b] // c[v] for b, v in (("block_k", "width_f"), ("block_p", "width_x")))
    whole = (f_vectors % threads == 0) & (x_vectors % threads == 0) & (c["block_c"] % c["width_f"] == 0)
    return direct(c) | whole


def _copies_are_few(c: Columns, w: Workload, limits: Limits) -> Any:
    threads = np.maximum(derived(c, w)["threads"], 1)
    f_copies, x_copies = (c["block_c"] * c[b] // (c[v] * threads) for b, v in (("block_k", "width_f"), ("block_p", "width_x")))
    return direct(c) | ((f_copies <= 16) & (x_copies <= 16))


def _loop_body_fits(c: Columns, w: Workload, limits: Limits) -> Any:
    taps = np.where(tiled(c), 1, np.maximum(c["filter_size"] ** 2, 1))
    times = np.where((c["pragma_unroll"] == 1) & (c["depthwise"] == 0), c["unroll"], 1)
    fmas = times * taps * c["thread_k"] * c["thread_p"]
    straight = (fmas <= MOST_DIRECT_FMAS) & ((c["filter_size"] > 0) | (times <= 4))  # copies of loops gain nothing
    return np.where(tiled(c), fmas <= MOST_FMAS, straight)


def _unroll_has_trips(c: Columns, w: Workload, limits: Limits) -> Any:
    trips = np.where(tiled(c), c["block_c"] - (c["fragment_buffers"] == 2), channels(w))
    free = (c["pragma_unroll"] == 0) | (c["depthwise"] == 1)
    return free | (c["unroll"] < 2 * trips)


def _smem_fits(c: Columns, w: Workload, limits: Limits) -> Any:
    smem = derived(c, w)["smem_bytes"] + np.where(c["split"] > 1, 16, 0)  # and the flag of the last block
    return smem <= np.where(c["dynamic_smem"] == 1, limits.smem_block_bytes, limits.smem_static_bytes)


def _registers_fit(c: Columns, w: Workload, limits: Limits) -> Any:
    d = derived(c, w)
    budget = np.minimum(limits.registers_per_sm // np.maximum(d["threads"] * c["min_blocks"], 1), limits.registers_per_thread)
    return d["registers"] <= budget


def _grid_fits(c: Columns, w: Workload, limits: Limits) -> Any:
    d = derived(c, w)
    return (d["tiles_k"] * d["tiles_p"] <= limits.grid_x) & (direct(c) | (w["groups"] <= limits.grid_yz))


def _walk_fits(c: Columns, w: Workload, limits: Limits) -> Any:
    plain = w["R"] == w["S"] == w["stride"] == 1 and w["pad"] == 0
    return (c["walk"] != 3) | plain


def _taps_have_bits(c: Columns, w: Workload, limits: Limits) -> Any:
    return direct(c) | (c["walk"] == 3) | (w["pad"] == 0 or w["R"] + w["S"] <= 31)


def _filters_aligned(c: Columns, w: Workload, limits: Limits) -> Any:
    by_tap = (c["walk"] == 1) | (c["walk"] == 2)
    return np.where(by_tap, channels(w), depth(w)) % c["width_f"] == 0


def _x_aligned(c: Columns, w: Workload, limits: Limits) -> Any:
    nhwc = (channels(w) % c["width_x"] == 0) & (c["block_c"] % c["width_x"] == 0)
    nchw = w["H"] * w["W"] % c["width_x"] == 0
    direct = (w["nhwc"] == 1) & (c["thread_k"] % c["width_x"] == 0)
    return (c["width_x"] == 1) | np.where(tiled(c), np.where(c["channels_last"] == 1, nhwc, nchw), direct)


def _y_aligned(c: Columns, w: Workload, limits: Limits) -> Any:
    high, wide = out_size(w)
    nhwc = (filters(w) % c["width_y"] == 0) & (c["width_y"] <= c["thread_k"])
    nchw = (high * wide % c["width_y"] == 0) & (c["width_y"] <= c["thread_p"])
    direct = (w["nhwc"] == 1) & (c["thread_k"] % c["width_y"] == 0)
    return (c["width_y"] == 1) | np.where(tiled(c), np.where(c["channels_last"] == 1, nhwc, nchw), direct)


def _threads_share_filters(c: Columns, w: Workload, limits: Limits) -> Any:
    own = np.where(c["depthwise"] == 1, w["K"] % c["thread_k"] == 0, filters(w) % c["thread_k"] == 0)
    return tiled(c) | own


def _filter_is_fixed(c: Columns, w: Workload, limits: Limits) -> Any:
    same = (w["R"] == c["filter_size"]) & (w["S"] == c["filter_size"]) & (w["stride"] == c["filter_step"])
    return (c["filter_size"] == 0) | (same & (w["dilation"] == 1))


CONSTRAINTS = (  # what refuses most, and costs least to ask, first
    Constraint(
        "the kernel is compiled for the other layout: set channels_last to nhwc",
        lambda c, w, _: (direct(c) & (c["filter_size"] == 0)) | (c["channels_last"] == w["nhwc"]),
    ),
    Constraint("walk=3 needs 1x1 filters, stride 1 and no padding", _walk_fits),
    Constraint("the filter, stride or dilation is not the one compiled in: set filter_size=0", _filter_is_fixed),
    Constraint(
        "depthwise=1 needs one channel and one filter per group",
        lambda c, w, _: (c["depthwise"] == 0) | (channels(w) == filters(w) == 1),
    ),
    Constraint(
        "asynchronous copies need 2 or more stages, copies through registers have 1 or 2",
        lambda c, *_: direct(c) | np.where(c["async_copy"] == 1, c["stages"] >= 2, c["stages"] <= 2),
    ),
    Constraint("the warps' tiles (thread tile x lanes) must divide the block tile", _warps_tile_block),
    Constraint(
        "half of a tile's filters would not exist: shrink block_k",
        lambda c, w, _: direct(c) | (c["block_k"] < 2 * filters(w)),
    ),
    Constraint("x is not aligned to width_x along what is copied", _x_aligned),
    Constraint("y is not aligned to width_y, or a thread has fewer elements side by side", _y_aligned),
    Constraint("a filter's values along the depth are not aligned to width_f", _filters_aligned),
    Constraint("a thread's filters must belong to one group: thread_k must divide a group's filters", _threads_share_filters),
    Constraint("the loop has fewer trips than unroll", _unroll_has_trips),
    Constraint("the unrolled loop would not stay in the instruction cache: lower unroll or the thread tile", _loop_body_fits),
    Constraint("more threads than a block may have: enlarge the thread tile or shrink the block tile", _threads_fit),
    Constraint("a block's threads must share the copies of both tiles evenly", _copies_divide),
    Constraint("a thread would copy more than 16 vectors of a tile: widen them or use more threads", _copies_are_few),
    Constraint(
        "asynchronous copies need compute capability 8.0",
        lambda c, _, limits: (c["async_copy"] == 0) | (limits.compute_capability >= (8, 0)),
    ),
    Constraint("padded filters of more than 31 rows and columns need the direct path", _taps_have_bits),
    Constraint("shared memory does not fit: shrink the tile or the stages, or set dynamic_smem=1", _smem_fits),
    Constraint("too few registers for the accumulators, they would spill: shrink the thread tile or min_blocks", _registers_fit),
    Constraint("the grid is too large for this GPU", _grid_fits),
    Constraint("split leaves some blocks without work", lambda c, w, _: c["split"] <= derived(c, w)["depth_tiles"]),
)
