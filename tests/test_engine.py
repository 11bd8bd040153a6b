"""The engine's decisions about a timing and an error, on a simulated stream; the rest needs a GPU (tests/gpu)."""

from collections.abc import Iterator

import pytest

from pipeline.measure.clocks import Reading
from pipeline.measure.engine import GpuEngine
from pipeline.measure.gpu import GpuError, fault_of
from pipeline.measure.jobs import Outcome
from pipeline.measure.settings import TimingSettings
from tests.test_timing import SimulatedLane

STEADY, THROTTLED = Reading(1980), Reading(1980, ("hw_thermal",))
RISING = (Reading(345), Reading(1980))


class Watcher:
    """An observer that tells the readings it was given, then steady ones."""

    def __init__(self, *readings: Reading) -> None:
        self.readings: Iterator[Reading] = iter(readings)
        self.looks = 0

    def read(self) -> Reading:
        self.looks += 1
        return next(self.readings, STEADY)


class Stream:
    """A GPU whose context is alive or lost."""

    def __init__(self, lost: bool = False) -> None:
        self.lost = lost

    def sync(self) -> None:
        if self.lost:
            raise GpuError("CUDA_ERROR_ILLEGAL_ADDRESS")


def engine(*readings: Reading, lost: bool = False) -> GpuEngine:
    made = object.__new__(GpuEngine)
    made.timing, made.locked_mhz = TimingSettings(retries=2), None
    made.observer, made.lane, made.gpu = Watcher(*readings), SimulatedLane(20.0), Stream(lost)  # type: ignore[assignment]
    return made


def timed(made: GpuEngine, floor: float = 1.0) -> Outcome:
    return made._time(made.lane.launch, 20.0, None, floor)  # type: ignore[attr-defined]


def test_a_quiet_timing_is_ok_at_once() -> None:
    made = engine()
    outcome = timed(made)
    assert outcome.status == "ok" and outcome.samples_us and made.observer.looks == 2  # type: ignore[attr-defined]


def test_a_contaminated_timing_is_repeated_and_may_come_good() -> None:
    outcome = timed(engine(STEADY, THROTTLED, STEADY, Reading(1500)))
    assert outcome.status == "ok" and outcome.conditions.throttle_reasons == ""


def test_one_that_stays_contaminated_is_recorded_as_such_with_its_conditions() -> None:
    outcome = timed(engine(*[STEADY, THROTTLED] * 3))
    assert (outcome.status, outcome.message) == ("contaminated", "the GPU throttled (hw_thermal)")
    assert outcome.conditions.throttle_reasons == "hw_thermal" and outcome.samples_us


def test_a_clock_still_rising_is_timed_again_but_never_refused() -> None:
    made = engine(*RISING)
    assert timed(made).status == "ok" and made.observer.looks == 4  # type: ignore[attr-defined]
    assert timed(engine(*RISING * 3)).status == "ok"


def test_a_time_below_the_roofline_is_confirmed_and_then_refused() -> None:
    made = engine()
    outcome = timed(made, floor=25.0)
    assert outcome.status == "contaminated" and "below the roofline floor of 25.00 us" in outcome.message
    assert made.observer.looks == 6  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "lost", "status", "fatal"),
    [
        ("CUDA_ERROR_INVALID_VALUE: bad", False, "launch_error", False),
        ("CUDA_ERROR_OUT_OF_MEMORY from cuMemAlloc", False, "launch_error", False),
        ("CUDA_ERROR_INVALID_VALUE: bad", True, "crash", True),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: while", False, "crash", True),
        ("CUDA_ERROR_LAUNCH_FAILED: trap", False, "crash", True),
    ],
)
def test_errors_that_lose_the_context_are_fatal_and_others_cost_one_row(text: str, lost: bool, status: str, fatal: bool) -> None:
    made = engine(lost=lost)

    def work() -> Outcome:
        raise RuntimeError(text)

    outcome = made._guarded(work)
    assert (outcome.status, outcome.fatal) == (status, fatal)
    assert outcome.message.startswith("CUDA error ")


def test_a_fault_of_ours_is_not_taken_for_the_candidates() -> None:
    def work() -> Outcome:
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        engine()._guarded(work)
    assert fault_of(ValueError("ours")) is None
