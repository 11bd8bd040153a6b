"""What the report was made from: runs, versions, seeds, and the ends of their logs."""

import json
from pathlib import Path
from typing import Any

from pipeline.reporting.section import Section, Table
from pipeline.reporting.sources import STAGES, Material, RunFiles
from templates.errors import InputError

LINES = 15
"""Of each log."""


def section(material: Material) -> Section:
    """A line per run, and its log's end. InputError where there is no run at all."""
    runs = [material.runs[stage] for stage in STAGES if stage in material.runs]
    if not runs:
        raise InputError(
            f"no run on {material.template.op} yet: `make evaluate ARGS=op={material.template.op}` makes all of them"
        )
    rows = [_line(run) for run in runs]
    header = ["stage", "run", "state", "seed", "commit", "Python", "PyTorch", "XGBoost", "nvcc"]
    tables = [Table("Runs", header, rows, fold=False), *(_log(run) for run in runs)]
    return Section("runs", "Runs behind this page", tables=tables, notes=[run.problem for run in runs if run.problem])


def _line(run: RunFiles) -> list[str]:
    known = _versions(run.folder / "versions.json")
    packages = known.get("packages")
    named = packages if isinstance(packages, dict) else {}
    commit = str(known.get("git") or "-")[:12]
    facts = (known.get("seed"), commit, known.get("python"), named.get("torch"), named.get("xgboost-cpu"), known.get("nvcc"))
    return [run.stage, run.folder.name, run.state, *("-" if fact is None else str(fact) for fact in facts)]


def _versions(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _log(run: RunFiles) -> Table:
    try:
        lines = (run.folder / "log.txt").read_text(errors="replace").splitlines()[-LINES:]
    except OSError:
        lines = []
    return Table(f"End of the log of {run.stage}", ["line"], [[line] for line in lines] or [["(no log)"]])
