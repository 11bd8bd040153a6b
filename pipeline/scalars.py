"""Training scalars: losses.csv in the run's folder and, where TensorBoard is installed, its event files.

`tensorboard --logdir outputs` shows the latter; nothing here needs them.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

Note = Callable[[int, Mapping[str, float]], None]
"""Writes down scalars at a step; a name's part before a slash groups it with others."""


def note_losses(path: Path, step: int, losses: Mapping[str, float]) -> None:
    """One more line, under a header where the file is new."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(["step", *losses])
        writer.writerow([step, *(f"{value:.6g}" for value in losses.values())])


def mean_regret(best_us: Iterable[float | None], picked_us: Iterable[float | None]) -> float | None:
    """Mean of 1 - best / picked over the workloads that have both times; None where none has."""
    pairs = zip(best_us, picked_us, strict=True)
    known = [1 - best / picked for best, picked in pairs if best is not None and picked is not None]
    return sum(known) / len(known) if known else None


@contextmanager
def tensorboard(run: Path, step: int = 0) -> Iterator[Note]:
    """Notes go to <run>/tensorboard; nowhere without TensorBoard. What an interrupted run noted after `step` is superseded."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield lambda step, values: None
        return
    folder = run / "tensorboard"
    writer = SummaryWriter(str(folder), purge_step=step + 1 if folder.is_dir() else None)

    def note(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]

    try:
        yield note
    finally:
        writer.close()
