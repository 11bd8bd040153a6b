"""A template: an operator's CUDA source with slots, and everything the rest needs to know about it.

One folder per operator holds `kernel.cu` (the template), `reference.cu` (a float64 reference that runs on the GPU) and
`spec.py`, which builds the `Template` and names it `TEMPLATE`, or `kernel.json`, of which `foreign` builds one; `vendor.py`,
optional, calls PyTorch's kernel for comparison.
`load_template("matmul")` finds it; adding an operator is adding a folder and its list of workloads, conf/op/<op>.yaml.
"""

import hashlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from templates.errors import InputError
from templates.knob import Columns, Config, Knob
from templates.workload import LARGEST, Workload

ROOT = Path(__file__).parent
ALL = "all"
"""Stands for every operator where one can be named: no folder has this name."""
ELEMENT_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True)
class Limits:
    """What one GPU accepts of a launch; bytes are bytes, registers are 32-bit. Defaults: compute capability 9.0."""

    compute_capability: tuple[int, int] = (9, 0)
    threads_per_block: int = 1024
    smem_static_bytes: int = 48 * 1024
    smem_block_bytes: int = 227 * 1024
    registers_per_thread: int = 255
    registers_per_sm: int = 65536
    grid_x: int = 2**31 - 1
    grid_yz: int = 65535


@dataclass(frozen=True)
class Launch:
    """Geometry of one launch. `workspace_bytes` are zeroed once, when allocated; the kernel leaves them reusable."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_smem_bytes: int
    workspace_bytes: int


@dataclass(frozen=True)
class Tensor:
    """A dense row-major array argument of the kernel; inputs are drawn uniformly from [low, high)."""

    name: str
    role: Literal["in", "out"]
    shape: tuple[int, ...]
    dtype: str
    low: float = -1.0
    high: float = 1.0


@dataclass(frozen=True)
class Constraint:
    """A predicate every legal config satisfies, with the reason shown when it does not.

    `holds(config_or_columns, workload, limits)` returns a bool, or a bool array of shape (n,) for columns; write it with
    operators that work on both.
    """

    reason: str
    holds: Callable[[Columns, Workload, Limits], Any]


@dataclass(frozen=True)
class Template:
    """An operator. The kernel's arguments, in order: input pointers, output pointers, `scalars` (int32), workspace pointer
    (null where the launch needs none). `reference.cu` takes: input pointers, `double *reference`, `double *magnitude` (one
    each per output element), then `scalars`; kernel name `reference`, blocks of 256 threads, one thread per output element
    or as many as `reference_threads(workload)` says. It has a slot DTYPE, as the kernel has, where there are several dtypes.

    `error_bound(workload)` is the tolerance e of the check |out - reference| <= e * magnitude, where `magnitude` is the
    scale the rounding errors of that element grow with (for a sum of products: the sum of their absolute values).

    `traffic(columns, workload, derived, sm_count, l2_bytes)`, optional: positive estimates of how data is moved and reused on
    a GPU of that size; the cost model sees their log2.

    `ranges`: least and largest extent of the dims that are not sizes of 1 and more (flags, padding). `flaw(workload)` says
    what is wrong with extents that do not fit together; empty when nothing is. `fixed`: dims that a nearby shape keeps.
    `wrapper`: of a kernel that is not ours (`foreign`), the entry that calls it; its source then has macros for slots.
    """

    op: str
    entry: str
    dims: tuple[str, ...]
    dtypes: tuple[str, ...]
    knobs: tuple[Knob, ...]
    constraints: tuple[Constraint, ...]
    naive: Config
    expert: Callable[[Workload], Config]
    launch: Callable[[Config, Workload], Launch]
    tensors: Callable[[Workload], tuple[Tensor, ...]]
    scalars: Callable[[Workload], tuple[int, ...]]
    flops: Callable[[Workload], float]
    bytes: Callable[[Workload], float]
    error_bound: Callable[[Workload], float]
    reference: Callable[[Mapping[str, np.ndarray], Workload], np.ndarray]
    derived: Callable[[Columns, Workload], dict[str, Any]]
    edge_shapes: Callable[[Config], list[Workload]]
    traffic: Callable[[Columns, Workload, Mapping[str, Any], int, int], dict[str, Any]] | None = None
    reference_threads: Callable[[Workload], int] | None = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    flaw: Callable[[Workload], str] = lambda w: ""
    wrapper: str = ""
    fixed: tuple[str, ...] = ()

    @cached_property
    def knob(self) -> dict[str, Knob]:
        """Knobs by name."""
        return {knob.name: knob for knob in self.knobs}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Knob names in the template's order."""
        return tuple(knob.name for knob in self.knobs)

    @property
    def source_path(self) -> Path:
        """The CUDA file with the slots."""
        return ROOT / self.op / "kernel.cu"

    @property
    def reference_path(self) -> Path:
        """The CUDA file with the float64 reference kernel."""
        return ROOT / self.op / "reference.cu"

    @cached_property
    def version(self) -> str:
        """A short hash of the template's source: measurements of different versions never mix."""
        return hashlib.sha256(self.source_path.read_bytes() + self.wrapper.encode()).hexdigest()[:12]

    def workload(self, dtype: str = "f32", **extents: int) -> Workload:
        """A workload of this operator, its dims in order; InputError for a missing or unknown dim, a shape that is none, or
        a wrong dtype.
        """
        if dtype not in self.dtypes:
            raise InputError(f"{self.op}: dtype {dtype!r} is not supported; use one of {', '.join(self.dtypes)}")
        if set(extents) != set(self.dims):
            raise InputError(f"{self.op}: dimensions {sorted(extents)} given; needed are {', '.join(self.dims)}")
        workload = Workload(self.op, dtype, tuple((dim, extents[dim]) for dim in self.dims))
        for dim, extent in workload.dims:
            least, most = self.range_of(dim)
            if not least <= extent <= most:
                raise InputError(f"workload {workload}: {dim}={extent} is not a size; use {least} to {most}")
        if flaw := self.flaw(workload):
            raise InputError(f"workload {workload}: {flaw}")
        return workload

    def range_of(self, dim: str) -> tuple[int, int]:
        """Least and largest extent of a dim."""
        return self.ranges.get(dim, (1, LARGEST))

    def log_extents(self, workload: Workload) -> np.ndarray:
        """log2 of each extent, of 1 more where it may be 0: what distances between shapes and interpolations go by."""
        return np.log2([extent + (self.range_of(name)[0] == 0) for name, extent in workload.dims])

    def check_workload(self, workload: Workload) -> Workload:
        """The workload itself when it belongs to this operator; InputError otherwise."""
        if workload.op != self.op:
            raise InputError(f"workload {workload}: it belongs to {workload.op}, not to {self.op}")
        return self.workload(workload.dtype, **dict(workload.dims))


def operators() -> list[str]:
    """Names of the operators that have a folder here."""
    return sorted({path.parent.name for name in ("spec.py", "kernel.json") for path in ROOT.glob(f"*/{name}")})


@lru_cache
def load_template(op: str) -> Template:
    """The template of an operator; InputError for an unknown one."""
    if op not in operators():
        raise InputError(f"operator {op!r} is unknown; known: {', '.join(operators())}")
    if not (ROOT / op / "spec.py").is_file():
        from templates import foreign  # it builds on this module

        return foreign.load(ROOT / op)
    template: Template = importlib.import_module(f"templates.{op}.spec").TEMPLATE
    return template
