"""One GPU left out: what the other GPUs' measured spaces say of its configs, in the words that the strategies understand.

Parameters become knobs (numbers as they are, anything else by its place), the other GPUs become experts and lenders of good
configs, and the left-out one a closed world that answers from its rows; nothing but that world reads its times.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from datasets.device import H200, Device
from datasets.measured_space import MeasuredSpace, Row, Value
from datasets.measurement import Candidate, Measurement
from pipeline.strategies.known_good import Known, KnownGood
from pipeline.strategies.transfer import LogTime
from pipeline.strategy import Task
from templates.foreign import template_of_parameters
from templates.knob import Config, config_text
from templates.template import Template
from templates.workload import Workload

MOST = 2**15
"""Integers from here on are numbered as other values are: a knob's column has 16 bits."""

LENT = 32
"""Best configs taken over from each known GPU."""


@dataclass(frozen=True)
class LeftOut:
    """The spaces of one kernel: the GPU in question and those known, and per parameter value -> the knob's integer."""

    target: MeasuredSpace
    known: tuple[MeasuredSpace, ...]
    codes: tuple[dict[Value, int], ...]

    @staticmethod
    def of(target: MeasuredSpace, known: Sequence[MeasuredSpace]) -> "LeftOut":
        """With codes for all the values of all files, for they may have tried different ones."""
        return LeftOut(target, tuple(known), codes_of([target, *known]))

    def config(self, row: Row) -> dict[str, int]:
        """A row's values as knobs."""
        return {name: code[value] for name, code, value in zip(self.target.names, self.codes, row.values, strict=True)}

    @cached_property
    def template(self) -> Template:
        """The kernel as an operator that can only be replayed; its naive and expert config is the best on average elsewhere."""
        values = {name: sorted(set(code.values())) for name, code in zip(self.target.names, self.codes, strict=True)}
        configs = [self.config(row) for row in self.target.rows]
        said = np.mean([expert(self.workload, configs) for expert in self.experts], axis=0)
        return template_of_parameters("foreign", values, default=configs[int(said.argmin())])

    @cached_property
    def workload(self) -> Workload:
        """The one problem that these files are about."""
        return Workload("foreign", "f32", (("problem", 1),))

    @cached_property
    def experts(self) -> list[LogTime]:
        """One per known GPU: its log times. What it did not try is as the others say, and what it could not run, or nobody
        tried, as slow as its average config.
        """
        tables = [self.times(space) for space in self.known]
        failures = [self.failed(space) for space in self.known]
        return [_expert(own, failed, tables) for own, failed in zip(tables, failures, strict=True)]

    def times(self, space: MeasuredSpace) -> dict[str, float]:
        """Config text -> log time (us) of what ran."""
        return {config_text(self.config(r)): float(np.log(r.time_us)) for r in space.rows if r.time_us is not None}

    def failed(self, space: MeasuredSpace) -> set[str]:
        """Config texts of what did not run."""
        return {config_text(self.config(row)) for row in space.rows if row.time_us is None}

    def risk(self, workload: Workload, configs: Sequence[Config]) -> np.ndarray:
        """(n,): the share of the known GPUs on which a config failed, shrunk towards the middle as by one GPU more of either
        outcome (Laplace's rule of succession); nothing where none failed.
        """
        failures = [failed for space in self.known if (failed := self.failed(space))]
        if not failures:
            return np.zeros(len(configs))
        count = np.array([sum(config_text(config) in there for there in failures) for config in configs])
        return np.where(count > 0, (count + 1) / (len(self.known) + 2), 0.0)

    @cached_property
    def lent(self) -> KnownGood:
        """Each known GPU's best configs."""
        found = []
        for space in self.known:
            timed = sorted((r for r in space.rows if r.time_us is not None), key=lambda r: r.time_us or 0.0)[:LENT]
            found.append(Known(self.workload, tuple(map(self.config, timed)), tuple(r.time_us or 0.0 for r in timed)))
        return tuple(found)

    @cached_property
    def device(self) -> Device:
        """A GPU of that name. Its sizes are not in the files; nothing here looks at them."""
        return replace(H200, name=self.target.device)

    @cached_property
    def task(self) -> Task:
        """The left-out GPU's rows as a closed world."""
        return Task(self.template, self.workload, self.device, tuple(self.config(row) for row in self.target.rows))


def codes_of(spaces: Sequence[MeasuredSpace]) -> tuple[dict[Value, int], ...]:
    """Per parameter: value -> integer, itself where all values are small integers, else its place."""
    tables = []
    for place, _ in enumerate(spaces[0].parameters):
        values = list(dict.fromkeys(value for space in spaces for value in space.parameters[place].values))
        plain = all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < MOST for v in values)
        tables.append({v: int(v) for v in values} if plain else {v: i for i, v in enumerate(values)})
    return tuple(tables)


def _expert(own: dict[str, float], failed: set[str], tables: Sequence[dict[str, float]]) -> LogTime:
    others = [(table, float(np.mean(list(table.values())))) for table in tables if table is not own]
    average = float(np.mean(list(own.values())))

    def of(text: str) -> float:
        if text in own or text in failed:
            return own.get(text, average)
        return average + float(np.mean([table[text] - mean for table, mean in others if text in table] or [0.0]))

    def log_time(workload: Workload, configs: Sequence[Config]) -> np.ndarray:
        return np.array([of(config_text(config)) for config in configs])

    return log_time


class SpaceReplay:
    """The left-out GPU as a measurer."""

    source = "replay"

    def __init__(self, left_out: LeftOut) -> None:
        self.device = left_out.device
        self._rows = {config_text(left_out.config(row)): row for row in left_out.target.rows}
        self._configs = [left_out.config(row) for row in left_out.target.rows]

    def known(self, workload: Workload) -> Sequence[dict[str, int]]:
        """Every config of the file."""
        return self._configs

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Measurement]:
        """The recorded outcomes."""
        for c in candidates:
            row = self._rows[config_text(c.config)]
            yield Measurement(
                c.workload, c.config, row.status, row.message, row.time_us, origin=c.origin, source="replay", gpu=self.device.name
            )

    def close(self) -> None:
        """Nothing to release."""
