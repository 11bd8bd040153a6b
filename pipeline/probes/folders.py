"""A folder: can a file be made in it, how fast, on which file system, with how much room."""

import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

from pipeline.checks.facts import Folder

WRITES = 5
_OCTAL = re.compile(r"\\([0-7]{3})")


def probe(path: Path, mounts: Path = Path("/proc/mounts")) -> Folder:
    """Try a folder, or what it would be made in. Leaves nothing behind."""
    existing = nearest(path)
    kind, mount = mount_of(existing.resolve(), mounts.read_text(errors="replace") if mounts.is_file() else "")
    error, write_ms = "", None
    try:
        free_bytes: int | None = shutil.disk_usage(existing).free
        write_ms = write_time_ms(existing)
    except OSError as problem:
        error, free_bytes = problem.strerror or type(problem).__name__, None
    return Folder(str(path), kind, mount, error, free_bytes, write_ms)


def nearest(path: Path) -> Path:
    """The folder itself, or the closest one above it that exists."""
    return next((p for p in (path, *path.parents) if os.path.lexists(p)), Path("/"))


def write_time_ms(folder: Path) -> float:
    """What a small file takes to be made, flushed and removed, the median of a few. OSError when it cannot be."""
    times = []
    for _ in range(WRITES):
        started = time.perf_counter()
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        times.append(1e3 * (time.perf_counter() - started))
    return median(times)


def mount_of(path: Path, mounts: str) -> tuple[str, str]:
    """(type, mount point) of the file system that holds an absolute path, by the text of /proc/mounts; empty if it says none."""
    best = ("", "")
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[1])  # blanks are written \040
        # Later lines cover earlier ones of the same place.
        if path.is_relative_to(point) and len(point) >= len(best[1]):
            best = (fields[2], point)
    return best
