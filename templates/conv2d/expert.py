"""The config an engineer would write down for a convolution without searching."""

from typing import Any

from templates.conv2d.geometry import channels, depth, filters, out_size, pixels
from templates.conv2d.knobs import NAIVE
from templates.workload import Workload


def expert(w: Workload) -> dict[str, int]:
    """Few filters per group: directly, several outputs per thread. Otherwise a matrix product: 8x8 outputs per thread,
    double-buffered through registers, the sum split where the tiles do not fill a large GPU.
    """
    few = filters(w) <= 4 or depth(w) < 8 or (w["pad"] > 0 and w["R"] + w["S"] > 31)
    return _direct(w) if few else _product(w)


def _widest(*extents: int) -> int:
    return next(width for width in (4, 2, 1) if all(extent % width == 0 for extent in extents))


def _direct(w: Workload) -> dict[str, int]:
    compiled = w["R"] == w["S"] and w["R"] in (3, 5) and w["stride"] in (1, 2) and w["dilation"] == 1
    depthwise = compiled and channels(w) == filters(w) == 1
    thread_k = _widest(w["K"]) if depthwise and w["nhwc"] else 1 if depthwise else _widest(filters(w))
    vector = thread_k if w["nhwc"] else 1
    filter_fixed = {"filter_size": w["R"], "filter_step": w["stride"], "channels_last": w["nhwc"]}
    fixed = filter_fixed | {"depthwise": int(depthwise)} if compiled else {}
    lanes = {"lanes_p": 1, "block_p": 8} if w["nhwc"] and w["K"] // thread_k >= 32 else {"lanes_p": 32, "block_p": 128}
    tile = {"thread_k": thread_k, "thread_p": 4 if vector > 1 else 8, "width_x": vector if depthwise else 1, "width_y": vector,
            "pragma_unroll": int(depthwise)}  # fmt: skip
    return {**NAIVE, **fixed, **lanes, **tile}


def _product(w: Workload) -> dict[str, int]:
    tile = _tile(w)
    threads = tile["block_k"] // tile["thread_k"] * (tile["block_p"] // tile["thread_p"])
    plain = w["R"] == w["S"] == w["stride"] == 1 and w["pad"] == 0
    walk = 3 if plain else 1 if w["nhwc"] and channels(w) >= 8 else 0
    along = channels(w) if walk == 1 else depth(w)
    high, wide = out_size(w)
    most_f, most_x = (tile["block_c"] * tile[block] // threads for block in ("block_k", "block_p"))
    x_extent = channels(w) if w["nhwc"] else w["H"] * w["W"] if walk == 3 else 1
    y_extent = (filters(w), tile["thread_k"]) if w["nhwc"] else (high * wide, tile["thread_p"])
    widths = {"width_f": _widest(along, most_f), "width_x": _widest(x_extent, most_x), "width_y": _widest(*y_extent)}
    rest: dict[str, Any] = {"shared": 1, "channels_last": w["nhwc"], "walk": walk, "fragment_buffers": 2, "pragma_unroll": 1}
    return {**NAIVE, **tile, **widths, **rest, "split": _split(w, tile, walk)}


def _tile(w: Workload) -> dict[str, int]:
    """Tiles as large as the filters fill; smaller ones where there would be too few for 132 SMs."""
    block_k = next((size for size in (8, 16, 32, 64) if filters(w) <= size), 128)
    large = {"block_k": block_k, "block_p": 128, "thread_k": min(8, block_k // 4), "thread_p": 8, "lanes_p": 8, "block_c": 8}
    if block_k >= 64 and _tiles(w, large) < 132:
        large |= {"block_k": 64, "block_p": 64, "thread_k": 4, "thread_p": 4, "block_c": 16}
    return large


def _tiles(w: Workload, tile: dict[str, int]) -> int:
    return -(-filters(w) // tile["block_k"]) * -(-pixels(w) // tile["block_p"]) * w["groups"]


def _split(w: Workload, tile: dict[str, int], walk: int) -> int:
    blocks = _tiles(w, tile)
    steps = -(-channels(w) // tile["block_c"]) * w["R"] * w["S"] if walk == 1 else -(-depth(w) // tile["block_c"])
    return max(s for s in (1, 2, 4, 8, 16) if s == 1 or (blocks * s <= 264 and s * 4 <= steps))
