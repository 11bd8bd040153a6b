"""A check's outcome, and how the outcomes of several GPUs become one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from pipeline.checks.facts import Facts, GpuState
from pipeline.checks.reading import no_gpu, used_gpus

Verdict = Literal["ok", "warning", "problem", "skipped"]
GRAVITY: tuple[Verdict, ...] = ("skipped", "ok", "warning", "problem")


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's: what was looked at, the verdict and its reason, and the cure.

    problem: work on this machine stops there. warning: it goes on, but slower, less trustworthy or without something.
    skipped: there is nothing to judge here.
    """

    check: str
    verdict: Verdict
    reason: str
    cure: str = ""


Check = Callable[[Facts], Finding]
Judged = tuple[Verdict, str, str]
"""Verdict, reason and cure of one GPU."""


def per_gpu(name: str, judge: Callable[[Facts, GpuState], Judged]) -> Check:
    """A check that judges every GPU in use and says what is worst; skipped where there is none."""

    def check(facts: Facts) -> Finding:
        if reason := no_gpu(facts):
            return Finding(name, "skipped", reason)
        gpus = [gpu for gpu in used_gpus(facts) if not gpu.lost]
        if not gpus:
            return Finding(name, "skipped", "NVML tells nothing about the GPU (see NVML)")
        return merged(name, [(gpu.index, judge(facts, gpu)) for gpu in gpus])

    check.__name__ = name
    return check


def merged(name: str, judged: Iterable[tuple[int, Judged]]) -> Finding:
    """The worst verdict, with the GPUs it applies to named where they are not all of them."""
    found = list(judged)
    worst = max((judgement[0] for _, judgement in found), key=GRAVITY.index)
    bad = [(index, judgement) for index, judgement in found if judgement[0] == worst]
    reasons: dict[str, list[int]] = {}
    for index, (_, reason, _) in bad:
        reasons.setdefault(reason, []).append(index)
    if len(reasons) == 1 and len(bad) == len(found):
        text = next(iter(reasons))
    else:
        text = "; ".join(f"GPU {','.join(map(str, indices))}: {reason}" for reason, indices in reasons.items())
    return Finding(name, worst, text, next((cure for _, (_, _, cure) in bad if cure), ""))


def gib(size: int) -> str:
    """Bytes for people."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def replay_note(facts: Facts, otherwise: Verdict) -> Verdict:
    """`otherwise`, softened to a warning where no GPU is measured on and so nothing stops for it."""
    return "warning" if otherwise == "problem" and no_gpu(facts) else otherwise
