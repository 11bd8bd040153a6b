"""The process that compiles with NVRTC: sources in, cubins out, never outliving who started it.

`python -m pipeline.measure.nvrtc_server <pipe's file descriptor> <parent's process id>`; started by `nvrtc`. The only importer
of cuda.bindings.nvrtc; makes no CUDA context and needs no GPU.
"""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol

from pipeline.measure.nvrtc import Answer, Hello, Missing, Request

_RELEASE = re.compile(r"\bV(\d+\.\d+\.\d+)")


class Library(Protocol):
    """What compiles."""

    def hello(self) -> Hello:
        """Which one it is."""

    def compile(self, request: Request) -> Answer:
        """A cubin, or why there is none."""


class NvrtcLibrary:
    """The NVRTC library that cuda-pathfinder finds: in site-packages, on the loader's path, in CUDA_HOME, in this order.

    RuntimeError where there is none or it does not work.
    """

    def __init__(self) -> None:
        from cuda.bindings import nvrtc
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

        self._nvrtc = nvrtc
        try:
            self.path = str(load_nvidia_dynamic_lib("nvrtc").abs_path)
        except DynamicLibNotFoundError:
            raise RuntimeError("libnvrtc.so is not found") from None

    def hello(self) -> Hello:
        """Compiles an empty kernel: NVRTC tells its major and minor number only, the PTX that it writes the whole release."""
        result, log, ptx = self._run(Request('extern "C" __global__ void empty() {}', [], 0.0), "PTX")
        if result != "NVRTC_SUCCESS":
            raise RuntimeError(f"{self.path}: {result}: {log.strip()}")
        match = _RELEASE.search(ptx.decode(errors="replace"))
        if match is not None:
            return Hello(match[1], self.path)
        _, major, minor = self._nvrtc.nvrtcVersion()
        return Hello(f"{major}.{minor}", self.path)

    def compile(self, request: Request) -> Answer:
        """A cubin with what ptxas said."""
        return Answer(*self._run(request, "CUBIN"))

    def _run(self, request: Request, wanted: str) -> tuple[str, str, bytes]:
        """(result by name, log, what is wanted: "CUBIN" or "PTX", empty after a failure)."""
        nvrtc = self._nvrtc
        status, program = nvrtc.nvrtcCreateProgram(request.source.encode(), b"kernel.cu", 0, [], [])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return str(status.name), "no program could be made", b""
        try:
            options = [option.encode() for option in request.options]
            (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
            log = self._fetch(program, "ProgramLog").decode(errors="replace").rstrip("\0")
            done = status == nvrtc.nvrtcResult.NVRTC_SUCCESS
            return str(status.name), log, self._fetch(program, wanted) if done else b""
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    def _fetch(self, program: Any, what: str) -> bytes:
        """NVRTC writes into the bytes it is given: they must not be one of the short ones that Python shares."""
        status, size = getattr(self._nvrtc, f"nvrtcGet{what}Size")(program)
        if status != self._nvrtc.nvrtcResult.NVRTC_SUCCESS or size <= 1:
            return b""
        content = bytes(size)
        getattr(self._nvrtc, f"nvrtcGet{what}")(program, content)
        return content


def serve(pipe: Connection, library: Library) -> None:
    """Answer requests until the pipe closes."""
    while True:
        try:
            request: Request = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        # SIGALRM's default action ends us even where a hung compile holds the interpreter and nobody is left to kill us.
        signal.setitimer(signal.ITIMER_REAL, 2.0 * request.limit_s + 10.0)
        answer = library.compile(request)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        pipe.send(answer)


def main(arguments: list[str], load: Callable[[], Library] = NvrtcLibrary) -> None:
    """Serve one build pool until it closes the pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(int(arguments[1]),), daemon=True).start()
    pipe = Connection(int(arguments[0]))
    try:
        library = load()
        hello = library.hello()
    except (ImportError, RuntimeError, OSError) as error:
        pipe.send(Missing(str(error).splitlines()[0][:200]))
        return
    pipe.send(hello)
    serve(pipe, library)


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
