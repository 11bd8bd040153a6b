"""Shapes round the tile sizes of a conv2d config."""

from collections.abc import Iterable

from templates.conv2d.geometry import derived
from templates.conv2d.knobs import NAIVE
from templates.knob import Config
from templates.workload import Workload

ROUNDS = 6
_ORDER = ("N", "C", "H", "W", "K", "R", "S", "stride", "pad", "dilation", "groups", "nhwc")


def edge_shapes(config: Config) -> list[Workload]:
    """Filters, output pixels and depth of {1, B-1, B, B+1, 2B+1} round the config's tiles, kept legal for it, under filters of
    several sizes, strides, paddings, dilations and groups.
    """
    found = _tiled(config) if config["shared"] else _direct(config)
    return list(dict.fromkeys(found))


def _workload(**dims: int) -> Workload:
    return Workload("conv2d", "f32", tuple((dim, dims[dim]) for dim in _ORDER))


def _round(block: int, width: int, least: int = 1) -> list[int]:
    """The sizes round a block, as multiples of a width that are `least` or more."""
    sizes = (least, block - 1, block, block + 1, 2 * block + 1)
    return sorted({-(-max(size, least) // width) * width for size in sizes})


def _pick(sizes: list[int], turn: int) -> int:
    return sizes[turn % len(sizes)]


# R, S, stride, pad, dilation, groups. Output rows: one where the image has one row and the filter is padded to reach it.
_FILTERS = (
    (3, 3, 1, 1, 1, 1), (3, 3, 2, 1, 1, 2), (1, 1, 2, 0, 1, 1), (2, 3, 1, 1, 1, 1), (3, 3, 1, 2, 2, 1), (4, 4, 4, 0, 1, 1),
)  # fmt: skip


def _tiled(c: Config) -> Iterable[Workload]:
    """A row or two of output pixels as long as the tile asks; images of a few rows besides."""
    filter_width, pixel_width = (c["width_y"], 1) if c["channels_last"] else (1, c["width_y"])
    if c["walk"] == 3 and not c["channels_last"]:
        pixel_width = max(pixel_width, c["width_x"])
    by_tap = c["walk"] in (1, 2)
    for turn in range(ROUNDS):
        r, s, stride, pad, dilation, groups = (1, 1, 1, 0, 1, 1 + turn % 2) if c["walk"] == 3 else _FILTERS[turn]
        taps = r * s
        depth_width = max(c["width_f"], c["width_x"]) if c["channels_last"] else c["width_f"]
        least = -(-c["split"] * c["block_c"] // taps) if not by_tap else (-(-c["split"] // taps) - 1) * c["block_c"] + 1
        channels = _pick(_round(c["block_c"], depth_width, least), turn)
        filters = _pick(_round(c["block_k"], filter_width, c["block_k"] // 2 + 1), turn + 1)
        pixels = _pick(_round(c["block_p"], pixel_width), turn + 2)
        yield _image(1, pixels, 1, channels * groups, filters * groups, (r, s, stride, pad, dilation, groups), c["channels_last"])
        few = -(-7 // pixel_width) * pixel_width
        yield _image(3, few, 5, channels * groups, filters * groups, (r, s, stride, pad, dilation, groups), c["channels_last"])


def _image(
    images: int, wide: int, high: int, channels: int, filters: int, conv: tuple[int, int, int, int, int, int], nhwc: int
) -> Workload:
    """The convolution whose output has `high` rows of `wide` pixels."""
    r, s, stride, pad, dilation, groups = conv
    rows, columns = (max(1, (size - 1) * stride + 1 + dilation * (taps - 1) - 2 * pad) for size, taps in ((high, r), (wide, s)))
    return _workload(N=images, C=channels, H=rows, W=columns, K=filters, R=r, S=s, stride=stride, pad=pad, dilation=dilation,
                     groups=groups, nhwc=nhwc)  # fmt: skip


def _direct(c: Config) -> Iterable[Workload]:
    """Output rows round thread_p, columns round block_p, filters round a warp's."""
    thread_k = c["thread_k"]
    any_shape = _workload(**dict.fromkeys(_ORDER, 1) | {"K": thread_k})
    of_warp = thread_k * int(derived({**NAIVE, **c}, any_shape)["lanes_k"])
    either = c["filter_size"] == 0 and c["width_y"] == 1
    layouts = (0, 1) if either else (c["channels_last"],) * 2 if c["filter_size"] else (1, 1)
    size, step = c["filter_size"], c["filter_step"]
    least = c["unroll"] if c["pragma_unroll"] and not c["depthwise"] else 1
    for turn in range(ROUNDS):
        r, s, stride, pad, dilation, groups = (size, size, step, size // 2, 1, 1 + turn % 2) if size else _FILTERS[turn]
        filters = _pick(_round(of_warp, thread_k), turn)
        high = _pick(_round(c["thread_p"], 1), turn + 1)
        wide = _pick(_round(c["block_p"], 1), turn + 2)
        if c["depthwise"]:
            groups, channels = filters, filters
        else:
            channels = groups * (least + turn % 3)
            filters *= groups
        yield _image(1 + turn % 2, wide, high, channels, filters, (r, s, stride, pad, dilation, groups), layouts[turn % 2])
