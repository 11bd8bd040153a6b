"""Asking another process, with a deadline: whatever it does, the answer is a value."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


class Deadline:
    """A moment after which nobody waits any more."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self, at_most: float = float("inf")) -> float:
        """Seconds until then, at most so many, never below a tenth."""
        return max(0.1, min(at_most, self._end - time.monotonic()))


@dataclass(frozen=True)
class Answer:
    """What a process said. `failure`: why it is no good, one line, empty when it ended well."""

    out: str = ""
    err: str = ""
    failure: str = ""


def run(command: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None) -> Answer:
    """Run a command in a process group of its own, which is killed at the limit. Never raises for what the command does."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            start_new_session=True, cwd=ROOT, env=None if env is None else dict(env),
        )  # fmt: skip
    except OSError as error:
        return Answer(failure=f"{command[0]} cannot be run: {error.strerror}")
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as late:
        _kill(process)
        return Answer(_text(late.stdout), _text(late.stderr), f"did not answer within {limit_s:.0f} s")
    return Answer(out, err, _failure(process.returncode, err))


def _kill(process: "subprocess.Popen[str]") -> None:
    """End the group; one that not even SIGKILL ends (it hangs in the kernel) is left to itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _failure(status: int, err: str) -> str:
    if status == 0:
        return ""
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"died of {signal.Signals(-status).name}"
        return f"died of signal {-status}"
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"exit status {status}"


def ask(module: str, *arguments: str, limit_s: float, env: Mapping[str, str] | None = None) -> tuple[dict[str, Any], str]:
    """Run a module of ours that prints JSON objects, one a line: (all of them merged, failure)."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, **(env or {})}
    answer = run([sys.executable, "-m", module, *arguments], limit_s, environment)
    said: dict[str, Any] = {}
    for line in answer.out.splitlines():
        with contextlib.suppress(ValueError):  # libraries print to stdout as well
            content = json.loads(line)
            said |= content if isinstance(content, dict) else {}
    return said, answer.failure


def later(probe: Callable[[], T]) -> "Future[T]":
    """Start a probe in a thread that nobody has to wait for: one that hangs does not hold up the end of the program."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(probe())
        except BaseException as error:  # handed to whoever asks for the result
            future.set_exception(error)

    Thread(target=work, daemon=True).start()
    return future
