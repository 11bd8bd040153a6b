"""A measured search space: the parameters of one kernel on one GPU, and what became of the configs that were tried.

What other tuners leave in their files, with our words for outcomes; `kernel_tuner_io` reads and writes it. Values may be
numbers, text or booleans here: the knobs of our own templates are integers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from datasets.measurement import STATUSES, Measurement, Origin, Status
from datasets.schema import measurement_of
from templates.errors import InputError
from templates.template import Template
from templates.workload import Workload

Value = int | float | str | bool


@dataclass(frozen=True)
class Parameter:
    """One choice, its values in their order."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Row:
    """One attempt. `values` in the order of the space's parameters; `time_us` is None unless `status` is "ok"."""

    values: tuple[Value, ...]
    status: Status
    time_us: float | None = None
    samples_us: tuple[float, ...] = ()
    message: str = ""
    compile_s: float | None = None
    measured_at: str = ""
    origin: Origin = "guided"

    def __post_init__(self) -> None:
        if (self.status == "ok") != (self.time_us is not None):
            raise AssertionError(f"a {self.status} row with time_us={self.time_us}")


@dataclass(frozen=True)
class MeasuredSpace:
    """Rows of distinct configs. `problem`: the extents, where they are numbers. `about`: what only our own files say
    (workload, template_version, nvcc, driver). `notes`: what was odd about the file, a line each.
    """

    kernel: str
    device: str
    problem: tuple[int, ...]
    parameters: tuple[Parameter, ...]
    rows: tuple[Row, ...]
    about: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names in order."""
        return tuple(parameter.name for parameter in self.parameters)

    @property
    def statuses(self) -> dict[str, int]:
        """How many rows have each status, in the order of `STATUSES`."""
        found = [row.status for row in self.rows]
        return {status: found.count(status) for status in STATUSES if status in found}  # type: ignore[arg-type]

    @property
    def best(self) -> Row | None:
        """The fastest row; None where nothing ran."""
        timed = [row for row in self.rows if row.time_us is not None]
        return min(timed, key=lambda row: row.time_us or 0.0) if timed else None


def space_of(frame: pd.DataFrame, template: Template, workload: Workload) -> MeasuredSpace:
    """One workload's rows on one GPU as a space; of several timings of a config the middle one counts.

    The vendor's rows and contaminated timings stay out. InputError where nothing is left, or several GPUs are in the frame.
    """
    rows = frame[(frame["workload"] == str(workload)) & (frame["template_version"] == template.version)]
    rows = rows[(rows["config"] != "") & (rows["status"] != "contaminated")]
    if rows.empty:
        raise InputError(f"{workload}: no rows of the present {template.op} template; run `make collect` or name another")
    if len(gpus := sorted(set(rows["gpu"]))) > 1:
        raise InputError(f"{workload}: rows of several GPUs ({', '.join(gpus)}); name one with gpu=")
    middle = [_middle(group) for _, group in rows.groupby("config", sort=True)]
    first = middle[0]
    about = {"workload": str(workload), "template_version": template.version, "nvcc": first.nvcc, "driver": first.driver}
    parameters = tuple(Parameter(knob.name, knob.values) for knob in template.knobs)
    return MeasuredSpace(
        template.entry, gpus[0], tuple(extent for _, extent in workload.dims), parameters,
        tuple(_row(measurement, template) for measurement in middle), {k: v for k, v in about.items() if v},
    )  # fmt: skip


def _middle(group: pd.DataFrame) -> Measurement:
    """The timing in the middle of a config's, or its last failure where it never ran."""
    timed = group[group["status"] == "ok"].sort_values("time_us", kind="stable")
    return measurement_of(timed.iloc[(len(timed) - 1) // 2] if len(timed) else group.iloc[-1])


def _row(m: Measurement, template: Template) -> Row:
    values = tuple(m.config[name] for name in template.names)
    return Row(values, m.status, m.time_us, m.samples_us, m.message, m.compile_s, m.measured_at, m.origin)


def measurements_of(space: MeasuredSpace, template: Template, workload: Workload) -> list[Measurement]:
    """A space's rows as measurements of one of our operators. InputError where the parameters are not its knobs, or the file
    was written for another version of its template.
    """
    if set(space.names) != set(template.names):
        odd = sorted(set(space.names) ^ set(template.names))[0]
        raise InputError(f"{space.kernel}: its parameters are not the knobs of {template.op} ({odd} differs)")
    version = space.about.get("template_version", template.version)
    if version != template.version:
        raise InputError(f"{space.kernel}: of version {version} of the {template.op} template, which is now {template.version}")
    return [_measurement(space, row, template, workload) for row in space.rows]


def _measurement(space: MeasuredSpace, row: Row, template: Template, workload: Workload) -> Measurement:
    config: dict[str, int] = {}
    for name, value in zip(space.names, row.values, strict=True):
        if value not in template.knob[name].values:
            raise InputError(f"{space.kernel}: {name}={value} is not a value that {template.op} has")
        config[name] = int(value)
    return Measurement(
        workload, config, row.status, row.message, row.time_us, row.samples_us, row.origin, gpu=space.device,
        nvcc=space.about.get("nvcc", ""), driver=space.about.get("driver", ""), template_version=template.version,
        compile_s=row.compile_s, measured_at=row.measured_at,
    )  # fmt: skip


def by_kernel(spaces: Sequence[MeasuredSpace]) -> dict[str, list[MeasuredSpace]]:
    """Spaces of the same kernel, problem and parameters, the names of the GPUs in order; one key for each such group."""
    groups: dict[str, list[MeasuredSpace]] = {}
    for space in sorted(spaces, key=lambda s: s.device):
        known = [key for key, group in groups.items() if _alike(group[0], space)]
        key = known[0] if known else space.kernel if space.kernel not in groups else f"{space.kernel} {space.problem}"
        groups.setdefault(key, []).append(space)
    return groups


def _alike(one: MeasuredSpace, other: MeasuredSpace) -> bool:
    return (one.kernel, one.problem, one.names) == (other.kernel, other.problem, other.names)
