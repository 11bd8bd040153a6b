"""What softmax configs move and compute, and how much is under way at a time: estimates for the cost model."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from templates.knob import Columns
from templates.template import ELEMENT_BYTES
from templates.workload import Workload

THREADS_PER_SM = 2048
REGISTERS_PER_SM = 65536
SMEM_PER_SM = 228 * 1024


def traffic(c: Columns, w: Workload, d: Mapping[str, Any], sm_count: int, l2_bytes: int) -> dict[str, Any]:
    """Passes, bytes and exponentials; all positive, ints, floats or arrays.

    A row without storage is read again from L2 as long as the rows that are worked on at a time fit there, else from DRAM.
    """
    size = float(ELEMENT_BYTES[w.dtype]) * w["M"] * w["N"]
    read_again = np.where(c["storage"] == 0, 1.0, np.where(c["storage"] == 1, 1.0 - c["held"] / 8, 0.0))  # share of a row
    passes = 1.0 + read_again * (2 - c["online"])
    resident = np.minimum(_resident_blocks(d), np.maximum(d["blocks"] / sm_count, 1.0))
    blocks = np.minimum(d["blocks"], resident * sm_count)
    working_set = blocks * c["block_m"] * float(ELEMENT_BYTES[w.dtype]) * w["N"]
    kept = (c["keep_powers"] == 1) | ((c["storage"] == 2) & (ELEMENT_BYTES[w.dtype] == 4) & (c["online"] == 0))
    rescaled = np.where((c["storage"] != 2) & (c["online"] == 1), 1.0 / (c["vectors"] * c["width"]), 0.0)
    return {
        "passes": passes,
        "dram_bytes": size * (2.0 + (passes - 1.0) * np.minimum(1.0, read_again * working_set / l2_bytes)),
        "l2_bytes": size * (1.0 + passes),
        "working_set_l2": np.maximum(read_again, 1 / 16) * working_set / l2_bytes,
        "bytes_ahead_sm": np.maximum(resident * d["bytes_ahead"], 1.0),
        "exponentials": np.where(kept, 1.0, 2.0) + rescaled,
        "accesses_thread": d["thread_vectors"],
        "unrolled": c["vectors"] * c["width"],
        "slots_use": np.maximum(w["N"] / np.maximum(d["slots"], 1), 1e-6),
        "rows_sm": np.maximum(resident * c["block_m"], 1e-6),
        "barriers": np.where(c["threads_row"] > 32, 3 - c["online"], 1),
    }


def _resident_blocks(d: Mapping[str, Any]) -> Any:
    """Blocks an SM holds at once by threads, registers (the floor) and shared memory: at least 1."""
    by_registers = REGISTERS_PER_SM // np.maximum(d["registers"] * d["threads"], 1)
    by_smem = SMEM_PER_SM // (np.asarray(d["smem_bytes"]) + 1024)
    by_threads = np.minimum(THREADS_PER_SM // np.maximum(d["threads"], 1), 32)
    return np.maximum(np.minimum(np.minimum(by_registers, by_smem), by_threads), 1)
