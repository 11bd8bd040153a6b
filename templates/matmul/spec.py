"""fp32 matrix product C[M,N] = A[M,K] B[K,N], all row-major: knobs, constraints, launch geometry, reference."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from templates.knob import Columns, Config, Knob
from templates.matmul.traffic import traffic
from templates.template import Constraint, Launch, Limits, Template, Tensor
from templates.workload import Workload

UNIT_ROUNDOFF = 2.0**-24
MOST_FMAS = 4096  # in an unrolled loop body: 16 bytes each, so half of a 128 KiB instruction cache


def _shared(c: Columns) -> Any:
    return c["shared"] == 1


def _staged(c: Columns) -> Any:
    return (c["shared"] == 1) & (c["async_copy"] == 0)


KNOBS = (
    Knob("block_m", "layout", (8, 16, 32, 64, 128, 256), 128, "rows of C per thread block: reuse of B against parallelism"),
    Knob("block_n", "layout", (16, 32, 64, 128, 256), 128, "columns of C per thread block: reuse of A against parallelism"),
    Knob("thread_m", "layout", (1, 2, 4, 8, 16), 8, "rows of C per thread: FMAs per shared-memory load"),
    Knob("thread_n", "layout", (1, 2, 4, 8, 16), 8, "columns of C per thread: FMAs per shared-memory load"),
    Knob("lanes_n", "layout", (2, 4, 8, 16, 32), 8, "lanes of a warp along N: shape of the warp's tile, bank conflicts"),
    Knob("width_a", "layout", (1, 2, 4), 4, "floats per global access to A (float, float2, float4)"),
    Knob("width_b", "layout", (1, 2, 4), 4, "floats per global access to B and C (float, float2, float4)"),
    Knob("column_order", "layout", (0, 1), 0, "walk the tiles of C down the columns instead of along the rows"),
    Knob("group", "layout", (1, 4, 8, 16), 1, "tiles per strip of that walk: working set in L2"),
    Knob("shared", "memory", (0, 1), 1, "stage tiles of A and B in shared memory"),
    Knob("block_k", "memory", (4, 8, 16, 32, 64), 16, "depth of the shared tiles: fewer barriers against more memory", _shared),
    Knob("transpose_a", "memory", (0, 1), 1, "keep A's tile k-major: vector reads along M instead of along K", _shared),
    Knob("pad", "memory", (0, 4), 4, "unused floats at the end of each row of A's tile: bank conflicts", _shared),
    Knob("async_copy", "memory", (0, 1), 0, "copy global to shared memory without registers (cp.async)", _shared),
    Knob(
        "read_only",
        "memory",
        (0, 1),
        0,
        "load through the read-only cache path (__ldg)",
        lambda c: (c["shared"] == 0) | (c["async_copy"] == 0),
    ),
    Knob("dynamic_smem", "memory", (0, 1), 0, "shared memory sized at launch: needed above 48 KiB", _shared),
    Knob("stages", "schedule", (1, 2, 3, 4), 2, "shared tiles in flight: software pipelining of the outer loop", _shared),
    Knob(
        "vector_k",
        "schedule",
        (1, 2, 4),
        1,
        "values of k per read of A's tile when it is not transposed",
        lambda c: (c["shared"] == 1) & (c["transpose_a"] == 0),
    ),
    Knob(
        "fragment_buffers",
        "schedule",
        (1, 2),
        1,
        "2: read the next k from shared memory while computing this one, across tiles too",
        _shared,
    ),
    Knob("pragma_unroll", "schedule", (0, 1), 1, "tell the compiler how far to unroll the inner loop over k"),
    Knob("unroll", "schedule", (1, 2, 4, 8, 16), 8, "how far", lambda c: c["pragma_unroll"] == 1),
    Knob(
        "fma_order",
        "schedule",
        (0, 1, 2),
        0,
        "order of a thread's FMAs: along rows, rows there and back, columns there and back: operand reuse, register banks",
        _shared,
    ),
    Knob("split_k", "schedule", (1, 2, 4, 8, 16), 1, "blocks that share one tile of C, each a part of K: small grids"),
    Knob("min_blocks", "schedule", (1, 2, 3, 4), 1, "resident blocks per SM the compiler must leave registers for"),
)


def derived(c: Columns, w: Workload) -> dict[str, Any]:
    """Quantities that follow from knobs and shape, used by constraints, launch and features; ints or int arrays.

    threads: per block. lanes_m, warps_m, warps_n: the warp's shape and their arrangement in the block's tile.
    smem_bytes: shared memory per block. registers: a floor per thread: accumulators, fragments, staging, addresses.
    tiles_m, tiles_n, blocks: grid. k_tiles: tiles of depth block_k in all of K. fma_per_load: FMAs per fragment float read.
    """
    shared, staged = _shared(c), _staged(c)
    threads_n = c["block_n"] // c["thread_n"]
    threads_m = c["block_m"] // c["thread_m"]
    threads = threads_m * threads_n
    lanes_m = 32 // c["lanes_n"]
    a_floats = np.where(
        c["transpose_a"] == 1, c["block_k"] * (c["block_m"] + c["pad"]), c["block_m"] * (c["block_k"] + c["pad"])
    )
    b_floats = c["block_k"] * c["block_n"]
    staging = np.where(staged, (c["block_m"] + c["block_n"]) * c["block_k"] // np.maximum(threads, 1), 0)
    depth_a = np.where(shared & (c["transpose_a"] == 0), c["vector_k"], np.where(shared, 1, c["width_a"]))
    fragments = c["fragment_buffers"] * (c["thread_m"] * depth_a + c["thread_n"])
    tiles_m = -(-w["M"] // c["block_m"])
    tiles_n = -(-w["N"] // c["block_n"])
    depth: Any = np.where(shared, c["block_k"], c["width_a"])
    k_tiles = -(-w["K"] // depth)
    return {
        "threads": threads,
        "lanes_m": lanes_m,
        "warps_m": threads_m // lanes_m,
        "warps_n": threads_n // c["lanes_n"],
        "smem_bytes": np.where(shared, 4 * c["stages"] * (a_floats + b_floats), 0),
        "registers": c["thread_m"] * c["thread_n"] + fragments + staging + 20,
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "blocks": tiles_m * tiles_n * c["split_k"],
        "k_tiles": k_tiles,
        "fma_per_load": c["thread_m"] * c["thread_n"] / (c["thread_m"] + c["thread_n"]),
    }


def _warps_tile_block(c: Columns, w: Workload, limits: Limits) -> Any:
    lanes_m = 32 // c["lanes_n"]
    return (c["block_m"] % (c["thread_m"] * lanes_m) == 0) & (c["block_n"] % (c["thread_n"] * c["lanes_n"]) == 0)


def _threads_fit(c: Columns, w: Workload, limits: Limits) -> Any:
    return derived(c, w)["threads"] <= limits.threads_per_block


def _copies_divide(c: Columns, w: Workload, limits: Limits) -> Any:
    threads = np.maximum(derived(c, w)["threads"], 1)
    a_vectors = c["block_m"] * c["block_k"] // c["width_a"]
    b_vectors = c["block_n"] * c["block_k"] // c["width_b"]
    whole = (c["block_k"] % c["width_a"] == 0) & (a_vectors % threads == 0) & (b_vectors % threads == 0)
    return (c["shared"] == 0) | whole


def _copies_are_few(c: Columns, w: Workload, limits: Limits) -> Any:
    threads = np.maximum(derived(c, w)["threads"], 1)
    a_copies = c["block_m"] * c["block_k"] // (c["width_a"] * threads)
    b_copies = c["block_n"] * c["block_k"] // (c["width_b"] * threads)
    return (c["shared"] == 0) | ((a_copies <= 16) & (b_copies <= 16))


def _loop_body_fits(c: Columns, w: Workload, limits: Limits) -> Any:
    depth = np.where(c["shared"] == 1, c["vector_k"], c["width_a"])
    steps = np.where(c["shared"] == 1, np.minimum(c["unroll"], c["block_k"] // depth), c["unroll"])
    return (c["pragma_unroll"] == 0) | (steps * depth * c["thread_m"] * c["thread_n"] <= MOST_FMAS)


def _smem_fits(c: Columns, w: Workload, limits: Limits) -> Any:
    smem = derived(c, w)["smem_bytes"] + np.where(c["split_k"] > 1, 16, 0)  # and the flag of the last block
    return smem <= np.where(c["dynamic_smem"] == 1, limits.smem_block_bytes, limits.smem_static_bytes)


def _registers_fit(c: Columns, w: Workload, limits: Limits) -> Any:
    d = derived(c, w)
    budget = np.minimum(limits.registers_per_sm // np.maximum(d["threads"] * c["min_blocks"], 1), limits.registers_per_thread)
    return d["registers"] <= budget


def _grid_fits(c: Columns, w: Workload, limits: Limits) -> Any:
    d = derived(c, w)
    return (d["tiles_m"] * d["tiles_n"] <= limits.grid_x) & (c["split_k"] <= limits.grid_yz)


CONSTRAINTS = (
    Constraint("the warps' tiles (thread tile x lanes) must divide the block tile", _warps_tile_block),
    Constraint("more threads than a block may have: enlarge thread_m, thread_n or shrink the block tile", _threads_fit),
    Constraint("a block's threads must share the copies of A's and B's tiles evenly", _copies_divide),
    Constraint("a thread would copy more than 16 vectors of a tile: widen them or use more threads", _copies_are_few),
    Constraint("the unrolled loop would not stay in the instruction cache: lower unroll", _loop_body_fits),
    Constraint("shared memory does not fit: shrink the tile or the stages, or set dynamic_smem=1", _smem_fits),
    Constraint("too few registers for the accumulators, they would spill: shrink the thread tile or min_blocks", _registers_fit),
    Constraint("the grid is too large for this GPU", _grid_fits),
    Constraint("K is not a multiple of width_a: rows of A are not aligned", lambda c, w, _: w["K"] % c["width_a"] == 0),
    Constraint("N is not a multiple of width_b: rows of B and C are not aligned", lambda c, w, _: w["N"] % c["width_b"] == 0),
    Constraint(
        "a thread that loads B straight from global memory needs thread_n to be a multiple of width_b",
        lambda c, *_: (c["shared"] == 1) | (c["thread_n"] % c["width_b"] == 0),
    ),
    Constraint(
        "a tile's offsets do not fit 32 bits: K must be at most 2^22 and N at most 2^24",
        lambda c, w, _: w["K"] <= 2**22 and w["N"] <= 2**24,
    ),
    Constraint(
        "asynchronous copies need compute capability 8.0",
        lambda c, _, limits: (c["async_copy"] == 0) | (limits.compute_capability >= (8, 0)),
    ),
    Constraint(
        "asynchronous copies need 2 or more stages, copies through registers have 1 or 2",
        lambda c, *_: (c["shared"] == 0) | np.where(c["async_copy"] == 1, c["stages"] >= 2, c["stages"] <= 2),
    ),
    Constraint(
        "an asynchronous copy moves whole vectors, so it transposes A only float by float (width_a=1)",
        lambda c, *_: (c["async_copy"] == 0) | (c["transpose_a"] == 0) | (c["width_a"] == 1),
    ),
    Constraint(
        "split_k leaves some blocks without work", lambda c, w, _: c["split_k"] <= derived(c, w)["k_tiles"]
    ),
    Constraint(
        "a strip of tiles is wider than the grid",
        lambda c, w, _: (c["group"] == 1)
        | (c["group"] <= np.where(c["column_order"] == 1, derived(c, w)["tiles_n"], derived(c, w)["tiles_m"])),
    ),
)


def launch(config: Config, w: Workload) -> Launch:
    """One block per tile of C in x, parts of K in z. Workspace: a counter per tile, then the partial tiles of each part."""
    d = {name: int(value) for name, value in derived(config, w).items()}
    tiles = d["tiles_m"] * d["tiles_n"]
    partial = 4 * tiles * config["split_k"] * config["block_m"] * config["block_n"]
    return Launch(
        grid=(tiles, 1, config["split_k"]),
        block=(d["threads"], 1, 1),
        dynamic_smem_bytes=d["smem_bytes"] if config["dynamic_smem"] else 0,
        workspace_bytes=counter_bytes(tiles) + partial if config["split_k"] > 1 else 0,
    )


def counter_bytes(tiles: int) -> int:
    """Bytes of the per-tile counters, padded so that the partial tiles behind them are 16-byte aligned."""
    return -(-4 * tiles // 16) * 16


def tensors(w: Workload) -> tuple[Tensor, ...]:
    """A (M, K), B (K, N), C (M, N)."""
    m, n, k = w["M"], w["N"], w["K"]
    return (Tensor("A", "in", (m, k), "f32"), Tensor("B", "in", (k, n), "f32"), Tensor("C", "out", (m, n), "f32"))


def error_bound(w: Workload) -> float:
    """Probabilistic bound on a K-term inner product: lambda sqrt(K) u relative to sum |a||b| (Higham and Mary, A New
    Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41(5), 2019, theorem 3.1), lambda = 8: a failure
    probability below 1e-13 per element. The worst case, K u, would let a dropped term pass at large K.
    """
    return 8.0 * float(np.sqrt(w["K"] + 1)) * UNIT_ROUNDOFF


def reference(inputs: Mapping[str, np.ndarray], w: Workload) -> np.ndarray:
    """C in float64 on the CPU, shape (M, N)."""
    product: np.ndarray = inputs["A"].astype(np.float64) @ inputs["B"].astype(np.float64)
    return product


def edge_shapes(config: Config) -> list[Workload]:
    """Shapes round the tile sizes, {1, B-1, B, B+1, 2B+1} per dimension, that keep the config's vector widths legal."""

    def sizes(block: int, width: int) -> list[int]:
        wanted = (1, block - 1, block, block + 1, 2 * block + 1)
        return sorted({max(width, -(-size // width) * width) for size in wanted if size > 0})

    ms = sizes(config["block_m"], 1)
    ns = sizes(config["block_n"], config["width_b"])
    ks = sizes(config["block_k"] * config["split_k"], config["width_a"])
    rounds = max(len(ms), len(ns), len(ks))
    mixed = [(ms[i % len(ms)], ns[(i + 1) % len(ns)], ks[(i + 2) % len(ks)]) for i in range(rounds)]
    straight = [(ms[i % len(ms)], ns[i % len(ns)], ks[i % len(ks)]) for i in range(rounds)]
    return [Workload("matmul", "f32", (("M", m), ("N", n), ("K", k))) for m, n, k in dict.fromkeys(straight + mixed)]


NAIVE = {
    "block_m": 16, "block_n": 16, "thread_m": 1, "thread_n": 1, "lanes_n": 16, "width_a": 1, "width_b": 1,
    "column_order": 0, "group": 1, "shared": 0, "block_k": 16, "transpose_a": 1, "pad": 4, "async_copy": 0,
    "read_only": 0, "dynamic_smem": 0, "stages": 2, "vector_k": 1, "fragment_buffers": 1, "pragma_unroll": 0,
    "unroll": 8, "fma_order": 0, "split_k": 1, "min_blocks": 1,
}  # fmt: skip
"""One thread per element of C, straight from global memory."""


def expert(w: Workload) -> dict[str, int]:
    """The config an engineer would write down without searching: 128x128 tiles, 8x8 per thread, double-buffered through
    registers; smaller tiles when they would not fill a large GPU, split K when even those do not.
    """
    m, n, k = w["M"], w["N"], w["K"]
    width_a, width_b = (max(v for v in (1, 2, 4) if extent % v == 0) for extent in (k, n))
    config = {**NAIVE, "block_m": 128, "block_n": 128, "thread_m": 8, "thread_n": 8, "lanes_n": 8, "block_k": 8, "shared": 1,
              "width_a": width_a, "width_b": width_b, "pragma_unroll": 1, "fragment_buffers": 2}  # fmt: skip
    blocks = -(-m // 128) * -(-n // 128)
    if blocks < 132:
        config |= {"block_m": 64, "block_n": 64, "thread_m": 4, "thread_n": 4, "block_k": 16}
        blocks = -(-m // 64) * -(-n // 64)
    config["split_k"] = max(s for s in (1, 2, 4, 8, 16) if s == 1 or (blocks * s <= 264 and s * 64 <= k))
    return config


TEMPLATE = Template(
    op="matmul",
    entry="matmul",
    dims=("M", "N", "K"),
    dtypes=("f32",),
    knobs=KNOBS,
    constraints=CONSTRAINTS,
    naive=NAIVE,
    expert=expert,
    launch=launch,
    tensors=tensors,
    scalars=lambda w: (w["M"], w["N"], w["K"]),
    flops=lambda w: 2.0 * w["M"] * w["N"] * w["K"],
    bytes=lambda w: 4.0 * (w["M"] * w["K"] + w["K"] * w["N"] + w["M"] * w["N"]),
    error_bound=error_bound,
    reference=reference,
    derived=derived,
    edge_shapes=edge_shapes,
    traffic=traffic,
)
