"""What NVML says of every GPU: `python -m pipeline.probes.nvml [module]` prints it as JSON, in a process that may hang or die.

Calls nothing that sets anything.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.checks.facts import GpuState, Nvml, Process
from pipeline.measure.clocks import REASONS, driver_version, open_nvml
from pipeline.probes.child import ask


def probe(limit_s: float, module: str = "pynvml") -> Nvml:
    """What the child process found out."""
    said, failure = ask("pipeline.probes.nvml", module, limit_s=limit_s)
    if failure or "error" not in said:
        return Nvml(error=failure or "said nothing")
    return _nvml(said)


def _nvml(said: dict[str, Any]) -> Nvml:
    """The dataclasses of what `asdict` and JSON made of them."""
    gpus = tuple(_gpu(gpu) for gpu in said["gpus"])
    return Nvml(**{**said, "cuda": tuple(said["cuda"]) if said["cuda"] else None, "gpus": gpus})


def _gpu(said: dict[str, Any]) -> GpuState:
    processes = said["processes"]
    return GpuState(**{
        **said,
        "capability": tuple(said["capability"]) if said["capability"] else None,
        "processes": None if processes is None else tuple(Process(**process) for process in processes),
        "reasons": tuple(said["reasons"]),
    })  # fmt: skip


def survey(module: str = "pynvml") -> Nvml:
    """Ask NVML, here."""
    try:
        nvml = open_nvml(module)
    except Exception as error:  # no package, no library, no driver: each its own type
        return Nvml(error=f"{error or type(error).__name__}".splitlines()[0])
    number = _ask(nvml, "nvmlSystemGetCudaDriverVersion_v2")
    return Nvml(
        error="",
        driver=driver_version(nvml),
        cuda=(number // 1000, number % 1000 // 10) if number else None,
        gpus=tuple(_state(nvml, index) for index in range(_ask(nvml, "nvmlDeviceGetCount") or 0)),
    )


def _state(nvml: Any, index: int) -> GpuState:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return GpuState(index, lost=str(error))
    memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    mig, persistence = _ask(nvml, "nvmlDeviceGetMigMode", handle), _ask(nvml, "nvmlDeviceGetPersistenceMode", handle)
    capability, bits = _ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle), _reasons(nvml, handle)
    return GpuState(
        index,
        name=_text(_ask(nvml, "nvmlDeviceGetName", handle)),
        uuid=_text(_ask(nvml, "nvmlDeviceGetUUID", handle)),
        capability=tuple(capability) if capability else None,
        total_bytes=None if memory is None else int(memory.total),
        free_bytes=None if memory is None else int(memory.free),
        processes=_processes(nvml, handle),
        compute_mode=_ask(nvml, "nvmlDeviceGetComputeMode", handle),
        mig=None if mig is None else bool(mig[0]),
        persistence=None if persistence is None else bool(persistence),
        sm_clock_mhz=_ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        max_sm_clock_mhz=_ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
        reasons=tuple(name for bit, name in REASONS.items() if bits & bit),
        temperature_c=_ask(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
    )


def _reasons(nvml: Any, handle: Any) -> int:
    return int(_ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle) or 0)


def _processes(nvml: Any, handle: Any) -> tuple[Process, ...] | None:
    found = _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    if found is None:
        return None
    return tuple(Process(p.pid, _process_name(p.pid), getattr(p, "usedGpuMemory", None)) for p in found)


def _process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def _ask(nvml: Any, name: str, *args: Any) -> Any:
    """A reading, None where this NVML, its bindings or the GPU have no such thing."""
    function = getattr(nvml, name, None)
    if function is None:
        return None
    try:
        return function(*args)
    except nvml.NVMLError:
        return None


if __name__ == "__main__":
    print(json.dumps(asdict(survey(*sys.argv[1:]))))
