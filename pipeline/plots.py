"""Pictures of an evaluation."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # before pyplot: no display is needed or looked for

import numpy as np  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.ticker import PercentFormatter  # noqa: E402

FLOOR = 1e-3
"""Regrets below a thousandth are drawn as one: the axis is logarithmic, and timing cannot tell them apart."""


def draw_regret(regret: Mapping[str, np.ndarray], folder: Path, title: str) -> None:
    """Mean regret against the number of measurements, one line per method, as regret.png and regret.svg in the folder.

    `regret[method]` has shape (measurements + 1, trials): 1 - fraction of the best known after 0, 1, 2, ... measurements.
    """
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for i, (method, values) in enumerate(regret.items()):
        width, order = (2.5, 3) if method == "policy" else (1.2, 2)
        mean = np.maximum(values.mean(axis=1), FLOOR)
        dashes = ("-", "--", "-.")[i % 3]
        axes.plot(np.arange(len(mean)), mean, label=method, linestyle=dashes, linewidth=width, zorder=order)
    axes.set(xlabel="measurements", ylabel="mean distance from the best known time", yscale="log", title=title)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.3, which="both")
    axes.legend(loc="upper right", fontsize="small", ncols=2)
    figure.savefig(folder / "regret.png", dpi=130)
    figure.savefig(folder / "regret.svg", metadata={"Date": None})
    plt.close(figure)
