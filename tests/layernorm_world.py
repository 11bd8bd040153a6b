"""What layernorm's tests share: shapes, and how far an answer is from the right one."""

import numpy as np

from templates.template import Limits, load_template
from templates.workload import Workload
from tests.cpu_run import Arrays

LAYERNORM = load_template("layernorm")
LIMITS = Limits()


def shape(m: int, n: int, dtype: str = "f32") -> Workload:
    return LAYERNORM.workload(dtype, M=m, N=n)


def magnitude(inputs: Arrays, w: Workload) -> np.ndarray:
    """The scale of the rounding errors in roundings of fp32, as the reference kernel has it."""
    x, weight, bias = (np.asarray(inputs[name], dtype=np.float64) for name in ("X", "weight", "bias"))
    deviation = x - x.mean(axis=1, keepdims=True)
    scale = 1.0 / np.sqrt(np.mean(deviation**2, axis=1, keepdims=True) + 1e-5)
    size = np.abs(x).mean(axis=1, keepdims=True)
    arithmetic = (np.abs(deviation) + size) * scale * np.abs(weight) + np.abs(bias)
    smallest, to_type = {"f32": (2.0**-126, 1.0), "f16": (2.0**-14, 2.0**13), "bf16": (2.0**-126, 2.0**16)}[w.dtype]
    rounded = np.abs(deviation * scale * weight + bias) + smallest
    result: np.ndarray = (8.0 + 8.0 * np.sqrt(8.0 + w["N"] / 3072.0)) * arithmetic + to_type * rounded
    return result


def error(y: np.ndarray, inputs: Arrays, w: Workload) -> float:
    """The largest error of an answer in units of what is allowed; NaN where it has one."""
    off = np.abs(y.astype(np.float64) - LAYERNORM.reference(inputs, w))
    return float(np.max(off / (LAYERNORM.error_bound(w) * magnitude(inputs, w))))
