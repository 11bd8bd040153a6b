"""Fine-tune the policy on real timings: `make finetune`, or `python -m pipeline.finetune finetune.measurements=1000`.

All operators of the run in turn, one policy for them. Measures on the GPU where there is one, on training shapes and shapes near
them; replays recorded timings elsewhere. Needs a pretrained policy (`make pretrain`).
"""

from dataclasses import asdict

from cost_model.model import CostModel
from datasets import split
from datasets.episodes import Episodes, concatenate
from pipeline import config, worlds
from pipeline.finetuning import FinetuneResult, Line, Subject, Tuner, finetune
from pipeline.ledger import Ledger
from pipeline.measure.measurer import Measurer
from pipeline.policy.iql import Policy
from pipeline.runs import Run, progress, stage
from pipeline.strategies.known_good import known_good
from pipeline.tables import table
from pipeline.training_rows import training_rows
from pipeline.view import View, Watched
from templates.template import load_template


@stage("finetune")
def main(settings: config.Settings, run: Run) -> None:
    """Search for real, learn from it, say what it came to."""
    pretrained = run.need("pretrain")
    recorded = config.path(settings.recorded_dir)
    measurer = worlds.open_measurer(settings.gpu, settings.farm, recorded, run.operators(), run.folder)
    try:
        subjects = []
        for op in run.operators():
            with run.leaving_out(op):
                subjects.append(subject(op, measurer, settings, run))
        versions = {f"template of {s.template.op}": s.template.version for s in subjects}
        run.stands_on(gpu=measurer.device.name, source=measurer.source, **versions)
        view = View(measurer)
        tuner = Tuner(
            Policy.load(pretrained / "policy"),
            subjects,
            Ledger(Watched(measurer, view), run.folder / "measurements"),
            concatenate([Episodes.load(path) for path in sorted((pretrained / "episodes").glob("*.npz"))]),
            settings.finetune,
            settings.seed,
        )
        with progress(settings.finetune.measurements, "fine-tuning", view=view) as bar:
            result = finetune(tuner, run.folder, bar.advance)
        live = measurer.source == "gpu"
        world = f"measured live on {measurer.device.name}" if live else f"replays recorded {measurer.device.name} timings"
        source = measurer.source
    finally:
        measurer.close()
    print(f"fine-tuning, {world}: {result.measurements} measurements in {result.rounds} rounds, {result.seconds:.0f} s\n")
    print(lines_table(result.lines))
    run.write_summary(summary(result, source, world))
    print(f"\nresults: {run.folder}")


def subject(op: str, measurer: Measurer, settings: config.Settings, run: Run) -> Subject:
    """An operator with its cost model and what is known of it. NothingToDo where it has no timings."""
    template, roots = load_template(op), [config.path(settings.recorded_dir), config.path(settings.data_dir)]
    frame = training_rows(template, measurer.device, settings.gpu.recorded, roots)
    model = CostModel.load(run.need("fit", op) / "cost_model")
    lists = split.workloads(op)
    here = {name: [w for w in lists[name] if measurer.known(w) != []] for name in ("train", "validation")}
    return Subject(model, known_good(frame, template), here["train"], here["validation"])


def lines_table(lines: list[Line]) -> str:
    """Times in microseconds, and how much faster than naive the best one is."""
    header = ["workload", "split", "naive us", "expert us", "pick before us", "pick after us", "best us", "naive/best"]
    return table(header, [[line.workload, line.split, *_cells(line)] for line in lines])


def _cells(line: Line) -> list[str]:
    times = (line.naive_us, line.expert_us, line.before_us, line.after_us, line.best_us)
    speedup = "-" if line.naive_us is None or line.best_us is None else f"{line.naive_us / line.best_us:.2f}"
    return [*("-" if time_us is None else f"{time_us:.1f}" for time_us in times), speedup]


def summary(result: FinetuneResult, source: str, world: str) -> dict[str, object]:
    """What summary.json holds."""
    return {
        "source": source,
        "world": world,
        "rounds": result.rounds,
        "measurements": result.measurements,
        "statuses": result.statuses,
        "seconds": round(result.seconds, 1),
        "iql_steps": result.policy.steps,
        "workloads": [asdict(line) for line in result.lines],
    }


if __name__ == "__main__":
    main()
