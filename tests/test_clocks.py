"""Clocks against a pretended NVML: observed always, locked only when asked, restored on every way out."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.measure import clocks, lock
from pipeline.measure.clocks import Observer, Reading, clock_change, conditions, contamination
from pipeline.measure.lock import ClockLock
from pipeline.measure.settings import ClockSettings
from templates.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
DEDICATED = ClockSettings(mode="dedicated", lock_mhz=1500)
PCI = ["0000:65:00.0"]


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.json"))
    monkeypatch.delenv("CUDA_AGENT_CLOCKS", raising=False)
    monkeypatch.setattr(clocks, "PROCESSES_EVERY_S", 0.0)
    monkeypatch.setattr(lock, "READ_BACK_S", 0.1)
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("tests.fake_nvml")


def put(nvml: Any, **values: Any) -> None:
    with nvml.state() as s:
        s.update(values)


def get(nvml: Any) -> dict[str, Any]:
    with nvml.state() as s:
        return dict(s)


def test_a_reading_names_reasons_and_counts_other_processes(nvml: Any) -> None:
    put(nvml, clock=1755, reasons=0x4 | 0x40, temperature=61, pids=[7, 8, 9], utilisation=[[8, 3], [7, 90]])
    reading = Observer(nvml, PCI[0], pid=7).read()
    assert reading == Reading(1755, ("sw_power_cap", "hw_thermal"), 61, 2, False)
    put(nvml, utilisation=[[8, 30]])
    assert Observer(nvml, PCI[0], pid=7).read().foreign_busy is True
    put(nvml, utilisation=None)
    assert Observer(nvml, PCI[0], pid=7).read().foreign_busy is None
    assert get(nvml)["setters"] == []


def test_our_own_process_under_another_pid_is_not_foreign(nvml: Any) -> None:
    put(nvml, pids=[500])
    earlier = clocks.all_pids(nvml)
    put(nvml, pids=[500, 501])
    assert Observer(nvml, PCI[0], earlier, pid=7).read().foreign == 1


def test_without_nvml_everything_is_unknown_and_nothing_is_contaminated() -> None:
    assert clocks.load_nvml("no_such_nvml") is None
    reading = Observer(None, PCI[0]).read()
    assert reading == Reading()
    assert contamination(reading, reading, 0.1) == ""
    assert conditions(reading, reading).sm_clock_after_mhz is None


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (Reading(1980), Reading(1980), ""),
        (Reading(1980, ("sw_power_cap",)), Reading(1830, ("sw_power_cap",)), ""),
        (Reading(345, ("idle",)), Reading(1980), ""),
        (Reading(1980, foreign=1), Reading(1980, foreign=1, foreign_busy=None), ""),
        (Reading(1980), Reading(1500), "the SM clock fell from 1980 to 1500 MHz"),
        (Reading(1980), Reading(1980, ("hw_thermal",)), "the GPU throttled (hw_thermal)"),
        (Reading(1980), Reading(1980, foreign=1, foreign_busy=True), "another process used the GPU"),
    ],
)
def test_contamination_is_what_spoils_a_timing_and_no_more(before: Reading, after: Reading, why: str) -> None:
    assert contamination(before, after, 0.1) == why


def test_clock_change_is_signed_and_conditions_leave_idle_out() -> None:
    assert clock_change(Reading(1000), Reading(1200)) == pytest.approx(0.2)
    assert conditions(Reading(1, ("idle",)), Reading(1, ("sw_power_cap",))).throttle_reasons == "sw_power_cap"
    assert conditions(Reading(1500), Reading(1500), locked_mhz=1500).clocks_locked
    assert not conditions(Reading(1500), Reading(1980), locked_mhz=1500).clocks_locked


def test_locking_reads_back_and_restores(nvml: Any) -> None:
    with ClockLock(DEDICATED, PCI, nvml) as held:
        assert held.locked_mhz == 1500
        assert get(nvml)["locked"] == 1500
    assert get(nvml)["setters"] == [["lock", 1500, 1500], ["reset"]]


@pytest.mark.parametrize("mode", ["auto", "shared"])
def test_other_modes_never_call_a_setter(nvml: Any, mode: str) -> None:
    with ClockLock(ClockSettings(mode=mode), PCI, nvml) as held:
        assert held.locked_mhz is None
    assert get(nvml)["setters"] == []


def test_the_environment_wins_over_dedicated(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_AGENT_CLOCKS", "observe")
    with ClockLock(DEDICATED, PCI, nvml) as held:
        assert held.locked_mhz is None
    assert get(nvml)["setters"] == []


def test_no_permission_is_one_line_with_the_command_or_goes_on_if_allowed(nvml: Any) -> None:
    put(nvml, permitted=False)
    with pytest.raises(InputError, match="nvidia-smi -lgc 1500,1500") as caught:
        ClockLock(DEDICATED, PCI, nvml).__enter__()
    assert "\n" not in str(caught.value)
    with ClockLock(ClockSettings("dedicated", 1500, allow_unlocked=True), PCI, nvml) as held:
        assert held.locked_mhz is None
    with pytest.raises(InputError, match="NVML is not available"):
        ClockLock(DEDICATED, PCI, None).__enter__()


def test_a_lock_without_effect_is_not_called_locked_and_is_given_back(nvml: Any) -> None:
    put(nvml, effective=False)
    with pytest.raises(InputError, match="read back 1980 MHz"):
        ClockLock(DEDICATED, PCI, nvml).__enter__()
    assert get(nvml)["locked"] is None


def test_an_exception_restores(nvml: Any) -> None:
    with pytest.raises(ZeroDivisionError), ClockLock(DEDICATED, PCI, nvml):
        _ = 1 / 0
    assert get(nvml)["locked"] is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_restore_and_a_killed_owner_is_cleaned_up_after(nvml: Any, tmp_path: Path, number: signal.Signals) -> None:
    owner = (
        "import signal, time, tests.fake_nvml as n\nfrom pipeline.measure.lock import *\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs inherit it ignored
        "with ClockLock(ClockSettings('dedicated', 1500), ['x'], n):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", owner], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    assert get(nvml)["locked"] == 1500
    process.send_signal(number)
    process.wait(10)
    deadline = time.monotonic() + 10
    while get(nvml)["locked"] is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert get(nvml)["locked"] is None
    assert json.loads((tmp_path / "nvml.json").read_text())["setters"][-1] == ["reset"]
