"""Operators that are not ours: a kernel in Kernel Tuner's style with a JSON beside it, or nothing but measured parameters.

`templates/<op>/kernel.json` says what a `tune_kernel` call says; docs/adding_an_operator.md has an example. The kernel takes its
parameters as macros and its arguments in any order: a wrapper after it has the order that measuring wants.
"""

import json
import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from templates.errors import InputError
from templates.expressions import Expression
from templates.knob import CATEGORIES, Category, Columns, Config, Knob
from templates.template import ELEMENT_BYTES, Constraint, Launch, Limits, Template, Tensor
from templates.workload import Workload

NEEDED = ("kernel_name", "dims", "problem_size", "arguments", "tune_params", "naive", "flops", "tolerance")
OPTIONAL = (
    "restrictions", "block_size_names", "grid_div_x", "grid_div_y", "grid_div_z", "expert", "bytes", "multiple_of", "categories",
)  # fmt: skip
C_TYPES = {"float32": ("f32", "float"), "float64": ("f64", "double")}
AXES = ("x", "y", "z")
MOST = 2**15 - 1
_BOUNDS = re.compile(r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)")


def template_of_parameters(op: str, values: Mapping[str, Sequence[int]], default: Config) -> Template:
    """A template whose knobs are the parameters (values ascending) and that has no source: it can be searched, not built."""
    reason = "a parameter of the kernel"
    knobs = tuple(Knob(name, "layout", tuple(found), default[name], reason) for name, found in values.items())
    nothing = _nothing(f"{op}: only its recorded timings are known")
    return Template(
        op=op, entry=op, dims=("problem",), dtypes=("f32",), knobs=knobs, constraints=(), naive=dict(default),
        expert=lambda workload: dict(default), launch=nothing, tensors=nothing, scalars=lambda workload: (),
        flops=lambda workload: 1.0, bytes=lambda workload: 1.0, error_bound=nothing, reference=nothing,
        derived=lambda columns, workload: {}, edge_shapes=nothing,
    )  # fmt: skip


def _nothing(why: str) -> Any:
    def nothing(*_: Any) -> NoReturn:
        raise AssertionError(why)

    return nothing


def load(folder: Path) -> Template:
    """The template of a folder with kernel.json, kernel.cu and reference.cu. InputError for whatever is missing or wrong."""
    path = folder / "kernel.json"
    try:
        given = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no JSON ({str(error).splitlines()[0]})") from error
    if not isinstance(given, dict) or (missing := [name for name in NEEDED if name not in given]):
        raise InputError(f"{path}: needs {', '.join(NEEDED if not isinstance(given, dict) else missing)}")
    if unknown := sorted(set(given) - {*NEEDED, *OPTIONAL}):
        raise InputError(f"{path}: {unknown[0]} is unknown; known: {', '.join((*NEEDED, *OPTIONAL))}")
    for name in ("kernel.cu", "reference.cu"):
        if not (folder / name).is_file():
            raise InputError(f"{folder / name}: missing; reference.cu computes the right answer (docs/adding_an_operator.md)")
    return Foreign(folder.name, path, given).template((folder / "kernel.cu").read_text())


class Foreign:
    """What kernel.json says, checked."""

    def __init__(self, op: str, path: Path, given: Mapping[str, Any]) -> None:
        self.op, self.path, self.given = op, path, given
        self.dims = tuple(str(name) for name in given["dims"])
        self.knobs = self._knobs()
        names = tuple(knob.name for knob in self.knobs)
        self.problem = [self._expression("problem_size", text, self.dims) for text in given["problem_size"]][:3]
        self.blocks = [name for name in given.get("block_size_names", [f"block_size_{a}" for a in AXES]) if name in names]
        if not self.blocks:
            raise InputError(f"{path}: no parameter is a block size; name them in block_size_names")
        default = {f"grid_div_{axis}": [f"block_size_{axis}"] if f"block_size_{axis}" in names else [] for axis in AXES}
        self.divisors = [
            [self._expression(key, text, (*names, *self.dims)) for text in given.get(key, default[key])] for key in default
        ]
        self.restrictions = [self._expression("restrictions", t, (*names, *self.dims)) for t in given.get("restrictions", [])]
        for a in given["arguments"]:
            if not isinstance(a, dict) or ("role" not in a and "value" not in a) or not str(a.get("name", "")).isidentifier():
                raise InputError(f"{path}: arguments: {a}: needs a name, and role and shape or a value")
        self.tensors = [self._tensor(a) for role in ("in", "out") for a in given["arguments"] if a.get("role") == role]
        if not any(tensor[1] == "out" for tensor in self.tensors):
            raise InputError(f"{path}: arguments: none has the role out")
        self.scalars = [
            self._expression("arguments", a["value"], self.dims) for a in given["arguments"] if a.get("type") == "int32"
        ]
        self.flops = self._expression("flops", given["flops"], self.dims)
        self.bytes = self._expression("bytes", given["bytes"], self.dims) if "bytes" in given else None
        self.naive = self._config("naive", {})
        self.expert = self._config("expert", self.naive)

    def template(self, source: str) -> Template:
        """All of it as a template."""
        return Template(
            op=self.op, entry=f"{self.op}_entry", dims=self.dims, dtypes=("f32",), knobs=self.knobs,
            constraints=tuple(self._constraints()), naive=self.naive, expert=lambda workload: self.expert, launch=self.launch,
            tensors=lambda w: tuple(self._sized(tensor, w) for tensor in self.tensors),
            scalars=lambda w: tuple(int(scalar(dict(w.dims))) for scalar in self.scalars),
            flops=lambda w: float(self.flops(dict(w.dims))), bytes=self._moved,
            error_bound=lambda w: float(self.given["tolerance"]), derived=self._derived, edge_shapes=self._edges,
            reference=_nothing(f"{self.op}: its reference is reference.cu"), flaw=self._flaw, wrapper=self._wrapper(source),
        )  # fmt: skip

    def launch(self, config: Config, w: Workload) -> Launch:
        """The grid covers the problem, a block as large as its parameters say."""
        values = {**config, **dict(w.dims)}
        grid = [int(extent) for extent in self._grid(values, w)]
        block = [int(config[name]) for name in self.blocks]
        return Launch((grid[0], grid[1], grid[2]), (block + [1, 1, 1])[:3], 0, 0)  # type: ignore[arg-type]

    def _grid(self, values: Mapping[str, Any], w: Workload) -> list[Any]:
        sizes = [expression(dict(w.dims)) for expression in self.problem]
        extents = []
        for size, divisors in zip([*sizes, *[1] * (3 - len(sizes))], self.divisors, strict=True):
            extents.append(np.maximum(1, -(-size // prod((divisor(values) for divisor in divisors), start=1))))
        return extents

    def _derived(self, columns: Columns, w: Workload) -> dict[str, Any]:
        values = {**columns, **dict(w.dims)}
        blocks = prod(np.asarray(extent, dtype=float) for extent in self._grid(values, w))
        return {"threads": prod(np.asarray(columns[name]) for name in self.blocks), "blocks": blocks}

    def _constraints(self) -> list[Constraint]:
        def threads(c: Columns, w: Workload, limits: Limits) -> Any:
            return prod(np.asarray(c[name]) for name in self.blocks) <= limits.threads_per_block

        def grid(c: Columns, w: Workload, limits: Limits) -> Any:
            x, y, z = self._grid({**c, **dict(w.dims)}, w)
            return (x <= limits.grid_x) & (y <= limits.grid_yz) & (z <= limits.grid_yz)

        def restriction(expression: Expression) -> Constraint:
            return Constraint(expression.text, lambda c, w, limits: expression({**c, **dict(w.dims)}))

        fits = [Constraint("the block has more threads than the GPU allows", threads), Constraint("the grid is too large", grid)]
        return [*fits, *map(restriction, self.restrictions)]

    def _knobs(self) -> tuple[Knob, ...]:
        categories = {name: kind for kind, names in self.given.get("categories", {}).items() for name in names}
        if unknown := set(categories.values()) - set(CATEGORIES):
            raise InputError(f"{self.path}: category {sorted(unknown)[0]} is unknown; known: {', '.join(CATEGORIES)}")
        naive = self.given["naive"]
        knobs = []
        for name, values in self.given["tune_params"].items():
            if not isinstance(values, list) or not values or not all(type(v) is int and 0 <= v <= MOST for v in values):
                raise InputError(f"{self.path}: tune_params.{name}: a list of integers from 0 to {MOST} is needed")
            if naive.get(name) not in values:
                raise InputError(f"{self.path}: naive: {name}={naive.get(name)} is not one of {values}")
            category: Category = categories.get(name, "layout")
            knobs.append(Knob(name, category, tuple(sorted(set(values))), naive[name], "a parameter of the kernel"))
        return tuple(knobs)

    def _config(self, key: str, base: Config) -> dict[str, int]:
        config = {**base, **self.given.get(key, {})}
        for knob in self.knobs:
            if config.get(knob.name) not in knob.values:
                raise InputError(f"{self.path}: {key}: {knob.name}={config.get(knob.name)} is not one of {list(knob.values)}")
        return {knob.name: config[knob.name] for knob in self.knobs}

    def _tensor(self, a: Mapping[str, Any]) -> tuple[str, str, str, list[Expression]]:
        if a.get("type") not in C_TYPES or not a.get("name") or not a.get("shape"):
            raise InputError(f"{self.path}: argument {a.get('name')}: an array needs name, shape and type ({', '.join(C_TYPES)})")
        shape = [self._expression("arguments", extent, self.dims) for extent in a["shape"]]
        return a["name"], a["role"], C_TYPES[a["type"]][0], shape

    def _sized(self, tensor: tuple[str, str, str, list[Expression]], w: Workload) -> Tensor:
        name, role, dtype, shape = tensor
        return Tensor(name, "in" if role == "in" else "out", tuple(int(extent(dict(w.dims))) for extent in shape), dtype)

    def _moved(self, w: Workload) -> float:
        if self.bytes is not None:
            return float(self.bytes(dict(w.dims)))
        sized = [self._sized(tensor, w) for tensor in self.tensors]
        return float(sum(prod(tensor.shape) * ELEMENT_BYTES[tensor.dtype] for tensor in sized))

    def _flaw(self, w: Workload) -> str:
        for name, step in self.given.get("multiple_of", {}).items():
            if dict(w.dims).get(name, 0) % step:
                return f"{name} must be a multiple of {step}"
        return ""

    def _edges(self, config: Config) -> list[Workload]:
        """Small shapes, multiples where the kernel wants such."""
        steps = self.given.get("multiple_of", {})
        return [
            Workload(self.op, "f32", tuple((dim, size * steps.get(dim, 1)) for dim in self.dims)) for size in (1, 7, 33, 130)
        ]

    def _expression(self, key: str, text: Any, names: tuple[str, ...]) -> Expression:
        return Expression(text, names, f"{self.path}: {key}")

    def _wrapper(self, source: str) -> str:
        """The entry: inputs, outputs, integers, workspace; the kernel gets them in its own order, other numbers as literals."""
        ours = [f"{'float' if dtype == 'f32' else 'double'} *{name}" for name, _, dtype, _ in self.tensors]
        ours += [f"int {a['name']}" for a in self.given["arguments"] if a.get("type") == "int32"]
        theirs = []
        for a in self.given["arguments"]:
            literal = "role" not in a and a.get("type") in C_TYPES
            if a.get("type") not in (*C_TYPES, "int32"):
                known = ", ".join((*C_TYPES, "int32"))
                raise InputError(f"{self.path}: argument {a.get('name')}: type {a.get('type')} is unknown; known: {known}")
            theirs.append(f"{float(a['value'])!r}{'f' if a['type'] == 'float32' else ''}" if literal else a["name"])
        bounds = _BOUNDS.search(source)
        head = f'extern "C" __global__ void {bounds[0] + " " if bounds else ""}{self.op}_entry'
        arguments = ", ".join([*ours, "void *workspace"])
        return f"{head}({arguments})\n{{\n    {self.given['kernel_name']}({', '.join(theirs)});\n}}\n"
