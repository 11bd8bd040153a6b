"""The doctor on a machine that has a GPU."""

import pytest

from pipeline import doctor
from pipeline.checks.reading import used_gpus

pytestmark = pytest.mark.gpu


def test_a_gpu_machine_is_seen_as_one() -> None:
    facts, findings = doctor.diagnose([])
    found = {finding.check: finding for finding in findings}
    gpu = used_gpus(facts)[0]
    assert gpu.name and gpu.capability and gpu.free_bytes and gpu.max_sm_clock_mhz
    assert found["GPU"].verdict == found["NVML"].verdict == "ok"
    assert found["first kernel"].verdict == "ok", found["first kernel"]
    assert all(trial.launched and trial.cuda and trial.free_bytes for trial in facts.trials)
    assert found["architecture"].verdict == found["compiling"].verdict == "ok"
