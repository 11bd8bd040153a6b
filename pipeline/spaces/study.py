"""The transfer study: every GPU of every kernel left out in turn, every method and seed, and what became of them."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from cost_model.model import CostModelSettings
from datasets.measured_space import MeasuredSpace, by_kernel
from pipeline.baselines import kernel_tuner_replay
from pipeline.records import confidence_interval
from pipeline.spaces.known import LeftOut, SpaceReplay
from pipeline.spaces.methods import METHODS, Knowledge
from pipeline.spaces.score import Ruler
from pipeline.strategies.trial import Memory, Trial, run_trials
from templates.errors import InputError

PREFIX = "kernel_tuner:"


@dataclass(frozen=True)
class TransferSettings:
    """folder: Kernel Tuner caches or T4 files of kernels measured on several GPUs. budgets: numbers of measurements to report at.
    batch: measurements between two decisions; Kernel Tuner's strategies decide after each. kernel_tuner: its strategies to run
    beside `methods` (all of them unless listed; none where it is not installed), of which the best `best` are printed.
    """

    folder: str = ""
    budgets: list[int] = field(default_factory=lambda: [10, 25, 50, 100])
    seeds: int = 5
    batch: int = 5
    methods: list[str] = field(default_factory=lambda: list(METHODS))
    kernel_tuner: list[str] = field(default_factory=lambda: list(kernel_tuner_replay.STRATEGIES))
    best: int = 3

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.methods) - set(METHODS)):
            raise InputError(f"transfer.methods: {', '.join(unknown)} unknown; known: {', '.join(METHODS)}")
        kernel_tuner_replay.strategies(self.kernel_tuner)
        if not self.budgets or min(self.budgets) < 1 or self.seeds < 1 or self.batch < 1:
            raise InputError("transfer.budgets, transfer.seeds and transfer.batch must be 1 or more")


@dataclass(frozen=True)
class Course:
    """What one method measured with one seed on one left-out GPU: times in order, None for what failed."""

    kernel: str
    gpu: str
    method: str
    seed: int
    times_us: tuple[float | None, ...]


@dataclass(frozen=True)
class Score:
    """A method after `measurements`: P and fraction of the optimum, means over GPUs and seeds with 95 % confidence intervals, and
    the worst GPU's median fraction. `gpu` is empty for all of them together.
    """

    kernel: str
    gpu: str
    method: str
    measurements: int
    p: float
    p_interval: tuple[float, float]
    fraction: float
    fraction_interval: tuple[float, float]
    worst_fraction: float


def groups(spaces: Sequence[MeasuredSpace]) -> dict[str, list[MeasuredSpace]]:
    """Spaces by kernel, the same timings under another name left out; only kernels of two GPUs and more. InputError: none."""
    found = {}
    for kernel, group in by_kernel(spaces).items():
        apart: list[MeasuredSpace] = []
        for space in group:
            if not any(_same_timings(space, other) for other in apart):
                apart.append(space)
        if len(apart) > 1:
            found[kernel] = apart
    if not found:
        raise InputError("no kernel measured on two GPUs among these files: transfer needs something to transfer from")
    return found


def _same_timings(one: MeasuredSpace, other: MeasuredSpace) -> bool:
    """Whether two files hold one GPU's timings: more than half of them are equal."""
    times = {row.values: row.time_us for row in one.rows}
    same = sum(row.time_us is not None and times.get(row.values) == row.time_us for row in other.rows)
    return 2 * same > min(len(one.rows), len(other.rows))


Key = tuple[str, str, str, int]


def courses(
    group: Sequence[MeasuredSpace], kernel: str, settings: TransferSettings, model: CostModelSettings, seed: int,
    done: set[Key], advance: Callable[[], None],
) -> Iterator[Course]:  # fmt: skip
    """Everything to be run on one kernel that is not `done`, seed after seed, each course as soon as it is there."""
    left_out = [LeftOut.of(target, [space for space in group if space is not target]) for target in group]
    with tempfile.TemporaryDirectory() as folder:
        caches = [kernel_tuner_replay.cached(space, folder) for space in group] if settings.kernel_tuner else []
        for one in range(seed, seed + settings.seeds):
            for place, here in enumerate(left_out):
                knowledge = Knowledge(here, model, one)
                for method in (*settings.methods, *(PREFIX + name for name in settings.kernel_tuner)):
                    if (kernel, here.target.device, method, one) not in done:
                        if method.startswith(PREFIX):
                            times = _theirs(here.target, caches[place], method.removeprefix(PREFIX), settings, one)
                        else:
                            times = _ours(knowledge, method, settings)
                        yield Course(kernel, here.target.device, method, one, times)
                    advance()


def _ours(knowledge: Knowledge, method: str, settings: TransferSettings) -> tuple[float | None, ...]:
    here, seed = knowledge.left_out, knowledge.seed
    trial = Trial(knowledge.strategy(method), seed, np.random.default_rng([seed, *method.encode()]))
    run_trials([trial], Memory(SpaceReplay(here), here.task), [1, *settings.budgets], settings.batch)
    return tuple(m.time_us for m in trial.history[: max(settings.budgets)])


def _theirs(
    space: MeasuredSpace, cache: Path, strategy: str, settings: TransferSettings, seed: int
) -> tuple[float | None, ...]:
    visited = kernel_tuner_replay.simulate(space, cache, strategy, max(settings.budgets), seed)
    return tuple(time_us for _, time_us in visited)


def scores(found: Sequence[Course], rulers: dict[tuple[str, str], Ruler], budgets: Sequence[int]) -> list[Score]:
    """Every method at every budget, per kernel and per left-out GPU."""
    result = []
    for kernel in dict.fromkeys(c.kernel for c in found):
        for method in dict.fromkeys(c.method for c in found if c.kernel == kernel):
            mine = [c for c in found if (c.kernel, c.method) == (kernel, method)]
            gpus = list(dict.fromkeys(c.gpu for c in mine))
            for budget in budgets:
                p = np.array([[rulers[kernel, g].score(c.times_us, budget) for c in mine if c.gpu == g] for g in gpus])
                f = np.array([[rulers[kernel, g].fraction(c.times_us, budget) for c in mine if c.gpu == g] for g in gpus])
                result.append(_score(kernel, "", method, budget, p, f))
                result += [_score(kernel, g, method, budget, p[i : i + 1], f[i : i + 1]) for i, g in enumerate(gpus)]
    return result


def _score(kernel: str, gpu: str, method: str, budget: int, p: np.ndarray, fraction: np.ndarray) -> Score:
    """`p` and `fraction` have shape (GPUs, seeds)."""
    rng = np.random.default_rng(0)
    worst = float(np.median(fraction, axis=1).min())
    return Score(
        kernel, gpu, method, budget, float(p.mean()), confidence_interval(p, rng), float(fraction.mean()),
        confidence_interval(fraction, rng), worst,
    )  # fmt: skip


def shown(found: Sequence[Score], kernel: str, settings: TransferSettings) -> list[str]:
    """The methods to print: ours, and of Kernel Tuner's the best by mean P at the largest budget, in hindsight."""
    whole = [s for s in found if s.kernel == kernel and not s.gpu and s.measurements == max(settings.budgets)]
    theirs = sorted((s for s in whole if s.method.startswith(PREFIX)), key=lambda s: -s.p)[: settings.best]
    return [s.method for s in whole if not s.method.startswith(PREFIX)] + [s.method for s in theirs]


def as_json(course: Course) -> dict[str, object]:
    """For a line of courses.jsonl."""
    return asdict(course)
