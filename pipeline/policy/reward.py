"""Rewards in log time: what a search gains, what a failure costs, and their normalisation over operators."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from datasets.measurement import Measurement, Resources, Status
from templates.errors import InputError
from templates.workload import Workload

RUN_FAILURES: tuple[Status, ...] = ("crash", "launch_error", "timeout", "wrong_answer")
EDGE = 32
"""Extents that are no multiple of this run through the kernels' tail code: every tile is a multiple of it, or divides it."""


@dataclass(frozen=True)
class RewardSettings:
    """What failures cost and how rewards are scaled before learning.

    failure_penalty: subtracted, in log time, when a measured config has no time. mask_crashes: no penalty for a config that
    fails to run on an edge shape, so that the policy does not learn to shun vector accesses everywhere. normalise: "running"
    (spread of the last `window` rewards), "batch" (z-score per operator over all) or "none". centre: also subtract the mean;
    off, because edit rewards telescope to the whole gain and a constant per edit would pay for the number of edits.
    """

    failure_penalty: float = 0.3
    mask_crashes: bool = True
    normalise: str = "running"
    centre: bool = False
    window: int = 1000

    def __post_init__(self) -> None:
        if self.normalise not in ("running", "batch", "none"):
            raise InputError(f"reward.normalise={self.normalise!r}: use running, batch or none")


@dataclass(frozen=True)
class Outcome:
    """What a search learns from one measurement. `log_time` is the natural log of microseconds, None for a failure."""

    status: Status
    log_time: float | None
    resources: Resources | None = None


def outcome_of(measurement: Measurement) -> Outcome:
    """The part of a measurement that the search uses."""
    time_us = measurement.time_us
    return Outcome(measurement.status, None if time_us is None else float(np.log(time_us)), measurement.resources)


def log_speedup(baseline_us: float, time_us: float) -> float:
    """log(t_baseline / t_candidate), the natural logarithm: 0 is the naive kernel, 0.69 twice as fast."""
    return float(np.log(baseline_us / time_us))


def on_edge(workload: Workload) -> bool:
    """Whether some extent leaves a tail, so that a crash may be the shape's doing and not the config's."""
    return any(extent % EDGE for _, extent in workload.dims)


def penalty(outcome: Outcome, workload: Workload, settings: RewardSettings) -> float:
    """What a failure costs, >= 0 and bounded; 0 for a success, a contaminated timing, and where the failure is masked."""
    if outcome.log_time is not None or outcome.status == "contaminated":
        return 0.0
    masked = settings.mask_crashes and outcome.status in RUN_FAILURES and on_edge(workload)
    return 0.0 if masked else settings.failure_penalty


class RunningNormaliser:
    """Scales rewards by the spread of the last `window` of them, one window per operator, so that none dominates."""

    def __init__(self, window: int = 1000, centre: bool = False) -> None:
        self.window, self.centre = window, centre
        self.recent: dict[int, deque[float]] = {}

    def observe(self, rewards: np.ndarray, operator: np.ndarray) -> None:
        """Take in rewards (n,) with the index of each one's operator (n,), in the order they were earned."""
        for op in np.unique(operator):
            values = self.recent.setdefault(int(op), deque(maxlen=self.window))
            values.extend(rewards[operator == op][-self.window :].tolist())

    def __call__(self, rewards: np.ndarray, operator: np.ndarray) -> np.ndarray:
        """Normalised rewards, float32 (n,); unchanged for an operator of which fewer than two were seen or all were equal."""
        scaled = np.array(rewards, dtype=np.float64)
        for op, values in self.recent.items():
            spread = float(np.std(values)) if len(values) > 1 else 0.0
            at = operator == op
            scaled[at] -= float(np.mean(values)) if self.centre else 0.0
            scaled[at] /= spread if spread > 1e-6 else 1.0
        return scaled.astype(np.float32)


def zscore(rewards: np.ndarray, operator: np.ndarray, centre: bool = True) -> np.ndarray:
    """Rewards of a batch scaled by their operator's spread in it, and centred on its mean; float32 (n,)."""
    whole = RunningNormaliser(window=max(1, len(rewards)), centre=centre)
    whole.observe(rewards, operator)
    return whole(rewards, operator)


def normalised(rewards: np.ndarray, operator: np.ndarray, settings: RewardSettings) -> np.ndarray:
    """Rewards as the settings want them, float32 (n,)."""
    if settings.normalise == "none":
        return rewards.astype(np.float32)
    if settings.normalise == "batch":
        return zscore(rewards, operator, settings.centre)
    running = RunningNormaliser(settings.window, settings.centre)
    running.observe(rewards, operator)
    return running(rewards, operator)
