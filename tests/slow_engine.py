"""An engine without a GPU whose measurements take real time, as a GPU's do: for how well many of them are kept busy."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

from pipeline.measure.jobs import Job, Outcome
from tests.fake_engine import FakeEngine

KILLS_ITS_KEEPER = 13
"""A workload with this M takes with it the process that started the worker."""


class SlowEngine(FakeEngine):
    """FakeEngine's answers and faults, a right answer after SLOW_S seconds; its message says on which GPU."""

    def measure(self, job: Job, phase: Callable[[str], None]) -> Outcome:
        """Answer slowly."""
        phase("check")
        if job.candidate.workload["M"] == KILLS_ITS_KEEPER:
            os.kill(os.getppid(), signal.SIGKILL)
        outcome = super().measure(job, phase)
        seconds = float(os.environ["SLOW_S"])
        time.sleep(seconds)
        return replace(outcome, message=f"on GPU {os.environ['CUDA_VISIBLE_DEVICES']}", busy_s=seconds)
