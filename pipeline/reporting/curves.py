"""Training curves: losses by gradient step, and what searches gained by round."""

import csv
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from datasets.episodes import Episodes
from pipeline.reporting.drawing import BLUE, GREEN, MUTED, ORANGE, figure, panels
from pipeline.reporting.section import Picture, Section, Table
from pipeline.reporting.sources import Material, RunFiles
from templates.errors import InputError


def section(material: Material) -> Section:
    """Losses of pretraining and fine-tuning, gains of fine-tuning's rounds. InputError where neither has run."""
    pictures, notes, op = [], [], material.template.op
    for stage in ("pretrain", "finetune"):
        if run := material.runs.get(stage):
            if losses := read_losses(run.folder / "losses.csv"):
                pictures.append(_losses(stage, losses))
            if run.problem:
                notes.append(run.problem)
    if (run := material.runs.get("finetune")) and (rounds := gains(run)):
        pictures.append(_gains(rounds))
    if not pictures:
        material.run("pretrain")
        raise InputError("no training curves yet: the pretrain run ended before its first checkpoint; run `make pretrain`")
    gains_by_op = material.runs["pretrain"].summary.get("gains") if "pretrain" in material.runs else None
    found = gains_by_op.get(op) if isinstance(gains_by_op, dict) else None
    tables = [_final(found)] if isinstance(found, dict) else []
    lead = (
        "IQL's losses, each the mean since the checkpoint before. Falling critic and value losses say that the networks fit, "
        "not that they are right."
    )
    return Section("curves", "Training curves", lead, pictures, tables, notes)


def read_losses(path: Path) -> dict[str, np.ndarray]:
    """Columns by name, `step` first; empty where there is no file. InputError for a damaged one."""
    try:
        with path.open(newline="") as file:
            header, *lines = list(csv.reader(file)) or [[]]
        values = np.array([[float(cell) for cell in line] for line in lines]).reshape(len(lines), len(header))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error}); run the stage again") from error
    if not lines or len(header) < 2:
        return {}
    if header[0] != "step":
        raise InputError(f"{path}: damaged (its first column is not step); run the stage again")
    return dict(zip(header, values.T, strict=True))


def gains(run: RunFiles) -> list[np.ndarray]:
    """Log-time gain of each search of each round of fine-tuning. InputError for a damaged file."""
    return [Episodes.load(path).returns() for path in sorted(run.folder.glob("episodes-*.npz"))]


def _losses(stage: str, losses: dict[str, np.ndarray]) -> Picture:
    names = [name for name in losses if name != "step"]

    def draw(narrow: bool) -> Figure:
        made, every = panels(len(names), narrow, (4, 2), 1.6)
        for axes, name in zip(every, names, strict=True):
            axes.plot(losses["step"], losses[name], "o-", color=BLUE, markersize=2.5, linewidth=1)
            if (losses[name] > 0).all() and np.ptp(np.log10(losses[name])) > 1:
                axes.set_yscale("log")
            axes.set_title(name.replace("_", " "))
            axes.tick_params(labelsize=6)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.grid()
        made.supxlabel("gradient step", fontsize=8)
        return made

    rows = [[f"{value:g}" for value in line] for line in zip(*losses.values(), strict=True)]
    last = ", ".join(f"{name.replace('_', ' ')} {losses[name][-1]:.3g}" for name in names)
    alt = f"Losses of {stage} over {losses['step'][-1]:.0f} gradient steps; at the end {last}."
    return Picture(f"losses-{stage}", f"Losses of {stage}", alt, draw, Table(f"Losses of {stage}", list(losses), rows))


def _gains(rounds: list[np.ndarray]) -> Picture:
    mean = np.array([found.mean() for found in rounds])
    smooth = np.array([mean[max(0, i - 4) : i + 1].mean() for i in range(len(mean))])

    def draw(narrow: bool) -> Figure:
        made, axes = figure(narrow, 2.4)
        at = np.arange(1, len(mean) + 1)
        for place, found in zip(at, rounds, strict=True):
            axes.plot([place] * len(found), found, ".", color=MUTED, markersize=2, alpha=0.5)
        axes.plot(at, mean, "o", color=ORANGE, markersize=3, label="mean of a round's searches")
        axes.plot(at, smooth, "-", color=GREEN, label="mean of five rounds")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="round of fine-tuning, one workload each", ylabel="gain of a search, log time")
        axes.grid()
        made.legend(loc="outside upper left", ncols=1 if narrow else 2)
        return made

    rows = [[str(i), str(len(found)), f"{found.mean():.3f}", f"{found.max():.3f}"] for i, found in enumerate(rounds, 1)]
    table = Table("Gains by round", ["round", "searches", "mean gain", "largest"], rows)
    alt = f"What searches gained in {len(rounds)} rounds of fine-tuning; {mean.mean():.2f} in log time on average."
    return Picture("gains-finetune", "What searches gain in fine-tuning", alt, draw, table)


def _final(found: dict[str, float]) -> Table:
    rows = [[str(name), f"{gain:.3f}", f"{np.exp(gain):.2f} x"] for name, gain in found.items() if isinstance(gain, int | float)]
    header = ["who searches", "gain, log time", "faster than its start"]
    return Table("A search in fresh simulated worlds, after pretraining", header, rows, fold=False)
