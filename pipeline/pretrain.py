"""Pretrain the policy against cost models: `make pretrain`, or `python -m pipeline.pretrain pretrain.iql.steps=8000`.

One policy for all operators of the run, each with its cost model (`make fit`). Measures nothing: the worlds are simulated.
"""

import numpy as np

from cost_model.model import CostModel
from pipeline import config, worlds
from pipeline.pretraining import Lesson, pretrain
from pipeline.runs import Run, stage
from pipeline.tables import table
from pipeline.training_rows import training_rows
from templates.template import load_template


@stage("pretrain")
def main(settings: config.Settings, run: Run) -> None:
    """Simulate episodes, learn from them, say what a search gains."""
    recorded = config.path(settings.recorded_dir)
    roots = [recorded, config.path(settings.data_dir)]
    device = worlds.recorded_device(recorded, settings.gpu)
    lessons = []
    for op in run.operators():
        with run.leaving_out(op):
            frame = training_rows(load_template(op), device, settings.gpu.recorded, roots)
            lessons.append(Lesson(CostModel.load(run.need("fit", op) / "cost_model"), frame))
    result = pretrain(lessons, device, settings.pretrain, settings.seed, run.folder)
    names = list(next(iter(result.gains.values())))
    rows = [[op, *(f"{gains[name]:.3f} ({np.exp(gains[name]):.2f} x)" for name in names)] for op, gains in result.gains.items()]
    print(table(["gain of a search in a fresh simulated world, log time", *names], rows))
    run.write_summary(
        {
            "source": "cost_model",
            "gpu": device.name,
            "transitions": len(result.episodes),
            "episodes": result.episodes.count,
            "steps": result.policy.steps,
            "losses": result.losses,
            "gains": result.gains,
            "seconds": result.seconds,
            "workloads": [str(workload) for lesson in lessons for workload in lesson.workloads],
        }
    )
    print(f"policy: {run.folder / 'policy'}")


if __name__ == "__main__":
    main()
