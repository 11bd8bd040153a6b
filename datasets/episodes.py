"""Episodes as plain arrays: what a policy learns from, simulated or measured, kept without pickles."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from templates.errors import InputError


@dataclass(frozen=True)
class Episodes:
    """n transitions of any number of episodes, in any order.

    states, next_states: float32 (n, d). actions: float32 (n, a), the actions executed. rewards: float32 (n,), in log time.
    terminals: bool (n,), the episode's last transition, whose next state counts nothing. episode: int64 (n,), which one.
    operator: int64 (n,), an index of the operator for normalisation. Nothing in it is NaN or infinite (checked).
    """

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_states: np.ndarray
    terminals: np.ndarray
    episode: np.ndarray
    operator: np.ndarray

    def __post_init__(self) -> None:
        for name in ("states", "actions", "rewards", "next_states"):
            if not np.isfinite(getattr(self, name)).all():
                raise AssertionError(f"episodes: {name} hold a value that is not finite")
        if len({len(getattr(self, field.name)) for field in fields(self)}) != 1:
            raise AssertionError("episodes: arrays of different lengths")

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def count(self) -> int:
        """Number of episodes."""
        return len(np.unique(self.episode))

    def take(self, rows: np.ndarray) -> "Episodes":
        """The transitions of these row indices (or of a bool mask)."""
        return Episodes(*(getattr(self, field.name)[rows] for field in fields(self)))

    def returns(self) -> np.ndarray:
        """Float array (episodes,): each episode's undiscounted sum of rewards, by episode number."""
        _, place = np.unique(self.episode, return_inverse=True)
        return np.bincount(place, weights=self.rewards)

    def save(self, path: Path) -> None:
        """Write as .npz under a temporary name, then rename: a killed run leaves the old file or the new one."""
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        with scratch.open("wb") as file:
            np.savez(file, **{field.name: getattr(self, field.name) for field in fields(self)})
        scratch.replace(path)

    @staticmethod
    def load(path: Path) -> "Episodes":
        """Read what `save` wrote; InputError for a file that is damaged or holds something else."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                return Episodes(**{field.name: stored[field.name] for field in fields(Episodes)})
        except (ValueError, KeyError, EOFError, OSError, BadZipFile) as error:
            raise InputError(f"episodes {path}: cannot be read ({error}); delete the file and run the stage again") from error


def concatenate(parts: Sequence[Episodes], renumber: bool = True) -> Episodes:
    """All transitions in one; unless told otherwise, each part's episodes are numbered after those of the parts before it."""
    if not parts:
        raise InputError("no episodes to learn from: raise the number of workloads or episodes")
    joined = {field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Episodes)}
    if renumber:
        sizes = [int(part.episode.max(initial=-1)) + 1 for part in parts]
        shifts = np.cumsum([0, *sizes[:-1]])
        joined["episode"] = np.concatenate([part.episode + shift for part, shift in zip(parts, shifts, strict=True)])
    return Episodes(**joined)
