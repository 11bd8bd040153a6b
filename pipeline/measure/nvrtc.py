"""NVRTC beside nvcc: a compiler in long-lived processes, so that no compile pays for starting nvcc, cicc, ptxas and gcc.

This is the build pool's end, `nvrtc_server` the process. A compile that crashes or hangs costs its process and one row.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

from pipeline.measure.nvcc import BuildFailure, Compiled, first_error, give_way, parse_ptxas, toolkits
from pipeline.measure.settings import BuildSettings
from templates.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
SERVER = "pipeline.measure.nvrtc_server"
START_S = 60.0
"""The longest a process may take to start."""

_CUDA_VERSION = re.compile(r"#define\s+CUDA_VERSION\s+(\d+)")
_OURS = frozenset({"NVRTC_ERROR_COMPILATION", "NVRTC_ERROR_INVALID_INPUT", "NVRTC_ERROR_INVALID_OPTION"})
"""Results that blame the source or the flags; any other failure is NVRTC's or the machine's."""


@dataclass(frozen=True)
class Hello:
    """What a process says first: the library it loaded and its release, e.g. 13.0.88."""

    version: str
    path: str


@dataclass(frozen=True)
class Missing:
    """What a process says first where there is no library it can work with: why."""

    why: str


@dataclass(frozen=True)
class Request:
    """A source to compile; `limit_s` is that of the asking side, who kills us first."""

    source: str
    options: list[str]
    limit_s: float


@dataclass(frozen=True)
class Answer:
    """NVRTC's result by name, its log with that of ptxas, and the cubin, empty where there is none."""

    result: str
    log: str
    code: bytes


class LostError(RuntimeError):
    """A process died or does not start; the text says how."""


class Nvrtc:
    """NVRTC as a compiler; as many processes as compiles are asked for at once, kept for the next ones. Thread-safe.

    `version` is the library's release, `nvrtc 13.0.88`, with that of the headers where theirs is another; `server` the
    module that runs in the processes, replaced in tests. InputError where there is no library or there are no headers.
    """

    def __init__(self, settings: BuildSettings, server: str = SERVER) -> None:
        self._command = [sys.executable, "-m", server]
        self._env = _environment(toolkits(settings))
        self._idle: list[_Process] = []
        self._lock = threading.Lock()
        self._closed = False
        first = _Process(self._command, self._env)
        try:
            hello = first.hello()
            self.path = hello.path
            self.headers, release = _headers(toolkits(settings), hello.version)
        except LostError as error:
            raise InputError(f"NVRTC does not start ({error}); use farm.build.compiler=nvcc") from None
        except InputError:
            first.end()
            raise
        same = hello.version.startswith(f"{release}.") or hello.version == release
        self.version = f"nvrtc {hello.version}" + ("" if same else f" (headers {release})")
        self._idle.append(first)

    def compile(self, source: str, arch: str, flags: list[str], limit_s: float) -> Compiled | BuildFailure:
        """Compile a source; `arch` is e.g. sm_90. Never raises for what NVRTC or its process does."""
        started = time.perf_counter()
        try:
            process = self._take()
            started = time.perf_counter()
            answer = process.ask(Request(source, [f"-arch={arch}", "--ptxas-options=-v", *flags, *self.headers], limit_s))
        except TimeoutError:
            return BuildFailure("compile_timeout", f"NVRTC took over {limit_s:g} s", time.perf_counter() - started)
        except (LostError, InputError, OSError) as error:
            return BuildFailure("crash", f"NVRTC crashed ({error})", time.perf_counter() - started)
        result = _judged(answer, time.perf_counter() - started)
        self._put_back(process, sound=not isinstance(result, BuildFailure) or result.status == "compile_error")
        return result

    def close(self) -> None:
        """End the idle processes; the others end with their compile."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def _take(self) -> "_Process":
        """An idle process that lives, or a new one."""
        while True:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None:
                process = _Process(self._command, self._env)
                process.hello()
                return process
            if process.alive():
                return process
            process.end()

    def _put_back(self, process: "_Process", sound: bool) -> None:
        with self._lock:
            keep = sound and not self._closed
            if keep:
                self._idle.append(process)
        if not keep:
            process.end()


class _Process:
    """One process that compiles. Whatever goes wrong with it ends it; used from one thread at a time."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._pipe, theirs = Pipe()
        # Its own session: Ctrl-C in the terminal is not its business.
        self._process = subprocess.Popen(
            [*command, str(theirs.fileno()), str(os.getpid())], pass_fds=[theirs.fileno()], env=env,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        give_way(self._process.pid)
        theirs.close()

    def hello(self) -> Hello:
        """What it loaded; InputError where there is nothing to load, LostError where it does not start."""
        try:
            hello = self._receive(START_S)
        except TimeoutError:
            raise LostError(f"no answer within {START_S:g} s") from None
        if isinstance(hello, Missing):
            self.end()
            raise InputError(
                f"no usable NVRTC library ({hello.why}): `pip install nvidia-cuda-nvrtc`, set CUDA_HOME to a toolkit that has"
                " it, or use farm.build.compiler=nvcc"
            )
        assert isinstance(hello, Hello)
        return hello

    def ask(self, request: Request) -> Answer:
        """Its answer; TimeoutError past the limit, LostError where it died: then it is ended."""
        with contextlib.suppress(BrokenPipeError):  # it died: the wait for the answer says how
            self._pipe.send(request)
        answer = self._receive(request.limit_s)
        assert isinstance(answer, Answer)
        return answer

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def end(self) -> None:
        """Kill and collect it; safe to call twice."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._pipe.close()

    def _receive(self, limit_s: float) -> object:
        try:
            if not self._pipe.poll(limit_s):
                self.end()
                raise TimeoutError
            return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise LostError(self._epitaph()) from None

    def _epitaph(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        code = self._process.returncode
        self.end()
        if code is None:
            return "it closed its pipe"
        return f"exit status {code}" if code >= 0 else f"killed by signal {-code}, {signal.strsignal(-code)}"


def _judged(answer: Answer, compile_s: float) -> Compiled | BuildFailure:
    if answer.result == "NVRTC_SUCCESS":
        if answer.code[:4] != b"\x7fELF":
            return BuildFailure("crash", "NVRTC reported success but left no cubin", compile_s)
        return Compiled(answer.code, parse_ptxas(answer.log), compile_s)
    told = first_error(answer.log)
    if answer.result in _OURS:
        return BuildFailure("compile_error", told, compile_s)
    return BuildFailure("crash", f"NVRTC crashed ({answer.result}): {told}", compile_s)


def _headers(roots: Sequence[Path], version: str) -> tuple[list[str], str]:
    """-I options of the toolkit's headers, and their release: those of NVRTC's own release where there are several."""
    found = [(release, root / "include") for root in roots if (release := _release(root / "include" / "cuda.h"))]
    if not found:
        raise InputError("no CUDA headers found for NVRTC: `pip install nvidia-cuda-nvcc`, or set CUDA_HOME to a toolkit")
    release, folder = next((pair for pair in found if version.startswith(f"{pair[0]}.")), found[0])
    return [f"-I{path}" for path in (folder, folder / "cccl") if path.is_dir()], release


def _release(header: Path) -> str | None:
    """`13.0` from cuda.h's CUDA_VERSION 13000; None where there is no such file."""
    try:
        match = _CUDA_VERSION.search(header.read_text(errors="replace"))
    except OSError:
        return None
    return f"{int(match[1]) // 1000}.{int(match[1]) % 1000 // 10}" if match else None


def _environment(roots: Sequence[Path]) -> Mapping[str, str]:
    """The processes' environment: this repository importable, and CUDA_HOME at a toolkit with the library unless it is set."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    home = next((root for root in roots if any(root.glob("lib*/libnvrtc.so*"))), None)
    if home is not None and not {"CUDA_HOME", "CUDA_PATH"} & set(env):
        env["CUDA_HOME"] = str(home)
    return env
