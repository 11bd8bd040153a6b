"""How a launch meets the GPU: occupancy, waves, padding and memory traffic, estimated from derived quantities alone.

What a template does not derive, or has no knob for, is left out. How data is reused is an operator's own: `Template.traffic`.
"""

from typing import Any

import numpy as np

from datasets.device import Device
from templates.knob import Columns
from templates.template import Template
from templates.workload import Workload


def launch_features(
    template: Template, workload: Workload, columns: Columns, derived: dict[str, Any], device: Device
) -> dict[str, Any]:
    """Scalars or arrays of shape (n,) by name. Needs `threads`, `smem_bytes`, `registers` and `blocks` from `derived`."""
    features = _tiles(workload, columns)
    if {"threads", "smem_bytes", "registers", "blocks"} <= derived.keys():
        features |= _occupancy(columns, derived, device)
        features |= _work(template, workload, columns, derived, device)
    if template.traffic is not None:
        traffic = template.traffic(columns, workload, derived, device.sm_count, device.l2_bytes)
        features |= {f"log_{name}": np.log2(value) for name, value in traffic.items()}
    return {f"launch_{name}": value for name, value in features.items()}


def _tiles(workload: Workload, columns: Columns) -> dict[str, Any]:
    """Useful share of the padded tiles per dimension that has a `block_<dim>` knob, and of them all together."""
    features: dict[str, Any] = {}
    total: Any = 1.0
    for name, extent in workload.dims:
        block = columns.get(f"block_{name.lower()}")
        if block is not None:
            features[f"tile_use_{name}"] = extent / (-(-extent // block) * block)
            total = total * features[f"tile_use_{name}"]
    return features | ({"tile_use": total} if features else {})


def _occupancy(columns: Columns, d: dict[str, Any], device: Device) -> dict[str, Any]:
    """Blocks an SM can hold by each resource, the least of them, and what that makes of the grid.

    Registers: the template's floor, in the units of 8 per thread and 256 per warp that the hardware allots (CUDA occupancy
    calculator); shared memory with the 1 KiB that compute capability 9.0 reserves per block.
    """
    threads = np.maximum(d["threads"], 1)
    warps = -(-threads // 32)
    registers = np.minimum(-(-np.asarray(d["registers"]) // 8) * 8, 255)
    by_registers = device.registers_sm // np.maximum(warps * registers * 32, 1)
    by_smem = device.smem_sm_bytes // (np.asarray(d["smem_bytes"]) + 1024)
    by_threads = np.minimum(device.threads_sm // threads, device.blocks_sm)
    resident = np.maximum(np.minimum(np.minimum(by_registers, by_smem), by_threads), 1)
    slots = resident * device.sm_count
    waves = d["blocks"] / slots
    # Blocks spread over the SMs before they share one, so the busiest SM decides: ceil(blocks / SMs) of them.
    busiest = -(-np.asarray(d["blocks"]) // device.sm_count)
    return {
        "resident_registers": _log(by_registers),
        "resident_smem": _log(by_smem),
        "resident_threads": _log(by_threads),
        "resident": _log(resident),
        "warps_sm": resident * warps,
        "warps_busy": np.minimum(resident, busiest) * warps,
        "log_waves": np.log2(waves),
        "tail_use": waves / np.ceil(waves),
        "sm_use": d["blocks"] / (busiest * device.sm_count),
        "sm_share": np.minimum(d["blocks"] / device.sm_count, 1.0),
    }


def _log(count: Any) -> Any:
    return np.log2(count + 1.0)


def _work(template: Template, workload: Workload, columns: Columns, d: dict[str, Any], device: Device) -> dict[str, Any]:
    """What each thread, block and SM is given to do, as log2."""
    per_block = template.flops(workload) / d["blocks"]
    busiest = -(-np.asarray(d["blocks"]) // device.sm_count)
    per_lane_cycle = 2.0 * device.fp32_lanes_sm * device.clock_mhz  # FLOPs an SM does in a microsecond
    return {
        "log_flops_thread": np.log2(per_block / np.maximum(d["threads"], 1)),
        "log_busiest_sm_us": np.log2(busiest * per_block / per_lane_cycle),
        "log_smem_thread": np.log2(np.asarray(d["smem_bytes"]) / np.maximum(d["threads"], 1) + 1.0),
    }
