"""The GPUs in use: room, company, modes, clocks. Observes; nothing here changes a setting of theirs."""

from pipeline.checks.facts import Facts, GpuState
from pipeline.checks.finding import Judged, gib, per_gpu
from pipeline.measure.clocks import THROTTLING

PROHIBITED, EXCLUSIVE = 2, 3
"""NVML's compute modes; 0 is the default."""

LEAST_BYTES = 2 << 30
"""What the largest listed matmul takes: three 8192^2 matrices, their float64 reference and magnitude, the L2 flush."""

OBSERVED = "CUDA_AGENT_CLOCKS"
ANOTHER = "choose another one: farm.gpus=[1]"


def _memory(facts: Facts, gpu: GpuState) -> Judged:
    free, total = gpu.free_bytes, gpu.total_bytes
    if free is None or total is None:
        return "skipped", "NVML does not tell", ""
    text = f"{gib(free)} free of {gib(total)}"
    if free < LEAST_BYTES:
        return "problem", f"{text}, the largest workloads need {gib(LEAST_BYTES)}", f"end what uses it, or {ANOTHER}"
    if free < LEAST_BYTES + (facts.asked.keep_mb << 20):
        fitting = (free - LEAST_BYTES) >> 20
        return "warning", f"{text}: farm.timing.keep_mb={facts.asked.keep_mb} may not fit", f"farm.timing.keep_mb={fitting}"
    return "ok", text, ""


def _processes(facts: Facts, gpu: GpuState) -> Judged:
    if gpu.processes is None:
        return "skipped", "NVML does not list them here: foreign work on the GPU would go unnoticed", ""
    if not gpu.processes:
        return "ok", "none", ""
    named = ", ".join(
        f"{p.name or 'outside of this container'} ({p.pid}{'' if p.used_bytes is None else f', {gib(p.used_bytes)}'})"
        for p in gpu.processes[:3]
    )
    more = f" and {len(gpu.processes) - 3} more" if len(gpu.processes) > 3 else ""
    reason = f"{named}{more}: timings they disturb are repeated, then marked contaminated"
    return "warning", reason, f"wait for them, end them, or {ANOTHER}"


def _compute_mode(facts: Facts, gpu: GpuState) -> Judged:
    if gpu.compute_mode is None:
        return "skipped", "NVML does not tell", ""
    administrator = "an administrator can: nvidia-smi -c DEFAULT"
    if gpu.compute_mode == PROHIBITED:
        return "problem", "prohibited: no process may compute on it", administrator
    if gpu.compute_mode == EXCLUSIVE:
        if gpu.processes:
            return "problem", "exclusive, and a process has it already", f"end that process; {administrator}"
        return "warning", "exclusive: one process at a time, so nothing else may run beside a stage", administrator
    return "ok", "default", ""


def _mig(facts: Facts, gpu: GpuState) -> Judged:
    if gpu.mig is None:
        return "ok", "this GPU has none", ""
    if not gpu.mig:
        return "ok", "off", ""
    cure = "CUDA_VISIBLE_DEVICES=MIG-<uuid> (nvidia-smi -L lists them), and keep such timings apart; or a GPU without MIG"
    return "warning", "on: a slice is measured, whose neighbours NVML does not show and whose clocks it shares", cure


def _throttling(facts: Facts, gpu: GpuState) -> Judged:
    temperature = "" if gpu.temperature_c is None else f", {gpu.temperature_c} C"
    if slowed := [reason for reason in gpu.reasons if reason in THROTTLING]:
        cure = "let it cool, look at fans and power; timings taken meanwhile are marked contaminated"
        return "warning", f"it slows down now ({', '.join(slowed)}){temperature}", cure
    return "ok", f"none now{temperature}", ""


def _persistence(facts: Facts, gpu: GpuState) -> Judged:
    if gpu.persistence is None or "microsoft" in facts.host.kernel.lower():
        return "skipped", "not supported here", ""
    if gpu.persistence:
        return "ok", "on", ""
    return "warning", "off: the driver unloads between processes, workers start slowly", "an administrator can: nvidia-smi -pm 1"


def _clocks(facts: Facts, gpu: GpuState) -> Judged:
    now = f"SM at {gpu.sm_clock_mhz or '?'} of {gpu.max_sm_clock_mhz or '?'} MHz"
    if facts.host.variables.get(OBSERVED) == "observe":
        return "ok", f"{now}; only observed: {OBSERVED}=observe", ""
    if facts.asked.gpu != "dedicated":
        rights = "gpu=dedicated could lock them" if facts.host.may_administer else "locking them would take an administrator"
        return "ok", f"{now}; only observed with gpu={facts.asked.gpu}; {rights}", ""
    mhz = facts.asked.lock_mhz
    if gpu.max_sm_clock_mhz and mhz > gpu.max_sm_clock_mhz:
        cure = f"farm.clocks.lock_mhz={gpu.max_sm_clock_mhz} or less"
        return "problem", f"farm.clocks.lock_mhz={mhz} is above the GPU's {gpu.max_sm_clock_mhz} MHz", cure
    wsl = "microsoft" in facts.host.kernel.lower()
    if wsl or not facts.host.may_administer:
        why = "WSL2 cannot lock them" if wsl else "locking them takes an administrator's rights"
        cure = f"an administrator can: nvidia-smi -lgc {mhz},{mhz}; or gpu=auto, which only observes"
        return "warning" if facts.asked.allow_unlocked else "problem", f"{now}; {why}", cure
    return "ok", f"{now}; gpu=dedicated will lock them at {mhz} MHz and restore them", ""


memory = per_gpu("GPU memory", _memory)
processes = per_gpu("other processes", _processes)
compute_mode = per_gpu("compute mode", _compute_mode)
mig = per_gpu("MIG", _mig)
throttling = per_gpu("throttling", _throttling)
persistence = per_gpu("persistence mode", _persistence)
clocks = per_gpu("clocks", _clocks)
