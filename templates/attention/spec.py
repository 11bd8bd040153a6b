"""fp32 attention O = softmax(Q K' / sqrt(D)) V, Q and O of B x H x Q x D, K and V of B x KV x K x D, all row-major.

H is a multiple of KV: H / KV neighbouring query heads share keys and values (grouped-query attention). causal=1: query i sees the
keys j <= i, counted from the first one whatever Q and K are (as PyTorch's is_causal).
"""

from collections.abc import Iterator, Mapping

import numpy as np

from templates.attention.knobs import BLOCKS_D, KNOBS
from templates.attention.shapes import CONSTRAINTS, derived, workspace_bytes
from templates.attention.traffic import seen_keys, traffic
from templates.knob import Config
from templates.template import Launch, Limits, Template, Tensor
from templates.workload import Workload

UNIT_ROUNDOFF = 2.0**-24
SPREAD = 2.0
"""Q and K are drawn from [-2, 2): scores vary by several units, as trained heads' do, and the softmax is not flat."""


def launch(config: Config, w: Workload) -> Launch:
    """One block per tile of rows and head in x, parts of the keys in z. Workspace: a counter per tile, then partial results."""
    d = {name: int(value) for name, value in derived(config, w).items() if name != "d_used"}
    dynamic = config["shared"] and config["dynamic_smem"]
    return Launch(
        grid=(d["blocks"] // config["split_k"], 1, config["split_k"]),
        block=(d["threads"], 1, 1),
        dynamic_smem_bytes=d["smem_bytes"] if dynamic else 0,
        workspace_bytes=int(workspace_bytes(config, w)),
    )


def tensors(w: Workload) -> tuple[Tensor, ...]:
    """Q (B, H, Q, D), K and V (B, KV, K, D), O (B, H, Q, D)."""
    q_shape = (w["B"], w["H"], w["Q"], w["D"])
    kv_shape = (w["B"], w["KV"], w["K"], w["D"])
    return (
        Tensor("Q", "in", q_shape, "f32", -SPREAD, SPREAD),
        Tensor("K", "in", kv_shape, "f32", -SPREAD, SPREAD),
        Tensor("V", "in", kv_shape, "f32"),
        Tensor("O", "out", q_shape, "f32"),
    )


def flaw(w: Workload) -> str:
    """What does not fit together: heads that cannot share keys evenly, a head whose offsets leave 32 bits."""
    if w["H"] % w["KV"]:
        return f"H={w['H']} is not a multiple of KV={w['KV']}; query heads share key heads evenly"
    if max(w["H"] // w["KV"] * w["Q"], w["K"]) * w["D"] >= 2**31:
        return "the queries or keys of one head have 2^31 elements or more"
    return ""


def least_bytes(w: Workload) -> float:
    """Q, O, and what any query sees of K and V, once."""
    seen = min(w["Q"], w["K"]) if w["causal"] else w["K"]
    return 8.0 * w["B"] * w["D"] * (w["H"] * w["Q"] + w["KV"] * seen)


def error_bound(w: Workload) -> float:
    """Bound relative to m = sum over the keys of p |v|, p the weights; u = 2^-24, lambda = 8 as for matmul.

    A sum of n products of either sign, as Q, K and V are drawn, errs by lambda u sum |a||b|, whatever n (Higham and Mary, Sharper
    Probabilistic Backward Error Analysis for Basic Linear Algebra Kernels with Random Data, SIAM J. Sci. Comput. 42(5), 2020).
    For a score that is lambda u sqrt(D) mean|q k|, an absolute error and so the relative one of its exponential.
    The sum of K weights, all positive: lambda sqrt(K) u (the same authors, A New Approach to Probabilistic Rounding Error
    Analysis, 41(5), 2019, theorem 3.1). The scale, exp and its argument (scores stay below 16): 32 u.
    """
    mean_product = (SPREAD / 2) ** 2
    return (8.0 * (float(np.sqrt(w["D"])) * mean_product + float(np.sqrt(w["K"])) + 1.0) + 32.0) * UNIT_ROUNDOFF


def reference(inputs: Mapping[str, np.ndarray], w: Workload) -> np.ndarray:
    """O in float64 on the CPU, shape (B, H, Q, D)."""
    weights = softmax_weights(inputs, w)
    result: np.ndarray = weights @ np.repeat(inputs["V"].astype(np.float64), w["H"] // w["KV"], axis=1)
    return result


def softmax_weights(inputs: Mapping[str, np.ndarray], w: Workload) -> np.ndarray:
    """The weights P in float64, shape (B, H, Q, K), each row summing to 1."""
    keys = np.repeat(inputs["K"].astype(np.float64), w["H"] // w["KV"], axis=1)
    scores = inputs["Q"].astype(np.float64) @ keys.swapaxes(-1, -2) / np.sqrt(w["D"])
    if w["causal"]:
        scores = np.where(np.arange(w["K"]) <= np.arange(w["Q"])[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    normalised: np.ndarray = weights / weights.sum(axis=-1, keepdims=True)
    return normalised


def edge_shapes(config: Config) -> list[Workload]:
    """Shapes round the tile sizes, {1, B-1, B, B+1, 2B+1} per dimension, that keep the config legal: with and without a
    causal mask, heads that share keys, head dimensions from the least to the most that block_d may hold.
    """

    def sizes(block: int, floor: int = 1) -> list[int]:
        return sorted({max(floor, size) for size in (1, block - 1, block, block + 1, 2 * block + 1)})

    width = config["width"]
    most = config["block_d"] if config["shared"] else 96
    beneath = (0, 0, *BLOCKS_D)[BLOCKS_D.index(most)]  # heads of so many columns and fewer take a smaller block_d
    ds = sorted({-(-d // width) * width for d in (beneath + 1, most - width, most)})
    qs = sizes(config["block_q"])
    ks = sizes(config["block_k"] * config["split_k"], (config["split_k"] - 1) * config["block_k"] + 1)
    shapes = []
    for i in range(2 * max(len(qs), len(ks))):
        q, k, d = qs[i % len(qs)], ks[(i + i // len(ks)) % len(ks)], ds[i % len(ds)]
        group = 1 + (config["pack_heads"] or i % 2)
        causal = int(config["reverse"] or i % 3 == 1)
        shapes.append(TEMPLATE.workload(B=1 + i % 2, H=2 * group, KV=2, Q=q, K=k, D=d, causal=causal))
    return list(dict.fromkeys(shapes))


NAIVE = {
    "shared": 0, "block_q": 4, "block_k": 32, "block_d": 64, "thread_q": 1, "lanes_k": 32, "warps_k": 1, "width": 1,
    "pack_heads": 0, "heads_first": 0, "reverse": 0, "transpose_q": 0, "transpose_k": 0, "pad": 4, "p_parts": 1,
    "async_copy": 1, "read_only": 0, "dynamic_smem": 1, "stages": 1, "vector": 4, "pragma_unroll": 0, "unroll": 2, "fma_order": 0,
    "skip_rescale": 0, "split_k": 1, "min_blocks": 1,
}  # fmt: skip
"""One warp per row of O, a key per lane, straight from global memory."""


def expert(w: Workload) -> dict[str, int]:
    """The config an engineer would write down without searching: 128 rows by 64 keys where that fits and fills a large GPU,
    8x8 scores per thread, tiles copied in the background; for a few rows, keys split over lanes, warps and blocks.
    """
    rows = w["Q"] * (w["H"] // w["KV"])
    base = {**NAIVE, "shared": 1, "pragma_unroll": 1, "width": max(v for v in (1, 2, 4) if w["D"] % v == 0)}
    base |= {"pack_heads": int(w["H"] > w["KV"]), "heads_first": w["causal"], "reverse": w["causal"]}
    tiles = (*_few_rows(w, base, rows), *_many_rows(w, base, rows)) if rows <= 16 else _many_rows(w, base, rows)
    config = next(c for c in tiles if _is_legal(c, w))
    blocks = int(derived(config, w)["blocks"])
    parts = (s for s in (1, 2, 4, 8, 16) if s == 1 or (blocks * s <= 528 and s * 4 * config["block_k"] <= w["K"]))
    return next(c for s in sorted(parts, reverse=True) if _is_legal(c := {**config, "split_k": s}, w))


def _many_rows(w: Workload, base: Config, rows: int) -> Iterator[dict[str, int]]:
    """Tiles from large to small, the large ones only where there are rows for 264 blocks."""
    block_d = min(v for v in BLOCKS_D if v >= w["D"])
    large = w["B"] * w["KV"] * rows >= 128 * 264
    for block_q, block_k in ((128, 64), (64, 64), (64, 32), (128, 32), (64, 16), (128, 16), (256, 16)):
        if block_q <= 64 or large or block_k < 64:
            lanes_k = 8 if block_d <= 96 else 16
            yield {**base, "block_q": block_q, "block_k": block_k, "block_d": block_d, "lanes_k": lanes_k, "thread_q": 8}


def _few_rows(w: Workload, base: Config, rows: int) -> Iterator[dict[str, int]]:
    """All rows in each thread, a key per lane."""
    block_q = min(v for v in (4, 8, 16) if v >= rows)
    block_d = min(v for v in BLOCKS_D if v >= w["D"] and v % 32 == 0)
    for warps_k in (2, 4, 1):
        tile = {"block_q": block_q, "block_k": 32 * warps_k, "block_d": block_d, "thread_q": block_q}
        yield {**base, **tile, "warps_k": warps_k, "unroll": 4}


def _is_legal(config: Config, w: Workload) -> bool:
    return all(np.all(constraint.holds(config, w, Limits())) for constraint in CONSTRAINTS)


TEMPLATE = Template(
    op="attention",
    entry="attention",
    dims=("B", "H", "KV", "Q", "K", "D", "causal"),
    dtypes=("f32",),
    knobs=KNOBS,
    constraints=CONSTRAINTS,
    naive=NAIVE,
    expert=expert,
    launch=launch,
    tensors=tensors,
    scalars=lambda w: tuple(w[name] for name in ("H", "KV", "Q", "K", "D", "causal")),
    flops=lambda w: 4.0 * w["B"] * w["H"] * w["Q"] * seen_keys(w) * w["D"],
    bytes=least_bytes,
    error_bound=error_bound,
    reference=reference,
    derived=derived,
    edge_shapes=edge_shapes,
    traffic=traffic,
    reference_threads=lambda w: 256 * w["B"] * w["H"] * w["Q"],
    ranges={"D": (1, 256), "causal": (0, 1)},
    flaw=flaw,
    fixed=("B", "H", "KV", "D"),
)
