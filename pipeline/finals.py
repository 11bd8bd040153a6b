"""Finals: the times by which choices are judged, taken anew where that can be done."""

from collections.abc import Iterator, Sequence

import numpy as np

from datasets.measurement import Candidate, Measurement, Origin
from pipeline.strategies.admission import expert_config, naive_config
from pipeline.strategies.trial import Memory, Trial, origin_of
from pipeline.strategy import Task
from templates.knob import config_text

Times = dict[str, float | None]
"""Config text -> microseconds, None for a config that does not run."""


Finalist = tuple[dict[str, int], Origin]


def finalists(
    trials: Sequence[Trial], task: Task, ks: Sequence[int], recorded_best: Sequence[dict[str, int]], vendor: bool
) -> dict[str, Finalist]:
    """Whose times count, by config text: every config that anybody chose, naive, expert, the recorded best, the vendor's ""."""
    chosen: dict[str, Finalist] = {}
    for trial in trials:
        for config in (trial.pick(task, k) for k in ks):
            chosen.setdefault(config_text(config), (config, origin_of(trial.strategy.name)))
    for config in (naive_config(task), expert_config(task), *recorded_best):
        chosen.setdefault(config_text(config), (config, "guided"))
    if task.pool is not None:
        allowed = {config_text(config) for config in task.pool}
        chosen = {text: finalist for text, finalist in chosen.items() if text in allowed}
    return {**chosen, "": ({}, "vendor")} if vendor else chosen


def true_times(chosen: dict[str, Finalist], memory: Memory, final_rounds: int) -> tuple[Times, dict[str, str]]:
    """The time that counts, and the status, of every finalist.

    Replayed rows are what they are. On a live GPU all are timed again, interleaved, so that neither a fluke nor drift decides:
    the minimum of the rounds' medians (mission M9); a config that fails in any round does not run.
    """
    first = memory.measure(list(chosen.values()))
    results = {text: [measurement] for text, measurement in zip(chosen, first, strict=True)}
    if memory.measurer.source == "gpu":
        for again in _interleaved(memory, list(chosen.values()), final_rounds):
            results[config_text(again.config)].append(again)
        # The first timing chose the config: it is not independent of the choice, so the final does not count it.
        results = {text: _final(rows) for text, rows in results.items()}
    times: Times = {}
    for text, rows in results.items():
        values = [m.time_us for m in rows if m.time_us is not None]
        times[text] = min(values) if len(values) == len(rows) else None
    return times, {text: next((m.status for m in rows if m.status != "ok"), "ok") for text, rows in results.items()}


def _final(rows: Sequence[Measurement]) -> list[Measurement]:
    """The rows after the first that the surroundings did not spoil; the first where they spoilt all."""
    return [m for m in rows[1:] if m.status != "contaminated"] or [rows[0]]


def _interleaved(memory: Memory, chosen: Sequence[Finalist], times: int) -> Iterator[Measurement]:
    """Every finalist `times` times, each round in another order."""
    rng = np.random.default_rng(0)
    for _ in range(times):
        order = rng.permutation(len(chosen))
        yield from memory.measurer.measure([Candidate(memory.task.workload, *chosen[i]) for i in order])
