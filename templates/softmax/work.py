"""How the rows of a softmax fall to threads and blocks, and what those hold: quantities that follow from knobs and shape."""

from typing import Any

import numpy as np

from templates.knob import Columns
from templates.template import ELEMENT_BYTES
from templates.workload import Workload

OTHER_REGISTERS = 20
"""Per thread, beside the elements it holds: addresses, bounds, maximum and sum, an exponential on its way."""


def passes_shared(c: Columns) -> Any:
    """Whether rows pass through shared memory."""
    return (c["storage"] == 1) | (c["async_copy"] == 1)


def row_vectors(c: Columns, w: Workload) -> Any:
    """Whole vectors of a row, at most."""
    return w["N"] // c["width"]


def row_bytes(c: Columns, w: Workload) -> Any:
    """Bytes of the whole vectors of a row."""
    return row_vectors(c, w) * c["width"] * ELEMENT_BYTES[w.dtype]


def held_vectors(c: Columns, w: Workload) -> Any:
    """Vectors of a row that have a place in shared memory."""
    return np.where(c["held"] < 8, row_vectors(c, w) // 8 * c["held"], row_vectors(c, w))


def tile_bytes(c: Columns, w: Workload) -> Any:
    """Shared memory for the rows in flight, sized at launch."""
    rows = c["block_m"] * np.where(c["async_copy"] == 1, c["stages"], 1)
    return np.where(passes_shared(c), rows * held_vectors(c, w) * c["width"] * ELEMENT_BYTES[w.dtype], 0)


def parts_bytes(c: Columns) -> Any:
    """Shared memory for the warps' maxima and sums."""
    buffers = np.where((c["online"] == 1) & (c["rounds"] > 1), 2, 1)
    return np.where(c["threads_row"] > 32, 8 * buffers * c["block_m"] * (c["threads_row"] // 32), 0)


def registers(c: Columns, w: Workload) -> Any:
    """A floor per thread: the vectors it has in flight or keeps, as they are stored or as floats, and the rest."""
    words = c["vectors"] * np.maximum(1, c["width"] * ELEMENT_BYTES[w.dtype] // 4)
    ahead = np.where((c["storage"] == 2) & (c["async_copy"] == 0) & (c["stages"] > 1), words, 0)
    widened = c["width"] if ELEMENT_BYTES[w.dtype] < 4 else 0
    return np.where(c["keep_powers"] == 1, c["vectors"] * c["width"], words) + ahead + widened + OTHER_REGISTERS


def derived(c: Columns, w: Workload) -> dict[str, Any]:
    """Quantities used by constraints, launch and features; ints or int arrays.

    threads, smem_bytes, registers (a floor per thread), blocks: of the launch. row_vectors: whole vectors of a row.
    thread_vectors: of these a thread's share, at most. steps: loads of `vectors` each that take it there. slots: elements that
    the threads of a row have places for. bytes_ahead: of X that a block asks for before it waits.
    """
    vectors = row_vectors(c, w)
    share = np.maximum(1, -(-vectors // c["threads_row"]))
    threads = c["threads_row"] * c["block_m"]
    steps = -(-share // c["vectors"])
    batch = np.minimum(c["threads_row"] * c["vectors"] * c["width"] * ELEMENT_BYTES[w.dtype], row_bytes(c, w))
    return {
        "threads": threads,
        "smem_bytes": tile_bytes(c, w) + parts_bytes(c),
        "registers": registers(c, w),
        "blocks": -(-w["M"] // (c["block_m"] * c["rounds"])),
        "row_vectors": vectors,
        "thread_vectors": share,
        "steps": steps,
        "slots": steps * c["threads_row"] * c["vectors"] * c["width"],
        "bytes_ahead": c["block_m"] * c["stages"] * np.where(c["async_copy"] == 1, row_bytes(c, w), batch),
    }
