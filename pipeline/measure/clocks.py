"""NVML: what the GPU's clocks, temperature and other processes do. Observes only; the only importer of pynvml.

Whatever NVML does not say is None: no NVML at all, no rights, not supported.
"""

import importlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from datasets.measurement import Conditions

REASONS = {
    0x1: "idle", 0x2: "application_clocks", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost", 0x20: "sw_thermal",
    0x40: "hw_thermal", 0x80: "hw_power_brake", 0x100: "display_clocks",
}  # fmt: skip
"""Bits of nvmlClocksEventReasons."""

THROTTLING = ("hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")
"""Reasons that spoil a timing. The software power cap is normal under heavy load: recorded, not refused."""

BUSY_PERCENT = 5
PROCESSES_EVERY_S = 1.0

log = logging.getLogger(__name__)


def observe_only() -> bool:
    """Whether the environment forbids changing any clock, whatever the settings say."""
    return os.environ.get("CUDA_AGENT_CLOCKS", "") == "observe"


def open_nvml(module: str = "pynvml") -> Any:
    """The initialised NVML module; raises what it, or its absence, raises."""
    nvml = importlib.import_module(module)
    nvml.nvmlInit()
    return nvml


def load_nvml(module: str = "pynvml") -> Any | None:
    """The initialised NVML module, or None (said once) where there is none."""
    try:
        return open_nvml(module)
    except Exception as error:  # no package, no library, no driver: each its own type, all mean "observe nothing"
        log.info("NVML is not available (%s): clocks are not observed", error)
        return None


def visible_gpus(nvml: Any | None) -> int | None:
    """How many GPUs NVML sees; None without NVML."""
    return None if nvml is None else _ask(nvml, nvml.nvmlDeviceGetCount)


def driver_version(nvml: Any | None) -> str | None:
    """The driver's version, e.g. 580.159.04."""
    version = None if nvml is None else _ask(nvml, nvml.nvmlSystemGetDriverVersion)
    return version.decode() if isinstance(version, bytes) else version


def _ask(nvml: Any, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except nvml.NVMLError:
        return None


def all_pids(nvml: Any | None) -> frozenset[int]:
    """Compute processes on any GPU: taken before a context is made, it tells later which entry is our own."""
    found: set[int] = set()
    for index in range(visible_gpus(nvml) or 0):
        assert nvml is not None
        if (handle := _ask(nvml, nvml.nvmlDeviceGetHandleByIndex, index)) is not None:
            found |= {p.pid for p in _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []}
    return frozenset(found)


@dataclass(frozen=True)
class Reading:
    """One look at a GPU. `foreign_busy`: another process uses it right now; None where NVML does not tell."""

    sm_clock_mhz: int | None = None
    reasons: tuple[str, ...] = ()
    temperature_c: int | None = None
    foreign: int | None = None
    foreign_busy: bool | None = None


class Observer:
    """Looks at one GPU, found by PCI bus id. `earlier` are the pids seen before our context existed.

    In a container NVML lists host pids: an entry that is new since `earlier` is taken for ours when our pid is not listed.
    """

    def __init__(self, nvml: Any | None, pci_bus_id: str, earlier: frozenset[int] = frozenset(), pid: int | None = None) -> None:
        self.nvml = nvml
        self.handle = None if nvml is None else _ask(nvml, nvml.nvmlDeviceGetHandleByPciBusId, pci_bus_id.encode())
        pids = self._pids() or frozenset()
        own = os.getpid() if pid is None else pid
        self.own = frozenset({own}) if own in pids else frozenset({own}) | (pids - earlier)
        self._looked = -PROCESSES_EVERY_S
        self._foreign: int | None = None
        self._busy: bool | None = None
        self._since = int(time.time() * 1e6)  # NVML keeps samples of the past, when nothing of ours ran

    def read(self) -> Reading:
        """Clocks, reasons and temperature now; processes as of at most a second ago."""
        nvml = self.nvml
        if nvml is None or self.handle is None:
            return Reading()
        self._look_at_processes()
        bits = _ask(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, self.handle) or 0
        return Reading(
            sm_clock_mhz=_ask(nvml, nvml.nvmlDeviceGetClockInfo, self.handle, nvml.NVML_CLOCK_SM),
            reasons=tuple(name for bit, name in REASONS.items() if bits & bit),
            temperature_c=_ask(nvml, nvml.nvmlDeviceGetTemperature, self.handle, nvml.NVML_TEMPERATURE_GPU),
            foreign=self._foreign,
            foreign_busy=self._busy,
        )

    def _pids(self) -> frozenset[int] | None:
        if self.nvml is None or self.handle is None:
            return None
        processes = _ask(self.nvml, self.nvml.nvmlDeviceGetComputeRunningProcesses, self.handle)
        return None if processes is None else frozenset(p.pid for p in processes)

    def _look_at_processes(self) -> None:
        if time.monotonic() - self._looked < PROCESSES_EVERY_S:
            return
        self._looked = time.monotonic()
        pids = self._pids()
        self._foreign = None if pids is None else len(pids - self.own)
        self._busy = self._others_busy() if self._foreign else (None if pids is None else False)

    def _others_busy(self) -> bool | None:
        assert self.nvml is not None
        samples = _ask(self.nvml, self.nvml.nvmlDeviceGetProcessUtilization, self.handle, self._since)
        if samples is None:
            return None
        self._since = max((s.timeStamp for s in samples), default=self._since)
        return bool(sum(s.smUtil for s in samples if s.pid not in self.own) > BUSY_PERCENT)


def conditions(before: Reading, after: Reading, locked_mhz: int | None = None) -> Conditions:
    """What a row keeps of the two looks around a timing. Locked means that the clock read afterwards is the locked one."""
    clock = after.sm_clock_mhz
    return Conditions(
        sm_clock_before_mhz=before.sm_clock_mhz,
        sm_clock_after_mhz=clock,
        clocks_locked=locked_mhz is not None and clock is not None and abs(clock - locked_mhz) <= 0.03 * locked_mhz,
        throttle_reasons=" ".join(dict.fromkeys(reason for reason in before.reasons + after.reasons if reason != "idle")),
        temperature_c=after.temperature_c,
        foreign_processes=after.foreign,
    )


def clock_change(before: Reading, after: Reading) -> float:
    """Relative change of the SM clock over the timing, negative when it fell; 0 where it is not known."""
    if not before.sm_clock_mhz or not after.sm_clock_mhz:
        return 0.0
    return after.sm_clock_mhz / before.sm_clock_mhz - 1.0


def contamination(before: Reading, after: Reading, clock_drop: float) -> str:
    """Why a timing between two looks is not to be trusted; empty when it is. Meant to refuse little: a power cap is fine."""
    throttled = [reason for reason in THROTTLING if reason in before.reasons + after.reasons]
    if throttled:
        return f"the GPU throttled ({', '.join(throttled)})"
    if before.foreign_busy or after.foreign_busy:
        return "another process used the GPU"
    if clock_change(before, after) < -clock_drop:
        return f"the SM clock fell from {before.sm_clock_mhz} to {after.sm_clock_mhz} MHz"
    return ""
