"""What the evaluations of single operators come to together: every workload counts alike, whatever its operator."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.plots import draw_regret
from pipeline.records import Pick, Yardstick, cells, read_seed_records, records
from pipeline.tables import duels, duels_table, methods_table, operators_table
from templates.workload import Workload

COMPARED = ("policy", "cost_model")
"""The methods of the table by operator: everything together, and the control that is hardest to beat with nothing measured."""


@dataclass(frozen=True)
class Part:
    """One operator's evaluation, as its run left it."""

    world: str
    records: list[dict[str, Any]]
    picks: list[Pick]
    yardsticks: dict[Workload, Yardstick]
    regret: dict[str, np.ndarray]

    @staticmethod
    def read(folder: Path) -> "Part":
        """From a run's folder."""
        summary = json.loads((folder / "summary.json").read_text())
        yardsticks = {Workload.parse(text): Yardstick(**known) for text, known in summary["best_known"].items()}
        with np.load(folder / "regret.npz", allow_pickle=False) as stored:
            regret = {name: stored[name] for name in stored.files}
        return Part(summary["world"], summary["records"], read_seed_records(folder / "seeds.parquet"), yardsticks, regret)


def overall(folders: Mapping[str, Path], target: Path, tie: float) -> tuple[str, dict[str, Any]]:
    """The tables as text, and the content of summary.json; leaves regret.png and regret.svg in the target folder."""
    parts = {op: Part.read(folder) for op, folder in folders.items()}
    picks = [pick for part in parts.values() for pick in part.picks]
    yardsticks = {w: known for part in parts.values() for w, known in part.yardsticks.items()}
    found, joint = records(picks, yardsticks, next(iter(parts.values())).world), cells(picks, yardsticks)
    wins = duels(found, "policy", tie)
    world = " / ".join(dict.fromkeys(part.world for part in parts.values()))
    title = f"{len(parts)} operators, {len(yardsticks)} workloads, {world}"
    by_operator = {op: cells(part.picks, part.yardsticks) for op, part in parts.items()}
    tables = [methods_table(joint), operators_table(by_operator, COMPARED), *([duels_table(wins)] if wins else [])]
    names = [name for name in next(iter(parts.values())).regret if all(name in part.regret for part in parts.values())]
    draw_regret({name: np.hstack([part.regret[name] for part in parts.values()]) for name in names}, target, title)
    summary = {
        "world": world,
        "runs": {op: folder.name for op, folder in folders.items()},
        "records": [record for part in parts.values() for record in part.records],
        "methods": [asdict(cell) for cell in joint],
        "duels": [asdict(duel) for duel in wins],
    }
    return "\n\n".join([title, *tables]) + "\n", summary
