"""A run's folder on disk: found or made, locked, marked, logged to; and how the process may be stopped meanwhile."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from pipeline.versions import ROOT
from templates.errors import InputError

OWN_FILES = {"config.yaml", "versions.json", "log.txt", "state.json", "run.lock", "stands_on.json"}
"""What is there before the stage has done anything."""

TRACEBACK = "traceback"
"""The logger whose records go to the file only."""


def write_json(target: Path, content: Mapping[str, Any]) -> None:
    """Write JSON under a temporary name, then rename: a killed run leaves the old file or the new one."""
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    with scratch.open("w") as file:
        file.write(json.dumps(content, indent=2, default=str, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(target)


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote; InputError for a file that was cut off or holds something else."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error}); delete it, or give resume=false to begin anew") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: damaged; delete it, or give resume=false to begin anew")
    return content


def find_or_make(parent: Path, config: str | None) -> tuple[Path, TextIO, bool]:
    """(folder, its lock, resumed): the newest unfinished run with this config that nobody works in, else a new folder."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise InputError(f"{parent}: cannot be made ({error.strerror}); set outputs_dir to a folder of yours") from error
    if config is not None:
        for folder in sorted((f for f in parent.iterdir() if f.is_dir() and not f.is_symlink()), reverse=True):
            if unfinished(folder, config) and (lock := take(folder)) is not None:
                return folder, lock, True
    name = time.strftime("%Y-%m-%d_%H-%M-%S")
    for number in count(1):
        folder = parent / (name if number == 1 else f"{name}_{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            if (lock := take(folder)) is not None:
                return folder, lock, False
    raise AssertionError("unreachable")


def unfinished(folder: Path, config: str) -> bool:
    """Whether a folder holds a run with this config that did not end well."""
    state, written = folder / "state.json", folder / "config.yaml"
    if not state.exists() or not written.exists() or written.read_text() != config:
        return False
    try:
        return bool(json.loads(state.read_text())["state"] != "complete")
    except (ValueError, KeyError, TypeError):  # cut off by a power failure: it did not end well
        return True


def take(folder: Path) -> TextIO | None:
    """The folder's lock, which the system drops when the process dies; None when another run holds it."""
    file = (folder / "run.lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def point(link: Path, folder: Path) -> None:
    """Move a link to a folder beside it in one step."""
    scratch = link.with_name(f".{link.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(folder.name)
    scratch.replace(link)


@contextlib.contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Everything to log.txt; our own decisions, and others' warnings, also to stderr: once, where a run holds others."""
    root = logging.getLogger()
    inner = any(_for_people in handler.filters for handler in root.handlers)
    file = logging.FileHandler(folder / "log.txt")
    file.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk is told once, by the stage
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%H:%M:%S"))
    console = logging.StreamHandler(sys.stderr)
    console.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    console.addFilter(_for_people)
    level = root.level
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    root.addHandler(file)
    if not inner:
        root.addHandler(console)
    try:
        yield
    finally:
        logging.captureWarnings(inner)
        root.setLevel(level)
        for handler in (file, console):
            root.removeHandler(handler)
            with contextlib.suppress(OSError):  # flushing to a full disk
                handler.close()


def _for_people(record: logging.LogRecord) -> bool:
    """Whether a record belongs on the terminal: warnings, and what this repository's own code says."""
    if record.name in (TRACEBACK, "py.warnings"):
        return False
    path = Path(record.pathname)
    return record.levelno >= logging.WARNING or (path.is_relative_to(ROOT) and "site-packages" not in path.parts)


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a run like Ctrl-C does, so that clean-up runs; left alone where somebody else handles it."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        ours = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if ours:
            signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # only the main thread may set handlers
        ours = False
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
