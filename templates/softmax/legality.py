"""Which softmax configs are legal on a shape, with the reason for each rule."""

from typing import Any

import numpy as np

from templates.knob import Columns
from templates.softmax.work import derived, registers, row_bytes, row_vectors
from templates.template import ELEMENT_BYTES, Constraint, Limits
from templates.workload import LARGEST, Workload

MOST_VALUES = 128  # elements in an unrolled loop body, up to 20 instructions of 16 bytes each: a third of the instruction cache
HELD_WHOLE_BYTES = 48 * 1024  # four rows have room in an SM's shared memory
FEW_ELEMENTS = 256  # of a row per thread, where less than a warp shares it: its accesses are too short for whole cache lines


def _threads_fit(c: Columns, w: Workload, limits: Limits) -> Any:
    threads = c["threads_row"] * c["block_m"]
    return (threads % 32 == 0) & (threads <= limits.threads_per_block)


def _rows_are_there(c: Columns, w: Workload, limits: Limits) -> Any:
    return c["block_m"] * c["rounds"] < np.maximum(2 * w["M"], 5)


def _threads_have_work(c: Columns, w: Workload, limits: Limits) -> Any:
    return (c["threads_row"] <= 32) | (c["threads_row"] < 2 * row_vectors(c, w))


def _vectors_are_used(c: Columns, w: Workload, limits: Limits) -> Any:
    return c["vectors"] <= 2 * derived(c, w)["thread_vectors"]


def _warps_share_long_rows(c: Columns, w: Workload, limits: Limits) -> Any:
    return (c["threads_row"] >= 32) | (w["N"] <= FEW_ELEMENTS * c["threads_row"])


def _registers_fit(c: Columns, w: Workload, limits: Limits) -> Any:
    per_thread = limits.registers_per_sm // np.maximum(c["threads_row"] * c["block_m"] * c["min_blocks"], 1)
    return registers(c, w) <= np.minimum(per_thread // 8 * 8, limits.registers_per_thread)


def _index_fits(c: Columns, w: Workload, limits: Limits) -> Any:
    d = derived(c, w)
    return (d["blocks"] * c["block_m"] * c["rounds"] <= LARGEST) & (d["slots"] <= LARGEST) & (d["blocks"] <= limits.grid_x)


def _stages_fit(c: Columns, w: Workload, limits: Limits) -> Any:
    return (c["stages"] <= c["rounds"]) & ((c["async_copy"] == 1) | (c["stages"] <= 2))


def _powers_differ(c: Columns, w: Workload, limits: Limits) -> Any:
    return (c["keep_powers"] == 0) | (c["online"] == 1) | (ELEMENT_BYTES[w.dtype] < 4)


CONSTRAINTS = (
    Constraint("a block needs a multiple of 32 threads, 1024 at most: change threads_row or block_m", _threads_fit),
    Constraint(
        "an access is wider than 16 bytes: lower width", lambda c, w, _: c["width"] * ELEMENT_BYTES[w.dtype] <= 16
    ),
    Constraint(
        "N is not a multiple of width, so rows are not aligned: set peel=1 or lower width",
        lambda c, w, _: (c["peel"] == 1) | (w["N"] % c["width"] == 0),
    ),
    Constraint(
        "a row's ends have more elements than it has threads: raise threads_row or lower width",
        lambda c, *_: (c["peel"] == 0) | (c["threads_row"] >= 2 * (c["width"] - 1)),
    ),
    Constraint("a block would have more rows than there are: lower block_m or rounds", _rows_are_there),
    Constraint("half of a row's threads would have no vector: lower threads_row or width", _threads_have_work),
    Constraint("half of the vectors would be beyond the row: lower vectors", _vectors_are_used),
    Constraint(
        "the threads of a row cannot hold it in registers: raise threads_row, vectors or width",
        lambda c, w, _: (c["storage"] != 2) | (c["threads_row"] * c["vectors"] >= row_vectors(c, w)),
    ),
    Constraint(
        "the unrolled loop would not stay in the instruction cache: lower vectors or width",
        lambda c, *_: c["vectors"] * c["width"] <= MOST_VALUES,
    ),
    Constraint("rows are too long for less than a warp: raise threads_row", _warps_share_long_rows),
    Constraint("too few registers for the elements, they would spill: lower vectors, width or min_blocks", _registers_fit),
    Constraint(
        "shared memory does not fit: lower block_m or stages, or choose another storage",
        lambda c, w, limits: derived(c, w)["smem_bytes"] <= limits.smem_block_bytes,
    ),
    Constraint(
        "rows are short enough to be held whole: set held=8",
        lambda c, w, _: (c["held"] == 8) | (row_bytes(c, w) > HELD_WHOLE_BYTES),
    ),
    Constraint("more stages than rounds, or more than 2 without asynchronous copies", _stages_fit),
    Constraint(
        "asynchronous copies need compute capability 8.0",
        lambda c, _, limits: (c["async_copy"] == 0) | (limits.compute_capability >= (8, 0)),
    ),
    Constraint(
        "asynchronous copies move 4 bytes or more: raise width",
        lambda c, w, _: (c["async_copy"] == 0) | (c["width"] * ELEMENT_BYTES[w.dtype] >= 4),
    ),
    Constraint(
        "asynchronous copies start at aligned rows: set peel=0 or width=1",
        lambda c, *_: (c["async_copy"] == 0) | (c["peel"] == 0) | (c["width"] == 1),
    ),
    Constraint("the compiler keeps fp32 exponentials without being told, unless online=1", _powers_differ),
    Constraint("an index does not fit 32 bits: M or N is too large", _index_fits),
)
