"""What the cost model and the policy see of a workload, a GPU and a config: named numbers, with no compiler involved.

`matrix` takes thousands of configs in milliseconds. Counts from the source's syntax tree (`source`) take a parse each; only
`explain` and the policy's state add them. Names start with their group: shape_, roofline_, device_, knob_, d_ (what the
template derives from config and shape), launch_ (how the grid meets the GPU) and ast_.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_model.launch import launch_features
from cost_model.source import source_features
from datasets.device import H200, Device
from templates.knob import Columns, Config, columns_of
from templates.render import render
from templates.template import ELEMENT_BYTES, Template
from templates.workload import Workload

GROUPS = {
    "shape": "the workload's shape",
    "roofline": "what the operator must at least do",
    "device": "the GPU",
    "knob": "the config: log2 of sizes, switches as they are",
    "d": "what the template derives from config and shape",
    "launch": "how the grid meets the GPU",
    "ast": "the rendered source's syntax tree (w_: weighted with constant trip counts)",
}
Configs = Columns | Sequence[Config]


def names(template: Template) -> list[str]:
    """Names of `matrix`'s columns, in order. The same for every workload and device."""
    return list(_names(template.op))


@cache
def _names(op: str) -> tuple[str, ...]:
    from templates.template import load_template

    template = load_template(op)
    workload = template.edge_shapes(template.naive)[-1]
    return tuple(_columns(template, workload, columns_of([template.naive], template.names), H200))


def matrix(template: Template, workload: Workload, configs: Configs, device: Device) -> NDArray[np.float32]:
    """Features of n configs on one workload and device, float32 of shape (n, len(names(template)))."""
    columns = as_columns(template, configs)
    n = len(next(iter(columns.values())))
    values = _columns(template, workload, columns, device)
    result = np.empty((n, len(values)), dtype=np.float32)
    for i, value in enumerate(values.values()):
        result[:, i] = value
    return result


def explain(template: Template, workload: Workload, config: Config, device: Device) -> dict[str, float]:
    """Every feature of one config by name, the syntax tree's (`ast_`) included."""
    values = dict(zip(names(template), matrix(template, workload, [config], device)[0].tolist(), strict=True))
    return values | {f"ast_{name}": value for name, value in source_features(render(template, config, workload.dtype)).items()}


def as_columns(template: Template, configs: Configs) -> dict[str, NDArray[np.int64]]:
    """Configs in either form as int64 columns of shape (n,)."""
    if isinstance(configs, Mapping):
        return {name: np.asarray(configs[name], dtype=np.int64) for name in template.names}
    return columns_of(list(configs), template.names)


def _columns(template: Template, workload: Workload, columns: Columns, device: Device) -> dict[str, Any]:
    """Scalars or arrays of shape (n,) by feature name; scalars hold for all n configs."""
    derived = template.derived(columns, workload)
    return (
        _shape(template, workload)
        | _roofline(template, workload, device)
        | _device(device)
        | {f"knob_{knob.name}": _scale(columns[knob.name], knob.values) for knob in template.knobs}
        | {f"d_{name}": np.log2(np.maximum(value, 0) + 1.0) for name, value in derived.items()}
        | launch_features(template, workload, columns, derived, device)
    )


def _shape(template: Template, workload: Workload) -> dict[str, float]:
    """log2 of each extent (of 1 more where it may be 0), and the power of two (up to 128) that divides it, as log2; the
    bytes of an element where the operator has several dtypes.
    """
    logs = template.log_extents(workload).tolist()
    sizes = {f"shape_log_{name}": log for (name, _), log in zip(workload.dims, logs, strict=True)}
    sizes |= {f"shape_align_{name}": float(np.log2(np.gcd(extent, 128))) for name, extent in workload.dims}
    several = len(template.dtypes) > 1
    return sizes | ({"shape_log_element_bytes": float(np.log2(ELEMENT_BYTES[workload.dtype]))} if several else {})


def _roofline(template: Template, workload: Workload, device: Device) -> dict[str, float]:
    """log2 of FLOPs, bytes, FLOPs per byte, and of the time (us) the GPU's peaks allow."""
    flops, size = template.flops(workload), template.bytes(workload)
    return {
        "roofline_log_flops": float(np.log2(flops)),
        "roofline_log_bytes": float(np.log2(size)),
        "roofline_log_intensity": float(np.log2(flops / size)),
        "roofline_log_floor_us": float(np.log2(floor_us(template, workload, device))),
    }


def floor_us(template: Template, workload: Workload, device: Device) -> float:
    """The roofline's lower bound on the time, us (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009)."""
    compute = template.flops(workload) / (device.fp32_tflops * 1e6)
    return max(compute, template.bytes(workload) / (device.memory_bandwidth_gbs * 1e3))


def _device(device: Device) -> dict[str, float]:
    """log2 of the GPU's sizes and rates."""
    sizes = {
        "sm_count": device.sm_count,
        "smem_sm_bytes": device.smem_sm_bytes,
        "registers_sm": device.registers_sm,
        "l2_bytes": device.l2_bytes,
        "bandwidth_gbs": device.memory_bandwidth_gbs,
        "fp32_tflops": device.fp32_tflops,
        "balance": device.fp32_tflops * 1e3 / device.memory_bandwidth_gbs,
    }
    return {f"device_log_{name}": float(np.log2(size)) for name, size in sizes.items()}


def _scale(values: NDArray[np.int64], allowed: tuple[int, ...]) -> NDArray[Any]:
    """log2 where every allowed value is positive; as they are otherwise (switches, padding)."""
    return np.log2(values) if allowed[0] > 0 else values
