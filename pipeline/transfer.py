"""Transfer to a GPU that is left out, on measured spaces of other tuners: `make transfer CACHES=folder`, or
`python -m pipeline.transfer transfer.folder=... transfer.seeds=10 transfer.kernel_tuner=[]`.

All that the other GPUs' files say is known, and k measurements of the one left out. Leaves courses.jsonl (what each method
measured, in order), summary.json and tables.md in its run folder; an interrupted study goes on where it was.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

from datasets.kernel_tuner_io import read_space
from datasets.measured_space import MeasuredSpace
from pipeline import config
from pipeline.runs import Run, progress, stage
from pipeline.spaces.score import Ruler
from pipeline.spaces.study import Course, Score, TransferSettings, as_json, courses, groups, scores, shown
from pipeline.tables import table
from templates.errors import InputError


@stage("transfer")
def main(settings: config.Settings, run: Run) -> None:
    """Run the study, print the tables, write the results."""
    chosen = settings.transfer
    if chosen.kernel_tuner and find_spec("kernel_tuner") is None:
        run.log.warning("leaves Kernel Tuner's strategies out: pip install kernel-tuner")
        chosen = replace(chosen, kernel_tuner=[])
    found = groups(read_folder(chosen.folder))
    for kernel, group in found.items():
        run.log.info("%s: %s", kernel, ", ".join(f"{space.device} ({len(space.rows)} rows)" for space in group))
    journal = run.folder / "courses.jsonl"
    done = read_courses(journal)
    known = {(c.kernel, c.gpu, c.method, c.seed) for c in done}
    steps = sum(map(len, found.values())) * chosen.seeds * (len(chosen.methods) + len(chosen.kernel_tuner))
    with journal.open("a") as file, progress(steps, "searching") as bar:
        for kernel, group in found.items():
            for course in courses(group, kernel, chosen, settings.cost_model, settings.seed, known, bar.advance):
                file.write(json.dumps(as_json(course)) + "\n")
                file.flush()
                done.append(course)
    rulers = {(kernel, space.device): Ruler.of(space, max(chosen.budgets)) for kernel, group in found.items() for space in group}
    result = scores(done, rulers, chosen.budgets)
    text = tables(result, found, chosen)
    (run.folder / "tables.md").write_text(text)
    gpus = {kernel: [space.device for space in group] for kernel, group in found.items()}
    run.write_summary({"gpus": gpus, "scores": [asdict(score) for score in result]})
    print(text)
    print(f"results: {run.folder}")


def read_folder(folder: str) -> list[MeasuredSpace]:
    """The spaces of all .json and .json.gz files; InputError where there is none."""
    if not folder:
        raise InputError("transfer.folder: name the folder of Kernel Tuner cache files (make transfer CACHES=folder)")
    root = Path(folder).expanduser()
    paths = sorted([*root.glob("*.json"), *root.glob("*.json.gz")]) if root.is_dir() else []
    if not paths:
        raise InputError(f"{root}: no .json or .json.gz files there; name the folder of Kernel Tuner cache files")
    return [read_space(path) for path in paths]


def read_courses(journal: Path) -> list[Course]:
    """What an interrupted study left; a line that was not written to its end is done again."""
    lines = journal.read_text().splitlines(keepends=True) if journal.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    if len(whole) < len(lines):
        journal.write_text("".join(whole))
    return [Course(**{**entry, "times_us": tuple(entry["times_us"])}) for entry in map(json.loads, whole)]


def tables(found: Sequence[Score], spaces: dict[str, list[MeasuredSpace]], settings: TransferSettings) -> str:
    """Per kernel: methods down, budgets across, and the left-out GPUs' P one by one at each budget."""
    parts = []
    for kernel, group in spaces.items():
        methods = shown(found, kernel, settings)
        cell = {(s.gpu, s.method, s.measurements): s for s in found if s.kernel == kernel}
        head = f"{kernel}: {len(group)} GPUs, each left out in turn, {settings.seeds} seeds, batches of {settings.batch}"
        columns = ["P [95 % CI], fraction of optimum (worst GPU)", *(f"k = {k}" for k in settings.budgets)]
        rows = [[m, *(_whole(cell["", m, k]) for k in settings.budgets)] for m in methods]
        parts.append(f"{head}\n\n" + table(columns, rows))
        names = [space.device for space in group]
        rows = [[m, *(" ".join(f"{cell[g, m, k].p:.2f}" for k in settings.budgets) for g in names)] for m in methods]
        parts.append(table([f"P at k = {', '.join(map(str, settings.budgets))}", *names], rows))
    return "\n\n".join(parts) + "\n"


def _whole(score: Score) -> str:
    low, high = score.p_interval
    return f"{score.p:.2f} [{low:.2f} {high:.2f}] {score.fraction:.3f} ({score.worst_fraction:.2f})"


if __name__ == "__main__":
    main()
