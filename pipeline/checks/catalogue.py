"""All checks in the order they are printed, and their examination."""

from collections.abc import Iterable

from pipeline.checks import driver, gpus, machine, software, storage, toolkit
from pipeline.checks.facts import Facts
from pipeline.checks.finding import Check, Finding
from pipeline.checks.reading import no_gpu, used_gpus

CHECKS: tuple[Check, ...] = (
    software.python, software.packages, software.pytorch, software.ray,
    machine.wsl, machine.container, machine.cores, machine.shared_memory,
    toolkit.nvcc, toolkit.toolkits, toolkit.gcc, toolkit.builds, toolkit.architecture,
    driver.gpu, driver.nvml, driver.driver, driver.trial, software.pytorch_cuda, software.pytorch_architecture,
    gpus.memory, gpus.processes, gpus.compute_mode, gpus.mig, gpus.clocks, gpus.throttling, gpus.persistence,
    storage.cache, storage.scratch, storage.temporary, storage.outputs, storage.data, storage.recording,
)  # fmt: skip


def examine(facts: Facts, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """Every check's finding. A check that fails itself is a warning: the others still count."""
    return [_one(check, facts) for check in checks]


def _one(check: Check, facts: Facts) -> Finding:
    try:
        return check(facts)
    except Exception as error:  # a fault of ours must not hide what the other checks say
        reason = f"this check is at fault itself ({type(error).__name__}: {error})"
        return Finding(check.__name__, "warning", " ".join(reason.split()), "please report it")


def conclusion(facts: Facts, findings: Iterable[Finding]) -> str:
    """What this machine is good for, in one line."""
    found = list(findings)
    problems = sum(finding.verdict == "problem" for finding in found)
    warnings = sum(finding.verdict == "warning" for finding in found)
    also = f"; {_count(warnings, 'warning')}" if warnings else ""
    if problems:
        return f"{_count(problems, 'problem')} to solve first{also}"
    if reason := no_gpu(facts):
        return f"works without a GPU ({reason}): stages replay recorded timings, nothing is measured{also}"
    return f"ready to measure on {_count(len(used_gpus(facts)) or len(facts.trials), 'GPU')}{also}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
