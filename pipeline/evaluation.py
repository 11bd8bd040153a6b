"""Evaluation: every method on every held-out workload at the same numbers of measurements, against one yardstick."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from datasets.measurement import Measurement
from pipeline.finals import Times, finalists, true_times
from pipeline.measure.measurer import Measurer
from pipeline.policy.propose import ProposeSettings
from pipeline.records import Pick, Yardstick
from pipeline.strategies.admission import expert_config, naive_config
from pipeline.strategies.ranked import SearchSettings
from pipeline.strategies.trial import Memory, Trial, run_trials
from pipeline.strategy import Strategy, Task
from templates.errors import InputError
from templates.knob import config_text
from templates.template import Template
from templates.workload import Workload

LOG = logging.getLogger(__name__)

METHODS = (
    "naive", "expert", "random", "random_ranked", "one_config", "nearest", "cost_model", "cost_model_refit",
    "policy_zero_shot", "policy", "vendor",
)  # fmt: skip

POLICIES = ("latest", "finetune", "pretrain")

Factory = Callable[[], Strategy]
"""Makes a fresh strategy: what one trial remembers, another must not know."""


@dataclass(frozen=True)
class EvaluateSettings:
    """What is compared. `ks`: measurements before choosing; 0 is the pick with none.

    `workloads` narrows the split's workloads to those named. `batch`: measurements between two decisions at most.
    `budget_s`: no further workload is started when it would not end in time (0: no limit).
    `final_rounds`: how often each choice is timed anew, interleaved with the others, before it counts (live only), and with
    the `recorded_finalists` fastest recorded configs, so that the best known is known here. `tie`: a relative difference of
    times that counts as none. `policy`: "finetune", "pretrain", or "latest" for the first of the two that has run.
    `search`: how the cost model's own strategies search an open world; `propose`: what the policy's strategy is made of.
    """

    seeds: int = 5
    ks: list[int] = field(default_factory=lambda: [0, 1, 10, 25])
    methods: list[str] = field(default_factory=lambda: list(METHODS))
    split: str = "test"
    workloads: list[str] = field(default_factory=list)
    batch: int = 5
    budget_s: float = 0.0
    final_rounds: int = 3
    recorded_finalists: int = 3
    tie: float = 0.005
    policy: str = "latest"
    search: SearchSettings = field(default_factory=SearchSettings)
    propose: ProposeSettings = field(default_factory=ProposeSettings)

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.methods) - set(METHODS)):
            raise InputError(f"evaluate.methods: {', '.join(unknown)} unknown; known: {', '.join(METHODS)}")
        if self.seeds < 1 or self.batch < 1 or self.final_rounds < 1:
            raise InputError("evaluate.seeds, evaluate.batch and evaluate.final_rounds must be 1 or more")
        if self.policy not in POLICIES:
            raise InputError(f"evaluate.policy={self.policy} is unknown; use one of {', '.join(POLICIES)}")
        if not self.ks or min(self.ks) < 0:
            raise InputError(f"evaluate.ks={list(self.ks)}: give one or more numbers of measurements, 0 or more")


@dataclass(frozen=True)
class Evaluation:
    """All picks with their true times, the yardsticks, and the course of each method's regret.

    `regret[method]` has shape (max k + 1, trials): 1 - fraction of the best known after 0, 1, 2, ... measurements, by the
    times as they were measured. `left_out`: workloads without recorded timings to replay, or for which there was no time.
    """

    picks: list[Pick]
    yardsticks: dict[Workload, Yardstick]
    regret: dict[str, np.ndarray]
    left_out: list[Workload]


@dataclass(frozen=True)
class Journal:
    """Measurements of a run: those an interrupted one left, and where new ones go as they come."""

    earlier: Sequence[Measurement] = ()
    save: Callable[[list[Measurement]], None] = lambda measurements: None


def check_apart(workloads: Sequence[Workload], trained: Sequence[str], what: str) -> None:
    """InputError when something was fitted on a workload it is to be judged on."""
    if leaked := sorted({str(w) for w in workloads} & set(trained)):
        raise InputError(f"{what} was trained on {leaked[0]}, which it is to be evaluated on: fit it on the training split only")


def evaluate(
    factories: Mapping[str, Factory],
    workloads: Sequence[Workload],
    template: Template,
    measurer: Measurer,
    settings: EvaluateSettings,
    recorded_best: Mapping[Workload, Sequence[dict[str, int]]],
    seed: int = 0,
    advance: Callable[[int], None] = lambda n: None,
    journal: Journal | None = None,
) -> Evaluation:
    """Run every factory's strategy on every workload with every seed, workload by workload.

    `recorded_best`: the fastest recorded configs of a workload, which count for the best known.
    `advance` is called with the number of trial rounds done.
    """
    journal = journal or Journal()
    judged: list[Judged] = []
    left_out: list[Workload] = []
    started = time.monotonic()
    for workload in workloads:
        if judged and _too_late(settings.budget_s, started, len(judged)):
            left_out.append(workload)
            continue
        task = task_of(template, workload, measurer)
        earlier = {config_text(m.config): m for m in journal.earlier if m.workload == workload}
        memory = Memory(measurer, task, earlier, journal.save)
        judged.append(judge(factories, memory, settings, recorded_best.get(workload, ()), seed, advance))
    return Evaluation(
        picks=[pick for j in judged for pick in j.picks],
        yardsticks={j.workload: j.yardstick for j in judged},
        regret={name: np.hstack([j.regret[name] for j in judged]) for name in factories},
        left_out=left_out,
    )


def _too_late(budget_s: float, started: float, done: int) -> bool:
    elapsed = time.monotonic() - started
    return 0 < budget_s < elapsed + elapsed / done


def task_of(template: Template, workload: Workload, measurer: Measurer) -> Task:
    """The workload as a task; InputError where a closed world knows nothing of it."""
    known = measurer.known(workload)
    # In an order that says nothing: a replay lists the fastest first, and ties would then fall to the fastest.
    pool = None if known is None else tuple(sorted((config for config in known if config), key=config_text))
    if pool is not None and not pool:
        raise InputError(f"{workload}: nothing recorded to replay; collect it first or leave it out (evaluate.workloads)")
    return Task(template, workload, measurer.device, pool)


@dataclass(frozen=True)
class Judged:
    """One workload's part of an `Evaluation`."""

    workload: Workload
    picks: list[Pick]
    yardstick: Yardstick
    regret: dict[str, np.ndarray]


def judge(
    factories: Mapping[str, Factory],
    memory: Memory,
    settings: EvaluateSettings,
    recorded_best: Sequence[dict[str, int]],
    seed: int,
    advance: Callable[[int], None] = lambda n: None,
) -> Judged:
    """All methods and seeds on one workload, and the true times of what they chose."""
    task = memory.task
    trials = [
        Trial(factory(), s, np.random.default_rng([seed, s, *f"{name}/{task.workload}".encode()]))
        for name, factory in factories.items()
        for s in range(settings.seeds)
    ]
    run_trials(trials, memory, settings.ks, settings.batch, lambda: advance(len(trials)))
    chosen = finalists(trials, task, settings.ks, recorded_best, "vendor" in settings.methods)
    true_us, statuses = true_times(chosen, memory, settings.final_rounds)
    yardstick = _yardstick(task, memory, true_us)
    picks = [_pick(trial, task, k, true_us, statuses) for trial in trials for k in sorted(settings.ks)]
    if true_us.get("") is not None:
        picks.append(Pick(task.workload, "vendor", 0, 0, "", true_us[""], "ok"))
    elif "" in true_us:
        LOG.info("%s: no time of the vendor's kernel: %s", task.workload, memory.results[""].message)
    regret = {
        name: np.array([_course(t, task, memory, max(settings.ks), yardstick) for t in trials if t.strategy.name == name]).T
        for name in factories
    }
    return Judged(task.workload, picks, yardstick, regret)


def _yardstick(task: Task, memory: Memory, true_us: Times) -> Yardstick:
    ran = {text: time_us for text, time_us in true_us.items() if time_us is not None}
    vendor_us = ran.pop("", None)
    naive_us = ran.get(config_text(naive_config(task)))
    if naive_us is None:
        raise InputError(f"{task.workload}: the naive config has no time, so there is no baseline; collect it again")
    best = min(ran, key=lambda text: ran[text])
    expert_us = ran.get(config_text(expert_config(task)))
    return Yardstick(ran[best], best, naive_us, expert_us, vendor_us)


def _pick(trial: Trial, task: Task, k: int, true_us: Times, statuses: Mapping[str, str]) -> Pick:
    text = config_text(trial.pick(task, k))
    return Pick(task.workload, trial.strategy.name, trial.seed, k, text, true_us[text], statuses[text])


def _course(trial: Trial, task: Task, memory: Memory, longest: int, yardstick: Yardstick) -> list[float]:
    """Regret after 0, 1, ..., `longest` measurements."""
    result: list[float] = []
    for k in range(longest + 1):
        measurement = memory.results.get(config_text(trial.pick(task, k)))
        time_us = measurement.time_us if measurement else None
        result.append(1.0 if time_us is None else max(0.0, 1.0 - yardstick.best_us / time_us))
    return result
