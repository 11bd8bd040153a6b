"""What a report is made from: an operator's newest runs, or a named one with those it stands on, and the measured rows."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import pandas as pd
import yaml  # type: ignore[import-untyped]

from datasets import store
from datasets.device import H200, Device
from datasets.store import gpu_key
from pipeline.runs import latest
from templates.errors import InputError, NothingToDo
from templates.template import ALL, Template

STAGES = ("collect", "fit", "pretrain", "finetune", "evaluate", "tune")
T = TypeVar("T")


@dataclass(frozen=True)
class RunFiles:
    """One run's folder. `summary` is empty where there is none to read, and `problem` says why."""

    stage: str
    folder: Path
    state: str
    summary: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    def part(self, name: str, kind: type[T]) -> T:
        """A part of the summary; InputError where it is missing or something else."""
        if self.problem:
            raise InputError(self.problem)
        found = self.summary.get(name)
        if not isinstance(found, kind):
            raise InputError(f"{self.folder / 'summary.json'}: no usable {name!r}; run `make {self.stage}` again")
        return found

    def parts(self, name: str, kind: type[T]) -> list[T]:
        """A list of the summary as dataclasses of one kind; what they do not know is passed over."""
        entries: list[Any] = self.part(name, list)
        return [parsed(kind, entry, f"{self.folder / 'summary.json'}: {name}[{i}]") for i, entry in enumerate(entries)]


def parsed(kind: type[T], entry: Any, where: str) -> T:
    """A dataclass of plain fields from a JSON object; InputError where a field is missing or of another type."""
    if not isinstance(entry, dict):
        raise InputError(f"{where} is no object; run the stage again")
    hints, values = get_type_hints(kind), {}
    for each in dataclasses.fields(kind):  # type: ignore[arg-type]
        if each.name not in entry:
            if each.default is dataclasses.MISSING:
                raise InputError(f"{where} has no {each.name!r}; run the stage again")
            continue
        value = entry[each.name]
        if not _fits(value, hints[each.name]):
            raise InputError(f"{where}: {each.name} is {str(value)[:40]!r}; run the stage again")
        values[each.name] = value
    return kind(**values)


def _fits(value: Any, hint: Any) -> bool:
    if hint in (int, float, float | None):
        if value is None:
            return bool(hint == float | None)
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, hint) if isinstance(hint, type) and hint is not Any else True


@dataclass(frozen=True)
class Material:
    """Everything the sections draw on. `rows`: measured rows of the operator's present template on one GPU, failures included."""

    template: Template
    runs: Mapping[str, RunFiles]
    device: Device
    rows: pd.DataFrame
    rows_problem: str = ""
    workload: str = ""
    seed: int = 0

    def run(self, stage: str) -> RunFiles:
        """A stage's run; InputError that says which command makes one."""
        if stage not in self.runs:
            op = self.template.op
            command = f"make tune OP={op} SHAPE=..." if stage == "tune" else f"make {stage} ARGS=op={op}"
            raise InputError(f"no {stage} run on {op} yet: run `{command}`")
        return self.runs[stage]

    def measured(self) -> pd.DataFrame:
        """The rows; InputError where there are none."""
        if self.rows.empty:
            op, gpu = self.template.op, self.device.name
            raise InputError(self.rows_problem or f"nothing measured of {op} on {gpu}: run `make collect ARGS=op={op}`")
        return self.rows

    @cached_property
    def timed(self) -> pd.DataFrame:
        """Rows of our own kernels that have a time."""
        rows = self.measured()
        return rows[(rows["status"] == "ok") & (rows["origin"] != "vendor")]

    @cached_property
    def fair(self) -> pd.DataFrame:
        """The random ones among them: the only fair sample of the legal space. InputError where there are none."""
        rows = self.timed[self.timed["origin"] == "random"]
        if rows.empty:
            raise InputError(f"no random configs measured of {self.template.op}: run `make collect ARGS=op={self.template.op}`")
        return rows


def find_runs(outputs: Path, op: str, named: Path | None = None) -> dict[str, RunFiles]:
    """Each stage's last complete run on an operator, or else its newest one; of `named`, that one and those it stands on."""
    found = {stage: latest(stage, outputs, op) or _newest(outputs / stage, op) for stage in STAGES}
    folders = {stage: folder for stage, folder in found.items() if folder is not None}
    if named is not None:
        folders |= _foundations(named, op) | {stage_of(named): named}
    return {stage: read_run(stage, folder) for stage, folder in folders.items()}


def stage_of(folder: Path) -> str:
    """Which stage a run's folder belongs to; InputError where it is none."""
    folder = folder.resolve()
    if not folder.is_dir():
        raise InputError(f"RUN={folder}: no such folder; name one of outputs/<stage>/<time>")
    if folder.parent.name not in STAGES or not (folder / "config.yaml").exists():
        raise InputError(f"RUN={folder}: not a run of {', '.join(STAGES)}; name a folder outputs/<stage>/<time>")
    return folder.parent.name


def op_of(folder: Path) -> str:
    """The operator of a run, from its settings."""
    stage_of(folder)
    try:
        return str(yaml.safe_load((folder / "config.yaml").read_text())["op"]["name"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / 'config.yaml'}: damaged ({type(error).__name__}); name another run") from error


def _newest(parent: Path, op: str) -> Path | None:
    """The newest run of an operator that did not end."""
    for folder in sorted(parent.iterdir(), reverse=True) if parent.is_dir() else []:
        if folder.is_dir() and not folder.is_symlink() and (folder / "config.yaml").exists():
            with contextlib.suppress(InputError):  # a damaged one is nobody's
                ended = _json(folder / "state.json")[0].get("state") == "complete"  # and did not cover the operator
                if not ended and op_of(folder) in (op, ALL) and not (folder / "runs.json").exists():
                    return folder
    return None


def part_of(folder: Path, op: str) -> Path:
    """A run as far as it is on one operator: itself, or its part where it consists of runs on each. NothingToDo for another's."""
    parts, found = _json(folder / "runs.json")[0], op_of(folder)
    if parts and op in parts and stage_of(folder):
        return folder.resolve().parent / str(parts[op])
    if parts or found not in (op, ALL):
        raise NothingToDo(f"RUN={folder} is a run on {', '.join(parts) or found}: add ARGS=op={next(iter(parts), found)}")
    return folder


def _foundations(folder: Path, op: str) -> dict[str, Path]:
    """The runs that a run says it stands on, as far as they are still there, and those that these stand on."""
    facts = _json(folder / "stands_on.json")[0]
    found: dict[str, Path] = {}
    for stage in STAGES:
        name = facts.get(stage) or facts.get(f"{stage} of {op}")
        below = folder.resolve().parents[1] / stage / str(name)
        if name and below.is_dir():
            found = _foundations(below, op) | found | {stage: below}
    return found


def read_run(stage: str, folder: Path) -> RunFiles:
    """A run's summary; what is wrong with it is noted instead of raised."""
    state = str(_json(folder / "state.json")[0].get("state", "unknown"))
    summary, problem = _json(folder / "summary.json")
    if state != "complete" and not summary:
        problem = f"the {stage} run in {folder} has not ended: the command that began it continues it"
    elif problem:
        problem = f"{problem}; run `make {stage}` again"
    return RunFiles(stage, folder, state, summary, problem)


def _json(path: Path) -> tuple[dict[str, Any], str]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}, f"{path}: missing"
    except (OSError, ValueError) as error:
        return {}, f"{path}: damaged ({type(error).__name__})"
    return (content, "") if isinstance(content, dict) else ({}, f"{path}: damaged (no object)")


def device_of(runs: Mapping[str, RunFiles], roots: list[Path], recorded: str) -> Device:
    """The GPU that the newest of these runs is about, or else the recorded one."""
    named = [gpu_key(str(run.summary["gpu"])) for stage in reversed(STAGES) if (run := runs.get(stage)) and "gpu" in run.summary]
    for key in [*named, recorded]:
        for root in roots:
            if (path := root / key / "device.json").is_file():
                return Device.load(path)
    if recorded == H200.key:
        return H200
    raise InputError(f"gpu.recorded={recorded}: no such recording in {', '.join(map(str, roots))}")


def load_rows(template: Template, device: Device, roots: list[Path]) -> tuple[pd.DataFrame, str]:
    """(rows of the present template on this GPU, what is wrong with them or nothing)."""
    found = [root for root in roots if root.is_dir()]
    try:
        frame = store.load(found, op=template.op, gpu=device.key)
    except InputError as error:
        return pd.DataFrame(), str(error)
    kept = frame[frame["template_version"].isin([template.version, ""]) | (frame["origin"] == "vendor")]
    return kept.reset_index(drop=True), ""
