"""A pretended NVML. Its state is a JSON file (FAKE_NVML), so that several processes see the same GPU; setters are logged."""

import copy
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_CLOCK_SM = 1
NVML_TEMPERATURE_GPU = 0
START: dict[str, Any] = {
    "clock": 1980, "reasons": 0, "temperature": 40, "pids": [], "utilisation": [], "permitted": True, "effective": True,
    "locked": None, "setters": [],
}  # fmt: skip


class NVMLError(Exception):
    pass


class NVMLError_NoPermission(NVMLError):
    def __str__(self) -> str:
        return "Insufficient Permissions"


@contextmanager
def state() -> Iterator[dict[str, Any]]:
    """The shared state, written back on leaving."""
    path = Path(os.environ["FAKE_NVML"])
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        values = json.loads(text) if text else copy.deepcopy(START)
        yield values
        file.seek(0)
        file.truncate()
        file.write(json.dumps(values))


def nvmlInit() -> None:
    pass


def nvmlSystemGetDriverVersion() -> str:
    return "580.1"


def nvmlDeviceGetCount() -> int:
    return 1


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetHandleByPciBusId(pci: bytes) -> int:
    return 0


def nvmlDeviceGetClockInfo(handle: int, kind: int) -> int:
    with state() as s:
        return int(s["locked"] if s["locked"] and s["effective"] else s["clock"])


def nvmlDeviceGetCurrentClocksEventReasons(handle: int) -> int:
    with state() as s:
        return int(s["reasons"])


def nvmlDeviceGetTemperature(handle: int, kind: int) -> int:
    with state() as s:
        return int(s["temperature"])


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[SimpleNamespace]:
    with state() as s:
        return [SimpleNamespace(pid=pid) for pid in s["pids"]]


def nvmlDeviceGetProcessUtilization(handle: int, since: int) -> list[SimpleNamespace]:
    with state() as s:
        if s["utilisation"] is None:
            raise NVMLError("Not Supported")
        return [SimpleNamespace(pid=pid, smUtil=util, timeStamp=since + 1) for pid, util in s["utilisation"]]


def nvmlDeviceSetGpuLockedClocks(handle: int, low: int, high: int) -> None:
    with state() as s:
        s["setters"].append(["lock", low, high])
        if s["permitted"]:
            s["locked"] = high
    if not s["permitted"]:
        raise NVMLError_NoPermission()


def nvmlDeviceResetGpuLockedClocks(handle: int) -> None:
    with state() as s:
        s["setters"].append(["reset"])
        s["locked"] = None
