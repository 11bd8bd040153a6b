"""Python and its packages, against the versions that were tested together."""

import re
import sys
import tomllib
from pathlib import Path

from pipeline import versions
from pipeline.checks.facts import Packages


def probe(root: Path = versions.ROOT) -> Packages:
    """What is installed, pinned and wanted."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    lines = (root / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==", 1) for line in lines if "==" in line and not line.startswith("#"))
    return Packages(
        python=sys.version_info[:3],
        installed={normal(name): version for name, version in versions.packages().items()},
        pinned={normal(name): version.strip() for name, version in pins.items()},
        wanted=tuple(normal(re.split(r"[\s\[<>=!~;]", name)[0]) for name in project["project"]["dependencies"]),
    )


def normal(name: str) -> str:
    """A package's name as pip compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
