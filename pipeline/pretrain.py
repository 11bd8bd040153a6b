"""Pretrain the policy against the cost model: `make pretrain`, or `python -m pipeline.pretrain pretrain.iql.steps=8000`.

Needs a cost model (`make fit`). Measures nothing: the worlds are simulated.
"""

import numpy as np

from cost_model.model import CostModel
from pipeline import config, worlds
from pipeline.pretraining import pretrain
from pipeline.runs import Run, stage
from pipeline.tables import table
from pipeline.training_rows import training_rows
from templates.template import load_template


@stage("pretrain")
def main(settings: config.Settings, run: Run) -> None:
    """Simulate episodes, learn from them, say what a search gains."""
    template, recorded = load_template(settings.op.name), config.path(settings.recorded_dir)
    device = worlds.recorded_device(recorded, settings.gpu)
    frame = training_rows(template, device, settings.gpu.recorded, [recorded, config.path(settings.data_dir)])
    model = CostModel.load(run.need("fit") / "cost_model")
    result = pretrain(frame, model, device, settings.pretrain, settings.seed, run.folder)
    rows = [[name, f"{gain:.3f}", f"{np.exp(gain):.2f}x"] for name, gain in result.gains.items()]
    print(table(["a search in a fresh simulated world", "gain, log time", "faster than its start"], rows))
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
            "workloads": sorted(frame["workload"].unique()),
        }
    )
    print(f"policy: {run.folder / 'policy'}")


if __name__ == "__main__":
    main()
