"""Compare the policy with every control on held-out workloads: `make evaluate`, or
`python -m pipeline.evaluate evaluate.seeds=10 evaluate.methods=[random,policy]`.

Replays recorded timings where there is no GPU, measures live where there is one. Leaves summary.json, tables.md, seeds.parquet,
regret.npz, regret.png, regret.svg and, live, the measurements in its run folder.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from cost_model.model import CostModel
from datasets import split, store
from datasets.device import Device
from datasets.schema import frame_of, measurement_of
from pipeline import config, worlds
from pipeline.baselines.vendor import missing
from pipeline.evaluation import EvaluateSettings, Evaluation, Journal, check_apart, evaluate
from pipeline.measure.measurer import Measurer
from pipeline.overall import overall
from pipeline.plots import draw_regret
from pipeline.records import Cell, Record, cells, records, write_seed_records
from pipeline.runs import Run, progress, stage
from pipeline.strategies.catalogue import Ingredients, factories
from pipeline.strategies.known_good import known_good
from pipeline.strategies.trial import rounds
from pipeline.tables import Line, duels, duels_table, methods_table, workloads_table
from pipeline.training_rows import training_rows
from pipeline.view import View, Watched
from templates.errors import InputError, NothingToDo
from templates.knob import parse_config
from templates.template import Template, load_template
from templates.workload import Workload

if TYPE_CHECKING:
    from pipeline.policy.iql import Policy


def together(settings: config.Settings, run: Run, folders: Mapping[str, Path]) -> None:
    """The tables over all operators."""
    text, summary = overall(folders, run.folder, settings.evaluate.tie)
    (run.folder / "tables.md").write_text(text)
    run.write_summary(summary)
    print(text)
    print(f"results: {run.folder}")


@stage("evaluate", each=True, overall=together)
def main(settings: config.Settings, run: Run) -> None:
    """Evaluate, print the tables, write the results."""
    template = load_template(settings.op.name)
    workloads = chosen(template, settings.evaluate)
    recorded, data = config.path(settings.recorded_dir), config.path(settings.data_dir)
    settings = without_vendor(settings, run)
    measurer = worlds.open_measurer(settings.gpu, settings.farm, recorded, [template.op], run.folder)
    try:
        run.stands_on(gpu=measurer.device.name, source=measurer.source, template=template.version)
        workloads, unrecorded = at_hand(workloads, measurer, bool(settings.evaluate.workloads))
        if unrecorded:
            run.log.warning("leaves out what has no recorded timings: %s", ", ".join(map(str, unrecorded)))
        frame = known_rows(template, measurer.device, settings.gpu.recorded, [recorded, data])
        ingredients = gather(settings, template, measurer.device, frame, workloads, run)
        result = compete(ingredients, workloads, measurer, settings, frame, journal_of(run) if measurer.source == "gpu" else None)
        stats: dict[str, Any] = getattr(measurer, "stats", dict)()
    finally:
        measurer.close()
    report(replace(result, left_out=[*unrecorded, *result.left_out]), template, measurer, settings, run, stats)


def at_hand(workloads: Sequence[Workload], measurer: Measurer, named: bool) -> tuple[list[Workload], list[Workload]]:
    """The workloads that can be measured, and the rest: those a replay knows nothing of.

    NothingToDo when none can; InputError for one that the user named.
    """
    unrecorded = [w for w in workloads if measurer.known(w) == []]
    if unrecorded and named:
        raise InputError(f"{unrecorded[0]}: nothing recorded to replay; collect it first or leave it out (evaluate.workloads)")
    if len(unrecorded) == len(workloads):
        raise NothingToDo(f"no recorded timings of the {workloads[0].op} workloads to evaluate on: run `make collect` on a GPU")
    return [w for w in workloads if w not in unrecorded], unrecorded


def without_vendor(settings: config.Settings, run: Run) -> config.Settings:
    """The settings less the vendor's kernel where it would have to be measured and cannot be."""
    chosen = settings.evaluate
    if "vendor" not in chosen.methods or worlds.replays(settings.gpu, settings.farm) or (reason := missing()) is None:
        return settings
    run.log.warning("leaves the vendor out: %s", reason)
    return replace(settings, evaluate=replace(chosen, methods=[name for name in chosen.methods if name != "vendor"]))


def chosen(template: Template, settings: EvaluateSettings) -> list[Workload]:
    """The workloads to evaluate on; InputError for an unknown split, or a named workload that is not in it."""
    lists = split.workloads(template.op)
    if settings.split not in lists:
        raise InputError(f"evaluate.split={settings.split} is unknown; use one of {', '.join(lists)}")
    named = split.named(template.op, settings.workloads, "evaluate.workloads")
    for workload in named:
        if workload not in lists[settings.split]:
            raise InputError(f"evaluate.workloads: {workload} is not in the {settings.split} list of conf/op/{template.op}.yaml")
    return named or lists[settings.split]


def known_rows(template: Template, device: Device, recorded_key: str, roots: Sequence[Path]) -> pd.DataFrame:
    """What is recorded of this operator on this GPU, or else on the recorded one; NothingToDo when that is nothing."""
    for key in (device.key, recorded_key):
        found = [root for root in roots if root.is_dir() and store.files(root, template.op, key)]
        if found:
            frame = store.load(found, op=template.op, gpu=key)
            frame = frame[frame["template_version"].isin([template.version, ""])]
            if len(frame):
                return frame.reset_index(drop=True)
    raise NothingToDo(f"no timings of the present {template.op} template in {', '.join(map(str, roots))}: run `make collect`")


def gather(
    settings: config.Settings, template: Template, device: Device, frame: pd.DataFrame, workloads: Sequence[Workload], run: Run
) -> Ingredients:
    """Known-good configs, cost model and policy, checked to know nothing of the workloads they are judged on."""
    roots = [config.path(settings.recorded_dir), config.path(settings.data_dir)]
    trained = training_rows(template, device, settings.gpu.recorded, roots)
    check_apart(workloads, list(trained["workload"].unique()), "the list of known-good configs")
    cost_model = CostModel.load(run.need("fit") / "cost_model")
    check_apart(workloads, [str(w) for w, _ in cost_model.data.means], "the cost model")
    wanted = {"policy", "policy_zero_shot"} & set(settings.evaluate.methods)
    policy = load_policy(settings.evaluate, workloads, run) if wanted else None
    fair = frame[frame["origin"] == "random"].groupby("workload")["config"]
    pools = {str(text): [parse_config(c) for c in sorted(set(configs))] for text, configs in fair}
    return Ingredients(device, known_good(trained, template), cost_model, policy, pools)


def load_policy(settings: EvaluateSettings, workloads: Sequence[Workload], run: Run) -> "Policy":
    """The policy of the newest fine-tuning, or else pretraining, run."""
    from pipeline.policy.iql import Policy  # loads PyTorch and d3rlpy: seconds that the controls alone do not need

    order = ("finetune", "pretrain") if settings.policy == "latest" else (settings.policy,)
    folder = next((found for found in map(run.latest, order) if found is not None), None) or run.need(order[-1])
    run.log.info("evaluates the policy of %s", folder)
    check_apart(workloads, trained_on(folder), "the policy")
    return Policy.load(folder / "policy")


def trained_on(folder: Path) -> list[str]:
    """The workloads that a training run says it learnt from; those it only watched have another split beside them."""
    entries = json.loads((folder / "summary.json").read_text()).get("workloads")
    if not entries:
        raise InputError(f"{folder}/summary.json does not say which workloads the policy was trained on; train it again")
    return [e if isinstance(e, str) else e["workload"] for e in entries if isinstance(e, str) or e["split"] != "validation"]


def journal_of(run: Run) -> Journal:
    """The run folder's own measurements: a live run that was interrupted goes on from them."""
    folder = run.folder / "measurements"
    earlier = store.load(folder) if folder.is_dir() else frame_of([])
    rows = [measurement_of(row) for row in earlier.to_dict("records")]
    if rows:
        run.log.info("goes on from %d measurements in %s", len(rows), folder)
    return Journal(rows, lambda measurements: store.append(folder, measurements))


def compete(
    ingredients: Ingredients, workloads: Sequence[Workload], measurer: Measurer, settings: config.Settings, frame: pd.DataFrame,
    journal: Journal | None,
) -> Evaluation:  # fmt: skip
    """All methods on all workloads, with progress."""
    chosen_settings = settings.evaluate
    made = factories(ingredients, chosen_settings)
    best = {w: recorded_best(frame, w, chosen_settings.recorded_finalists) for w in workloads}
    steps = len(rounds(chosen_settings.ks, chosen_settings.batch)) * len(made) * chosen_settings.seeds * len(workloads)
    view = View(measurer)
    template, watched = load_template(workloads[0].op), Watched(measurer, view)
    with progress(steps, "evaluating", view=view if view.live else None) as bar:
        return evaluate(made, workloads, template, watched, chosen_settings, best, settings.seed, bar.advance, journal)


def recorded_best(frame: pd.DataFrame, workload: Workload, n: int) -> list[dict[str, int]]:
    """The n fastest recorded configs of a workload."""
    rows = frame[(frame["workload"] == str(workload)) & (frame["status"] == "ok") & (frame["config"] != "")]
    return [parse_config(str(text)) for text in rows.groupby("config")["time_us"].median().nsmallest(n).index]


@dataclass(frozen=True)
class Tables:
    """What an evaluation says, in order of importance."""

    cells: list[Cell]
    records: list[Record]
    text: str


def tabulate(result: Evaluation, template: Template, source: str, tie: float) -> Tables:
    """Records and tables of an evaluation."""
    cell_list, record_list = cells(result.picks, result.yardsticks), records(result.picks, result.yardsticks, source)
    parts = [methods_table(cell_list), workloads_table(lines(result, record_list, template))]
    if found := duels(record_list, "policy", tie):
        parts.append(duels_table(found))
    return Tables(cell_list, record_list, "\n\n".join(parts))


def lines(result: Evaluation, found: Sequence[Record], template: Template) -> list[Line]:
    """The workloads' rows; the policy's times are medians over seeds."""
    policy: dict[str, dict[int, float | None]] = {}
    for record in found:
        if record.method == "policy":
            policy.setdefault(record.workload, {})[record.measurements] = record.time_us
    return [
        Line(str(w), y.naive_us, y.expert_us, y.best_us, y.vendor_us, policy.get(str(w), {}), template.flops(w))
        for w, y in result.yardsticks.items()
    ]


def report(
    result: Evaluation, template: Template, measurer: Measurer, settings: config.Settings, run: Run, stats: Mapping[str, Any]
) -> None:
    """Print and write everything."""
    live = measurer.source == "gpu"
    world = f"measured live on {measurer.device.name}" if live else f"replays recorded {measurer.device.name} timings"
    tables = tabulate(result, template, measurer.source, settings.evaluate.tie)
    seeds = f"{len(result.yardsticks)} {settings.evaluate.split} workloads, {settings.evaluate.seeds} seeds, {world}"
    text = f"{template.op}: {seeds}\n\n{tables.text}\n"
    if result.left_out:
        left_out = ", ".join(map(str, result.left_out))
        text += f"\nleft out, for want of recorded timings or of time (evaluate.budget_s): {left_out}\n"
    (run.folder / "tables.md").write_text(text)
    write_seed_records(result.picks, result.yardsticks, measurer.source, run.folder / "seeds.parquet")
    np.savez_compressed(run.folder / "regret.npz", allow_pickle=False, **result.regret)
    draw_regret(result.regret, run.folder, f"{template.op}: {seeds}")
    run.write_summary(
        {
            "world": world,
            "gpu": measurer.device.name,
            "records": [asdict(record) for record in tables.records],
            "methods": [asdict(cell) for cell in tables.cells],
            "duels": [asdict(duel) for duel in duels(tables.records, "policy", settings.evaluate.tie)],
            "best_known": {str(w): asdict(yardstick) for w, yardstick in result.yardsticks.items()},
            "left_out": [str(w) for w in result.left_out],
            "farm": dict(stats),
        }
    )
    print(text)
    print(f"results: {run.folder}")


if __name__ == "__main__":
    main()
