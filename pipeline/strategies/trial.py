"""Trials: strategies measuring in rounds on one workload, and what each of them would give the user after k measurements."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from datasets.measurement import Candidate, Measurement, Origin
from pipeline.measure.measurer import Measurer
from pipeline.strategies.admission import safe_default, untried
from pipeline.strategy import Strategy, Task
from templates.knob import config_text

ORIGINS: dict[str, Origin] = {"random": "random", "naive": "naive", "expert": "expert"}


@dataclass
class Trial:
    """One strategy with one seed on one task: what it has measured, and its pick with nothing measured."""

    strategy: Strategy
    seed: int
    rng: np.random.Generator
    history: list[Measurement] = field(default_factory=list)
    zero_shot: dict[str, int] | None = None
    exhausted: bool = False

    def pick(self, task: Task, k: int) -> dict[str, int]:
        """The config given to the user after k measurements: the fastest that ran, the safe default when none did.

        With k = 0 it is the strategy's first proposal, whatever becomes of it.
        """
        if k == 0:
            return self.zero_shot or safe_default(task)
        return best_of(self.history[:k]) or safe_default(task)


def best_of(history: Iterable[Measurement]) -> dict[str, int] | None:
    """The config of the fastest measurement that ran; None when none did."""
    times = [(m.time_us, m.config) for m in history if m.time_us is not None]
    return min(times, key=lambda pair: pair[0])[1] if times else None


@dataclass
class Memory:
    """A measurer's results so far on one task: what two trials ask for is measured once, but counts for each.

    `save` gets what was measured anew, batch by batch; `results` may hold what an interrupted run measured.
    """

    measurer: Measurer
    task: Task
    results: dict[str, Measurement] = field(default_factory=dict)
    save: Callable[[list[Measurement]], None] = lambda measurements: None

    def measure(self, wanted: Sequence[tuple[dict[str, int], Origin]]) -> list[Measurement]:
        """One measurement per config, in order; those not yet known go to the measurer in one call."""
        missing = {config_text(c): Candidate(self.task.workload, c, o) for c, o in wanted if config_text(c) not in self.results}
        if missing:
            new = list(self.measurer.measure(list(missing.values())))
            self.results.update(zip(missing, new, strict=True))
            self.save(new)
        return [self.results[config_text(config)] for config, _ in wanted]


def run_trials(
    trials: Sequence[Trial], memory: Memory, ks: Sequence[int], batch: int, advance: Callable[[], None] = lambda: None
) -> None:
    """Let every trial measure up to max(ks) configs in rounds of at most `batch`, a round ending at each k.

    All trials of a round are measured together, so that a compile pool has work for all its workers. Failures count as
    measurements. A strategy with nothing left to propose rests. `advance` is called once a round.
    """
    for trial in trials:
        first = trial.strategy.propose(memory.task, [], 1, trial.rng)
        trial.zero_shot = first[0] if first else None
    for n in rounds(ks, batch):
        asked = [_proposals(trial, memory.task, n) for trial in trials]
        wanted = [(c, origin_of(t.strategy.name)) for t, configs in zip(trials, asked, strict=True) for c in configs]
        results = iter(memory.measure(wanted))
        for trial, configs in zip(trials, asked, strict=True):
            trial.history += [next(results) for _ in configs]
        advance()


def rounds(ks: Sequence[int], batch: int) -> list[int]:
    """Measurements per round: `rounds([0, 1, 10], 4)` is [1, 4, 4, 1]."""
    sizes: list[int] = []
    for low, high in zip([0, *sorted(ks)], sorted(ks), strict=False):
        whole, rest = divmod(high - low, batch)
        sizes += [batch] * whole + [rest] * (rest > 0)
    return sizes


def origin_of(method: str) -> Origin:
    """The `origin` of the rows a method measures."""
    return ORIGINS.get(method, "policy" if method.startswith("policy") else "guided")


def _proposals(trial: Trial, task: Task, n: int) -> list[dict[str, int]]:
    if trial.exhausted:
        return []
    if not trial.history and trial.zero_shot is not None:
        # The pick with nothing measured is the first one to confirm: asking again would draw another one.
        more = trial.strategy.propose(task, [], n, trial.rng) if n > 1 else []
        proposed = [trial.zero_shot, *(c for c in more if c != trial.zero_shot)][:n]
    else:
        proposed = trial.strategy.propose(task, trial.history, n, trial.rng)
    trial.exhausted = len(proposed) < n
    assert untried(proposed, trial.history, n) == proposed, f"{trial.strategy.name} proposes too much, or what was measured"
    return proposed


def run_strategy(
    strategy: Strategy, task: Task, measurer: Measurer, ks: Sequence[int] = (0, 1, 10, 25), batch: int = 5, seed: int = 0
) -> dict[int, tuple[dict[str, int], Measurement]]:
    """One strategy alone: k -> the config chosen after k measurements and its measurement.

    The choices are measured outside of the budget, where they were not inside it, only to score them.
    """
    trial = Trial(strategy, seed, np.random.default_rng(seed))
    memory = Memory(measurer, task)
    run_trials([trial], memory, ks, batch)
    picks = [(k, trial.pick(task, k)) for k in ks]
    scored = memory.measure([(config, origin_of(strategy.name)) for _, config in picks])
    return {k: (config, measurement) for (k, config), measurement in zip(picks, scored, strict=True)}
