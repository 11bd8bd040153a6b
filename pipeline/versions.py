"""What a run was made with: Python, packages, commit, compiler, driver."""

import platform
import re
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def git_commit() -> str | None:
    """The commit of this checkout, `+changes` where files differ from it; None where there is no git."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True)
        state = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() + ("+changes" if state.stdout.strip() else "")


def driver() -> str | None:
    """The NVIDIA kernel driver's version; None where there is none."""
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"(\d+\.\d+(?:\.\d+)?)", path.read_text()) if path.exists() else None
    return found[1] if found else None


@cache
def packages() -> dict[str, str]:
    """Every installed distribution and its version."""
    found = {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def versions(nvcc: str | None = None) -> dict[str, object]:
    """All of it, ready for JSON."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": git_commit(),
        "nvcc": nvcc,
        "driver": driver(),
        "packages": packages(),
    }
