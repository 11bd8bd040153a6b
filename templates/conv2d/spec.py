"""fp32 2-D convolution, NCHW or NHWC, without bias: the operator's template.

Dims: N images, C channels, H x W pixels, K filters of C/groups x R x S, then stride, pad and dilation (each the same in both
directions), groups, and nhwc: 0 for NCHW tensors with KCRS filters, 1 for NHWC with KRSC.
"""

from collections.abc import Mapping

import numpy as np

from templates.conv2d.constraints import CONSTRAINTS
from templates.conv2d.edges import edge_shapes
from templates.conv2d.expert import expert
from templates.conv2d.geometry import channels, depth, derived, filters, launch, out_size, pixels
from templates.conv2d.knobs import KNOBS, NAIVE
from templates.conv2d.traffic import traffic
from templates.template import Template, Tensor
from templates.workload import Workload

DIMS = ("N", "C", "H", "W", "K", "R", "S", "stride", "pad", "dilation", "groups", "nhwc")
UNIT_ROUNDOFF = 2.0**-24
MOST_ELEMENTS = 2**30
"""Of a tensor, so that offsets, those of tails included, fit 32 bits."""


def flaw(w: Workload) -> str:
    """What does not fit together in a shape; empty when nothing is wrong."""
    for dim in ("C", "K"):
        if w[dim] % w["groups"]:
            return f"{dim}={w[dim]} is not a multiple of groups={w['groups']}"
    if min(out_size(w)) < 1:
        return "the filter does not fit into the padded image: enlarge H, W or pad"
    largest = max(tensors(w), key=lambda tensor: float(np.prod(tensor.shape, dtype=float)))
    if float(np.prod(largest.shape, dtype=float)) > MOST_ELEMENTS:
        return f"{largest.name} has more than 2^30 elements: split the batch"
    return ""


def tensors(w: Workload) -> tuple[Tensor, ...]:
    """x (N, C, H, W), w (K, C/groups, R, S), y (N, K, OH, OW); with nhwc the channels come last in each."""
    high, wide = out_size(w)
    x, f, y = (w["N"], w["C"], w["H"], w["W"]), (w["K"], channels(w), w["R"], w["S"]), (w["N"], w["K"], high, wide)
    if w["nhwc"]:
        x, f, y = ((shape[0], shape[2], shape[3], shape[1]) for shape in (x, f, y))
    return (Tensor("x", "in", x, "f32"), Tensor("w", "in", f, "f32"), Tensor("y", "out", y, "f32"))


def error_bound(w: Workload) -> float:
    """Probabilistic bound on an n-term inner product: lambda sqrt(n) u relative to sum |x||w| (Higham and Mary, A New Approach to
    Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41(5), 2019, theorem 3.1), n = C/groups R S, lambda = 8: a
    failure probability below 1e-13 per element. The worst case, n u, would let a dropped term pass at large n.
    """
    return 8.0 * float(np.sqrt(depth(w) + 1)) * UNIT_ROUNDOFF


def reference(inputs: Mapping[str, np.ndarray], w: Workload) -> np.ndarray:
    """y in float64 on the CPU, of the shape `tensors` says."""
    x, f = (inputs[name].astype(np.float64) for name in ("x", "w"))
    if w["nhwc"]:
        x, f = x.transpose(0, 3, 1, 2), f.transpose(0, 3, 1, 2)
    x = np.pad(x, ((0, 0), (0, 0), (w["pad"],) * 2, (w["pad"],) * 2))
    images = x.reshape(w["N"], w["groups"], channels(w), *x.shape[2:])
    taps = f.reshape(w["groups"], filters(w), channels(w), w["R"], w["S"])
    high, wide = out_size(w)
    y = np.zeros((w["N"], w["groups"], filters(w), high, wide))
    for r in range(w["R"]):
        for s in range(w["S"]):
            seen = images[:, :, :, _reach(r, high, w), _reach(s, wide, w)]
            y += np.einsum("ngchw,gkc->ngkhw", seen, taps[..., r, s], optimize=True)
    result = y.reshape(w["N"], w["K"], high, wide)
    return np.ascontiguousarray(result.transpose(0, 2, 3, 1)) if w["nhwc"] else result


def _reach(tap: int, size: int, w: Workload) -> slice:
    """Where a tap falls in the padded image for each of `size` outputs in a row or column."""
    first = tap * w["dilation"]
    return slice(first, first + (size - 1) * w["stride"] + 1, w["stride"])


def least_flops(w: Workload) -> float:
    """Multiplications and additions of the direct sum, those on padding included; Winograd's algorithm would need fewer."""
    return 2.0 * w["K"] * pixels(w) * depth(w)


def least_bytes(w: Workload) -> float:
    """Each tensor moved once."""
    return 4.0 * sum(float(np.prod(tensor.shape, dtype=float)) for tensor in tensors(w))


TEMPLATE = Template(
    op="conv2d",
    entry="conv2d",
    dims=DIMS,
    dtypes=("f32",),
    knobs=KNOBS,
    constraints=CONSTRAINTS,
    naive=NAIVE,
    expert=expert,
    launch=launch,
    tensors=tensors,
    scalars=lambda w: tuple(w[dim] for dim in DIMS),
    flops=least_flops,
    bytes=least_bytes,
    error_bound=error_bound,
    reference=reference,
    derived=derived,
    edge_shapes=edge_shapes,
    traffic=traffic,
    ranges={"pad": (0, 64), "nhwc": (0, 1)},
    flaw=flaw,
    fixed=("R", "S", "stride", "pad", "dilation", "groups", "nhwc"),
)
