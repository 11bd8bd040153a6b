"""How a layernorm config keeps memory busy and what it reads again: estimates for the cost model."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from templates.knob import Columns
from templates.template import ELEMENT_BYTES
from templates.workload import Workload

THREADS_SM, REGISTERS_SM, SMEM_SM = 2048, 65536, 228 * 1024


def traffic(c: Columns, w: Workload, d: Mapping[str, Any], sm_count: int, l2_bytes: int) -> dict[str, Any]:
    """Bytes read and written, bytes under way in an SM, how rows fill threads; all positive, ints, floats or arrays.

    Rows that are read again come from L2 as long as those that resident blocks work on fit in it. Weight and bias reach a
    thread once, or once per row, mostly from L1.
    """
    m, n, element = w["M"], w["N"], ELEMENT_BYTES[w.dtype]
    resident = np.minimum(THREADS_SM // d["threads"], REGISTERS_SM // (d["threads"] * np.maximum(d["registers"], 32)))
    resident = np.maximum(np.minimum(resident, SMEM_SM // (d["smem_bytes"] + 1024)), 1)
    busy = np.minimum(resident, -(-d["blocks"] // sm_count))
    working_set = 1.0 * np.minimum(resident * sm_count, d["blocks"]) * c["block_m"] * n * element
    again = np.where(working_set > 0.5 * l2_bytes, d["passes"], 1)
    loads = np.where(c["parameters"] == 2, d["blocks"] * c["block_m"], m)
    return {
        "dram_bytes": 1.0 * element * m * n * (again + 1.0),
        "l2_bytes": 1.0 * element * m * n * (d["passes"] + 1.0),
        "parameter_bytes": 2.0 * element * n * loads,
        "working_set_l2": working_set / l2_bytes,
        "in_flight_sm": 1.0 * busy * d["in_flight_bytes"],
        "row_use": n / (1.0 * d["vectors_thread"] * c["threads_row"] * c["width"]),
        "room_use": n / np.where(c["storage"] > 0, 1.0 * c["vectors"] * c["threads_row"] * c["width"], n),
        "reductions_row": np.where(c["one_pass"] == 1, 1, 2) * np.log2(2.0 * c["threads_row"]),
    }
