"""Look whether this machine can do the work: `make doctor`, or `python -m pipeline.doctor gpu=dedicated farm.build.jobs=16`.

Every check gives a verdict and its reason, and the cure where one is needed. Takes the settings of any run, changes nothing,
leaves no folder in outputs/. Exit status: 0 all well, or warnings only; 1 a problem that stops the work; 2 bad settings. A
machine without a GPU is no problem as long as the recorded timings can be replayed: what concerns GPUs is skipped.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.checks.catalogue import conclusion, examine
from pipeline.checks.facts import Asked, Facts
from pipeline.checks.finding import Finding, Verdict
from pipeline.measure.cache import default_cache_dir
from templates.errors import InputError

if TYPE_CHECKING:
    from pipeline.config import Settings

COLOURS: dict[Verdict, str] = {"ok": "32", "warning": "33", "problem": "31", "skipped": "2"}


def asked(settings: "Settings") -> Asked:
    """What the settings want of the machine."""
    farm = settings.farm
    return Asked(
        gpu=settings.gpu.mode, recorded=settings.gpu.recorded, op=settings.op.name, gpus=tuple(farm.gpus), jobs=farm.build.jobs,
        slow_compile_s=farm.build.slow_compile_s, keep_mb=farm.timing.keep_mb, lock_mhz=farm.clocks.lock_mhz,
        allow_unlocked=farm.clocks.allow_unlocked,
    )  # fmt: skip


def printed(findings: Sequence[Finding], colour: bool = False) -> str:
    """A line a finding, the cure below it."""
    width = max(len(finding.check) for finding in findings)
    lines: list[str] = []
    for found in findings:
        verdict = f"{found.verdict:<8}"
        if colour:
            verdict = f"\x1b[{COLOURS[found.verdict]}m{verdict}\x1b[0m"
        lines.append(f"{verdict} {found.check:<{width}}  {found.reason}")
        if found.cure:
            lines.append(f"{'':8} {'':{width}}  -> {found.cure}")
    return "\n".join(lines)


def diagnose(overrides: Sequence[str]) -> tuple[Facts, list[Finding]]:
    """Look, then examine. InputError for settings that cannot be used."""
    started = time.monotonic()
    from pipeline import config  # takes seconds, and may fail where packages are missing
    from pipeline.probes.everything import LIMIT_S, Place, look

    settings = config.settings(*overrides)
    place = Place(
        recorded=config.path(settings.recorded_dir),
        folders={
            "cache": Path(settings.farm.build.cache_dir or default_cache_dir()).expanduser().absolute(),
            "scratch": _scratch(),
            "outputs": config.path(settings.outputs_dir),
            "data": config.path(settings.data_dir),
        },
        build=settings.farm.build,
    )
    facts, silent = look(asked(settings), place, max(10.0, LIMIT_S - (time.monotonic() - started)))
    return facts, [*examine(facts), *silent]


def _scratch() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # none can be written: the probe says why
        return Path(os.environ.get("TMPDIR", "/tmp"))


def crippled(error: ImportError) -> tuple[Facts, list[Finding]]:
    """What can be said where a package is missing that the settings themselves need."""
    from pipeline.probes import packages

    facts = Facts(packages=packages.probe())
    lines = [finding for finding in examine(facts) if finding.check in ("Python", "packages")]
    missing = Finding("settings", "problem", f"cannot be read: {' '.join(str(error).split())}", "make clean setup")
    return facts, [*lines, missing]


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 fit for work, 1 a problem, 2 bad input, 130 interrupted."""
    if "--help" in arguments or "-h" in arguments:
        print(__doc__)
        return 0
    started = time.monotonic()
    if sys.stderr.isatty():
        print("doctor: looks at packages, compilers, GPUs and disks; takes some seconds", file=sys.stderr)
    try:
        facts, findings = diagnose(arguments)
    except ImportError as error:
        facts, findings = crippled(error)
    except InputError as error:
        print(f"doctor: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("doctor: interrupted", file=sys.stderr)
        return 130
    print(printed(findings, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    print(f"\ndoctor: {conclusion(facts, findings)} ({time.monotonic() - started:.0f} s)")
    return int(any(finding.verdict == "problem" for finding in findings))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that goes away, as `head` does, ends it quietly
    sys.exit(main(sys.argv[1:]))
