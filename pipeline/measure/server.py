"""The worker process: an engine on one GPU, doing what its farm asks, never outliving it.

`python -m pipeline.measure.server <pipe's file descriptor> <log file or nothing>`; started by `worker`.
"""

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pipeline.measure.jobs import Outcome, Start
from pipeline.measure.names import resolve
from pipeline.measure.worker import limit_s
from templates.errors import InputError

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

log = logging.getLogger(__name__)


class Server:
    """An engine, the pipe to the farm, and guards against outliving it."""

    def __init__(self, pipe: Connection, start: Start) -> None:
        self.pipe, self.settings = pipe, start.settings
        threading.Thread(target=_leave_with, args=(start.parent,), daemon=True).start()
        self._arm("start")
        self.engine: Any = resolve(start.settings.engine)(start.settings.timing)
        self.pipe.send(("hello", self.engine.hello()))

    def serve(self) -> None:
        """Answer until the pipe closes or the GPU's context is lost."""
        while True:
            self._arm(None)
            try:
                what, payload = self.pipe.recv()
            except (EOFError, ConnectionResetError):
                return
            log.info("%s %s", what, payload if what != "equip" else "")
            answer = self._do(what, payload)
            log.info("%s: %s", what, getattr(answer, "status", answer))
            self.pipe.send(("done", answer))
            if isinstance(answer, Outcome) and answer.fatal:
                return

    def _do(self, what: str, payload: Any) -> Any:
        self._arm("prepare" if what == "equip" else "check")
        if what == "equip":
            return self.engine.equip(*payload)
        return (self.engine.measure if what == "measure" else self.engine.vendor)(payload, self.phase)

    def phase(self, name: str) -> None:
        """Say what comes next, before it can go wrong: in the log and to the farm, which sets its deadline by it."""
        log.info("phase %s", name)
        self._arm(name)
        self.pipe.send(("phase", name))

    def _arm(self, phase: str | None) -> None:
        """SIGALRM's default action ends us even where a hung call holds the interpreter and the farm is gone."""
        signal.setitimer(signal.ITIMER_REAL, 2.0 * limit_s(self.settings, phase) + 10.0 if phase else 0.0)


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def main(arguments: list[str]) -> int:
    """Serve one farm until it closes the pipe."""
    pipe = Connection(int(arguments[0]))
    if arguments[1]:
        Path(arguments[1]).parent.mkdir(parents=True, exist_ok=True)
        file = open(arguments[1], "a")  # noqa: SIM115  (stays open for as long as the process lives)
        os.dup2(file.fileno(), 2)  # what CUDA and the C library say goes into the log too
    logging.basicConfig(stream=sys.stderr, level=logging.INFO if arguments[1] else logging.ERROR, format=_FORMAT)
    faulthandler.enable()
    try:
        Server(pipe, pipe.recv()).serve()
    except InputError as error:
        pipe.send(("input", str(error)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0
    except Exception as error:
        log.exception("the worker gives up")
        pipe.send(("raised", f"{type(error).__name__}: {error}".splitlines()[0][:300]))
        return 1
    return 0


if __name__ == "__main__":
    # Not sys.exit: tearing down a lost CUDA context at interpreter exit can hang.
    status = main(sys.argv[1:])
    logging.shutdown()
    os._exit(status)
