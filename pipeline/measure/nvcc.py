"""nvcc: where it is, which version, one call of it in its own process group, what ptxas says."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from datasets.measurement import Resources
from pipeline.measure.settings import BuildSettings
from templates.errors import InputError

COMPILER_NICENESS = 5
_RELEASE = re.compile(r"\bV(\d+\.\d+\.\d+)")
_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_SPILL = re.compile(r"(?P<stores>\d+) bytes spill stores")
_USED = re.compile(r"Used (?P<registers>\d+) registers")
_SMEM = re.compile(r"(?P<smem>\d+) bytes smem")


@dataclass(frozen=True)
class Compiler:
    """An nvcc that answers. `version` is the release with its build number, e.g. 13.0.88."""

    path: str
    version: str
    host_compiler: str | None = None

    def compile(self, source: str, arch: str, flags: list[str], limit_s: float) -> "Compiled | BuildFailure":
        """One call of nvcc; see `compile_cubin`."""
        return compile_cubin(self, source, arch, flags, limit_s)

    def close(self) -> None:
        """Nothing to end: each compile ends what it started."""


@dataclass(frozen=True)
class BuildFailure:
    """Why there is no cubin: `status` as in a measurement, one line of message."""

    status: Literal["compile_error", "compile_timeout", "crash"]
    message: str
    compile_s: float


@dataclass(frozen=True)
class Compiled:
    """What one compile made: the binary and what ptxas reported of each entry function, by name."""

    code: bytes
    resources: dict[str, Resources]
    compile_s: float


def find_nvcc(settings: BuildSettings) -> Compiler:
    """The compiler to use: the setting, else $CUDA_HOME, PATH, /usr/local/cuda*, the PyPI package, in this order.

    InputError when there is none, when it does not answer, or when there is no gcc for it.
    """
    host = settings.host_compiler or shutil.which("gcc")
    if host is None or not shutil.which(host):
        name = settings.host_compiler or "gcc"
        raise InputError(f"no {name} found, which nvcc needs: install it or set farm.build.host_compiler")
    candidates = [settings.nvcc] if settings.nvcc else [str(path) for path in _places() if path.is_file()]
    if not candidates:
        raise InputError("no nvcc found: install the CUDA toolkit or `pip install nvidia-cuda-nvcc`, or set farm.build.nvcc")
    return Compiler(candidates[0], _version(candidates[0]), settings.host_compiler)


def installed() -> list[Path]:
    """Every nvcc found here, each once, in the order of preference."""
    found: dict[Path, Path] = {}
    for path in filter(Path.is_file, _places()):
        found.setdefault(path.resolve(), path)
    return list(found.values())


def toolkits(settings: BuildSettings) -> list[Path]:
    """Folders of the toolkits that nvcc is looked for in, in the same order; a script that only calls nvcc leads to none."""
    found = [Path(settings.nvcc)] if settings.nvcc else []
    return [path.resolve().parent.parent for path in found + installed()]


def _places() -> list[Path]:
    home, found = os.environ.get("CUDA_HOME"), shutil.which("nvcc")
    places = [Path(home) / "bin/nvcc"] if home else []
    places += [Path(found)] if found else []
    places += sorted(Path("/usr/local").glob("cuda*/bin/nvcc"))
    return [*places, Path(sysconfig.get_paths()["purelib"]) / "nvidia/cu13/bin/nvcc"]


@lru_cache
def _version(path: str) -> str:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"nvcc {path} does not run ({error}); set farm.build.nvcc to one that does") from None
    version = release(answer.stdout)
    if version is None:
        raise InputError(f"nvcc {path} does not say its version; set farm.build.nvcc to a working nvcc")
    return version


def release(output: str) -> str | None:
    """The version in what `nvcc --version` prints, e.g. 13.0.88."""
    match = _RELEASE.search(output)
    return match.group(1) if match else None


def compile_cubin(compiler: Compiler, source: str, arch: str, flags: list[str], limit_s: float) -> Compiled | BuildFailure:
    """Run nvcc on a source; `arch` is e.g. sm_90. Never raises for what nvcc or the disk does."""
    started = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="cuda-agent-") as folder:
            return _compile_in(Path(folder), compiler, source, arch, flags, limit_s)
    except OSError as error:
        return BuildFailure("crash", f"nvcc could not be run: {error}", time.perf_counter() - started)


def _compile_in(
    folder: Path, compiler: Compiler, source: str, arch: str, flags: list[str], limit_s: float
) -> Compiled | BuildFailure:
    source_path, cubin = folder / "kernel.cu", folder / "kernel.cubin"
    source_path.write_text(source)
    host = ["-ccbin", compiler.host_compiler] if compiler.host_compiler else []
    command = [compiler.path, "-cubin", f"-arch={arch}", "-Xptxas", "-v", *flags, *host, "-o", str(cubin), str(source_path)]
    started = time.perf_counter()
    # nvcc starts cicc, ptxas and gcc: its own session lets one signal end them all. TMPDIR: their leftovers go with ours.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True, cwd=folder, env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    give_way(process.pid)
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return BuildFailure("compile_timeout", f"nvcc took over {limit_s:g} s", time.perf_counter() - started)
    finally:
        _end(process)
    compile_s = time.perf_counter() - started
    if process.returncode != 0:
        return _failure(process.returncode, output, compile_s)
    if not cubin.is_file() or cubin.read_bytes()[:4] != b"\x7fELF":
        return BuildFailure("crash", "nvcc reported success but left no cubin", compile_s)
    return Compiled(cubin.read_bytes(), parse_ptxas(output), compile_s)


def give_way(pid: int) -> None:
    """Lower a compiler's priority: what times kernels and what searches wait on it less than it would on them."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, COMPILER_NICENESS)


def _end(process: "subprocess.Popen[str]") -> None:
    """Kill whatever is left of the compile's process group, and collect nvcc itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _failure(returncode: int, output: str, compile_s: float) -> BuildFailure:
    told = first_error(output)
    killed = returncode < 0 or "died due to signal" in output or "No space left" in output
    if killed:
        how = f"killed by signal {-returncode}" if returncode < 0 else "one of its tools died or could not write"
        return BuildFailure("crash", f"nvcc crashed ({how}): {told}", compile_s)
    return BuildFailure("compile_error", told, compile_s)


def first_error(output: str) -> str:
    """The line of a compiler's output that tells most: the first that says error, else the last; cut to 300 characters."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no output")[:300]


def parse_ptxas(output: str) -> dict[str, Resources]:
    """What ptxas reports with -v, by (mangled) entry function."""
    found: dict[str, Resources] = {}
    name, spill = None, 0
    for line in output.splitlines():
        if entry := _ENTRY.search(line):
            name, spill = entry.group("name"), 0
        elif stores := _SPILL.search(line):
            spill = int(stores.group("stores"))
        elif (used := _USED.search(line)) and name is not None:
            smem = _SMEM.search(line)
            found[name] = Resources(int(used.group("registers")), spill, int(smem.group("smem")) if smem else 0)
            name = None
    return found
