"""What the suites over all operators share: the cases, configs that cover every knob's values, shapes that cover every size,
right answers from the operator's own reference kernel, and the verdict on an output.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from datasets import split
from templates.knob import config_text, configs_of
from templates.render import render_reference
from templates.space import canonical, legal, sample, violations
from templates.template import Launch, Limits, Template, Tensor, load_template, operators
from templates.workload import Workload
from tests.cpu_run import UNIT_ROUNDOFF, Arrays, Binary, Job, KernelFault, Sanitizer, compile_program, program

LIMITS = Limits()
CASES = [(op, dtype) for op in operators() for dtype in load_template(op).dtypes]
IDS = [f"{op}/{dtype}" for op, dtype in CASES]
SEED = int(os.environ.get("CPU_SEED", "0"))


def count(variable: str, default: int, template: Template, dtype: str) -> int:
    """How many configs to try: the environment variable or the default for an operator's first dtype, a third for others."""
    n = int(os.environ.get(variable, default))
    return n if dtype == template.dtypes[0] else -(-n // 3)


def listed(template: Template, dtype: str) -> list[Workload]:
    """Every workload of conf/op/<op>.yaml, in this dtype; those listed in it first."""
    every = [w for workloads in split.workloads(template.op).values() for w in workloads]
    return list(dict.fromkeys([w for w in every if w.dtype == dtype] + [replace(w, dtype=dtype) for w in every]))


def with_value(template: Template, w: Workload, knob: str, value: int, rng: np.random.Generator) -> Iterator[dict[str, int]]:
    """Random legal configs that have a value which `sample` may be too unlikely to draw."""
    for _ in range(4):
        drawn = {k.name: rng.choice(np.array(k.values), size=4096) for k in template.knobs}
        columns = canonical(template, {**drawn, knob: np.full(4096, value)})
        keep = np.flatnonzero(legal(template, columns, w, LIMITS) & (columns[knob] == value))
        yield from configs_of({name: column[keep] for name, column in columns.items()})


def first_with_value(
    template: Template, workloads: Sequence[Workload], knob: str, value: int, rng: np.random.Generator,
    accept: Callable[[dict[str, int]], bool] = lambda config: True,
) -> dict[str, int] | None:  # fmt: skip
    """A legal, acceptable config of one of the workloads in which the knob has this value; None where there is none."""
    for i in rng.permutation(len(workloads)):
        for config in with_value(template, workloads[i], knob, value, rng):
            if accept(config):
                return config
    return None


@cache
def values_of(op: str, dtype: str) -> frozenset[tuple[str, int]]:
    """(knob, value) of every value that is legal on a listed workload in this dtype: a vector of 8 floats is not."""
    template, rng = load_template(op), np.random.default_rng(0)
    every = [(knob.name, value) for knob in template.knobs for value in knob.values]
    return frozenset(pair for pair in every if first_with_value(template, listed(template, dtype), *pair, rng))


def configs(template: Template, dtype: str, n: int, rng: np.random.Generator, threads: int = 1024) -> list[dict[str, int]]:
    """n distinct configs: the naive one, experts' for a quarter, then random legal ones, each with a knob's value that none
    before has while there is one. At most that many threads per block.
    """
    workloads = listed(template, dtype)

    def small(config: dict[str, int]) -> bool:
        return int(template.derived(config, workloads[0])["threads"]) <= threads

    experts = [dict(template.expert(workloads[i])) for i in rng.permutation(len(workloads))]
    chosen = _distinct([c for c in [dict(template.naive), *experts] if small(c)])[: max(2, n // 4)]
    pairs = [(knob.name, value) for knob in template.knobs for value in knob.values]
    for i in rng.permutation(len(pairs)):
        if len(chosen) < n and not any(config[pairs[i][0]] == pairs[i][1] for config in chosen):
            found = first_with_value(template, workloads, *pairs[i], rng, small)
            chosen += [found] if found else []
    while len(chosen) < n:
        w = workloads[rng.integers(len(workloads))]
        chosen = _distinct(chosen + [c for c in sample(template, w, LIMITS, 8, rng) if small(c)][:2])
    return chosen[:n]


def _distinct(configs: list[dict[str, int]]) -> list[dict[str, int]]:
    return list({config_text(config): config for config in configs}.values())


def edges(template: Template, dtype: str, config: dict[str, int]) -> list[Workload]:
    """The edge shapes of a config; in another dtype than the template gives them, those that are legal there."""
    given = [(w, replace(w, dtype=dtype)) for w in template.edge_shapes(config)]
    return [w for own, w in given if own == w or not violations(template, config, w, LIMITS)]


def shapes(template: Template, dtype: str, config: dict[str, int], most_flops: float) -> list[Workload]:
    """The edge shapes of a config, cheap ones first; those of more FLOPs only for a size that no other has."""
    chosen: list[Workload] = []
    for w in sorted(edges(template, dtype, config), key=template.flops):
        new = any(w[dim] not in {other[dim] for other in chosen} for dim in template.dims)
        if new or template.flops(w) <= most_flops:
            chosen.append(w)
    return chosen


@dataclass(frozen=True)
class Answers:
    """Right outputs of one workload in float64, all in a row, and the scale each one's rounding errors grow with."""

    reference: np.ndarray
    magnitude: np.ndarray


@cache
def reference_binary(op: str, dtype: str, sanitize: Sanitizer = "none") -> Binary:
    """An operator's reference.cu, compiled for the CPU."""
    template = load_template(op)
    w = listed(template, dtype)[0]
    inputs = sum(tensor.role == "in" for tensor in template.tensors(w))
    text = program([render_reference(template, dtype)], "reference", inputs + 2, len(template.scalars(w)), workspace=False)
    return compile_program(text, sanitize)


def answers(
    template: Template, jobs: Sequence[tuple[Workload, Arrays]], sanitize: Sanitizer = "none"
) -> list[Answers]:
    """What the reference kernel says of each workload with its inputs, all of one dtype."""
    launches = [_reference_job(template, w, inputs) for w, inputs in jobs]
    found = []
    for result in reference_binary(template.op, jobs[0][0].dtype, sanitize).run(launches):
        assert not isinstance(result, KernelFault), result
        found.append(Answers(result["reference"], result["magnitude"]))
    return found


def _reference_job(template: Template, w: Workload, inputs: Arrays) -> Job:
    ins = [tensor for tensor in template.tensors(w) if tensor.role == "in"]
    total = sum(int(np.prod(tensor.shape)) for tensor in template.tensors(w) if tensor.role == "out")
    outs = [Tensor(name, "out", (total,), "f64") for name in ("reference", "magnitude")]
    threads = template.reference_threads(w) if template.reference_threads else total
    launch = Launch((-(-threads // 256), 1, 1), (256, 1, 1), 0, 0)
    return Job(0, launch, (*ins, *outs), template.scalars(w), inputs, label=f"reference of {w}")


def outputs_in_a_row(template: Template, w: Workload, outputs: Arrays) -> np.ndarray:
    """All outputs of a workload as one float64 array."""
    return np.concatenate([outputs[t.name].astype(np.float64).ravel() for t in template.tensors(w) if t.role == "out"])


def errors(out: np.ndarray, right: np.ndarray, tolerance: np.ndarray) -> np.ndarray:
    """|out - right| / tolerance of each element: 0 where both are NaN or the same infinity, infinite where only one is."""
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(out - right) / tolerance
    same = (out == right) | (np.isnan(out) & np.isnan(right))
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


def judge(template: Template, w: Workload, result: Arrays | KernelFault, right: Answers) -> str:
    """What is wrong with one result; empty when it is right."""
    if isinstance(result, KernelFault):
        return str(result)
    tolerance = template.error_bound(w) * right.magnitude
    worst = float(np.max(errors(outputs_in_a_row(template, w, result), right.reference, tolerance)))
    return "" if worst <= 1.0 else f"{w}: error {worst:.3g} of the bound"


def roundoff(template: Template, w: Workload) -> float:
    """The unit roundoff of the outputs' dtype, the coarsest if they differ."""
    return max(UNIT_ROUNDOFF[tensor.dtype] for tensor in template.tensors(w) if tensor.role == "out")
