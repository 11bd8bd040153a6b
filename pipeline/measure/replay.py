"""Recorded measurements as a measurer: whoever searches gets what the GPU once answered."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from datasets.device import Device
from datasets.measurement import Candidate, Measurement
from datasets.schema import measurement_of
from templates.knob import config_text, parse_config
from templates.workload import Workload


class Replay:
    """Answers from rows of `datasets.store`. A config recorded more than once gives its median row: the one whose time is
    the median of the ok ones (the lower of two), or any of them when none is ok.
    """

    source = "replay"

    def __init__(self, frame: pd.DataFrame, device: Device) -> None:
        self.device = device
        self._frame = frame.reset_index(drop=True)
        self._rows: dict[tuple[str, str], int] = {}
        self._known: dict[str, list[str]] = {}
        if frame.empty:
            return
        ordered = self._frame.sort_values(["workload", "config", "time_us"], kind="stable", na_position="last")
        groups = ordered.groupby(["workload", "config"])
        middle = (groups["time_us"].transform("count") - 1).clip(lower=0) // 2  # count: of the ok ones, which alone have a time
        chosen = ordered[groups.cumcount() == middle]
        self._rows = dict(zip(zip(chosen["workload"], chosen["config"], strict=True), chosen.index, strict=True))
        self._known = {str(workload): list(group) for workload, group in chosen.groupby("workload")["config"]}

    def known(self, workload: Workload) -> Sequence[dict[str, int]]:
        """The recorded configs of a workload in the order of their texts, which says nothing of their times; no vendor's."""
        return [parse_config(config) for config in self._known.get(str(workload), []) if config]

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Measurement]:
        """The recorded outcome of each candidate; "illegal" for one that was never recorded."""
        for candidate in candidates:
            row = self._rows.get((str(candidate.workload), config_text(candidate.config)))
            if row is None:
                message = "not among the recorded rows"
                yield Measurement(
                    candidate.workload, dict(candidate.config), "illegal", message, origin=candidate.origin, source="replay",
                    gpu=self.device.name,
                )  # fmt: skip
            else:
                yield _replayed(measurement_of(self._frame.iloc[row]), candidate)

    def close(self) -> None:
        """Nothing to release."""


def _replayed(recorded: Measurement, candidate: Candidate) -> Measurement:
    return replace(recorded, origin=candidate.origin, source="replay")
