"""Kernels on the CPU: compile rendered sources with g++ under cuda_on_cpu.hpp, run them on numpy arrays.

Many kernels share one binary and many launches one process, since starting a compiler costs more than a small kernel. Arrays
hold values: numpy has no bfloat16, so such tensors are float32 arrays here and uint16 words in a kernel's buffers.
"""

import hashlib
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Literal

import numpy as np

from templates.knob import Config, config_text
from templates.render import render
from templates.template import Launch, Template, Tensor
from templates.workload import Workload

TESTS = Path(__file__).parent
Sanitizer = Literal["address", "thread", "none"]
Arrays = dict[str, np.ndarray]
WORDS: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32), "f64": np.dtype(np.float64), "f16": np.dtype(np.float16), "bf16": np.dtype(np.uint16),
}  # fmt: skip
"""What a kernel's buffer holds, by dtype."""
UNIT_ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}

FLAGS = {
    "none": ["-O1"],
    "address": ["-O1", "-fsanitize=address,alignment,bounds,bool", "-fsanitize-sections=cuda_shared_*",
                "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"],
    "thread": ["-O1", "-fsanitize=thread", "-fno-omit-frame-pointer"],
}  # fmt: skip
JOBS_PER_PROCESS = 8
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin:/usr/local/bin",
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:atexit_sleep_ms=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


class KernelFault(AssertionError):
    """A kernel did what it must not; the text is the sanitizer's or the header's report."""


@dataclass(frozen=True)
class Job:
    """One launch of one kernel of a binary; `repeats` launches use the same workspace, the outputs of the last are kept."""

    kernel: int
    launch: Launch
    tensors: tuple[Tensor, ...]
    scalars: tuple[int, ...]
    inputs: Mapping[str, np.ndarray]
    seed: int = 0
    repeats: int = 1
    label: str = ""


@dataclass(frozen=True)
class Binary:
    """A compiled test program of one or more kernels. `timeout_s`: for one process, of a few jobs."""

    path: Path
    timeout_s: float = field(default=120.0)

    def run(self, jobs: Sequence[Job]) -> list[Arrays | KernelFault]:
        """One result per job: its outputs by name, or the fault. A fault ends the process; the next job starts a new one."""
        results: list[Arrays | KernelFault] = []
        while len(results) < len(jobs):
            results += self._run_until_fault(jobs[len(results) : len(results) + JOBS_PER_PROCESS])
        return results

    def _run_until_fault(self, jobs: Sequence[Job]) -> list[Arrays | KernelFault]:
        with tempfile.TemporaryDirectory() as folder:
            launches, outputs = Path(folder, "launches"), Path(folder, "outputs")
            with launches.open("wb") as file:
                file.write(struct.pack("<q", len(jobs)))
                for job in jobs:
                    _write(file.write, job)
            try:
                done = subprocess.run(
                    [*fixed_addresses(), self.path, launches, outputs],
                    env=ENVIRONMENT, capture_output=True, text=True, timeout=self.timeout_s,
                )  # fmt: skip
                log, report = done.stdout, done.stderr.strip() or f"exit status {done.returncode}"
            except subprocess.TimeoutExpired as late:
                log, report = (late.stdout or b"").decode(), f"no end after {self.timeout_s:.0f} s"
            finished = len(log.splitlines())
            results: list[Arrays | KernelFault] = list(_read(outputs.read_bytes(), jobs[:finished]))
        if finished < len(jobs):
            results.append(KernelFault(f"{jobs[finished].label}\n{report[:6000]}"))
        return results


def to_words(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values as a kernel's buffer holds them, rounded to nearest even."""
    if dtype != "bf16":
        return np.ascontiguousarray(values, dtype=WORDS[dtype])
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FFF, rounded).astype(np.uint16)


def from_words(words: np.ndarray, dtype: str) -> np.ndarray:
    """The values of a buffer: float32 for bf16, else its own dtype."""
    return (words.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else words


def _write(write: Callable[[bytes], object], job: Job) -> None:
    numbers = [job.kernel, *job.launch.grid, *job.launch.block, job.launch.dynamic_smem_bytes, job.launch.workspace_bytes]
    numbers += [job.seed, job.repeats, len(job.tensors), len(job.scalars)]
    for tensor in job.tensors:
        numbers += [WORDS[tensor.dtype].itemsize * int(np.prod(tensor.shape)), int(tensor.role == "out")]
    numbers += job.scalars
    write(struct.pack(f"<{len(numbers)}q", *numbers))
    for tensor in job.tensors:
        if tensor.role == "in":
            write(to_words(job.inputs[tensor.name], tensor.dtype).tobytes())


def _read(data: bytes, jobs: Sequence[Job]) -> list[Arrays]:
    results, offset = [], 0
    for job in jobs:
        outputs: Arrays = {}
        for tensor in (t for t in job.tensors if t.role == "out"):
            size, words = int(np.prod(tensor.shape)), WORDS[tensor.dtype]
            outputs[tensor.name] = from_words(np.frombuffer(data, words, size, offset), tensor.dtype).reshape(tensor.shape)
            offset += words.itemsize * size
        results.append(outputs)
    return results


_DYNAMIC = re.compile(
    r"(?:alignas\(\w+\)\s+)?extern\s+(?:(?:__shared__|__align__\(\w+\)|alignas\(\w+\))\s+)+"
    r"(?P<type>\w[\w ]*?)\s+(?P<name>\w+)\[\];"
)
_INCLUDE = re.compile(r"^[ \t]*#include\s*(?P<header><[^>]+>)[^\n]*", re.MULTILINE)


def for_cpu(source: str) -> str:
    """A CUDA source without what a C++ namespace cannot hold: `extern "C"`, dynamic shared memory (see cuda_on_cpu.hpp), and
    includes, which `program` puts on top.
    """
    source = _DYNAMIC.sub(r"CUDA_ON_CPU_DYNAMIC(\g<type>, \g<name>);", source)
    return _INCLUDE.sub("", source.replace('extern "C" ', ""))


def program(sources: Sequence[str], entry: str, tensors: int, scalars: int, workspace: bool = True) -> str:
    """One C++ file: each kernel in a namespace and a shared-memory section of its own, and a main that launches them.

    The namespaces are unnamed inside, so that a `__shared__` variable of an inline function or a template has its own section.
    """
    arguments = [f"cuda_on_cpu::Pointer{{p[{i}]}}" for i in range(tensors)]
    arguments += [f"s[{i}]" for i in range(scalars)]
    arguments += [f"cuda_on_cpu::Pointer{{p[{tensors}]}}"] if workspace else []
    included = sorted({match["header"] for source in sources for match in _INCLUDE.finditer(source)})
    headers = ['"cuda_on_cpu.hpp"', '"cuda_on_cpu_main.hpp"', *included]
    parts, table = ["".join(f"#include {header}\n" for header in headers)], []
    for i, source in enumerate(sources):
        section = f"cuda_shared_{i}"
        parts.append(
            f"#undef CUDA_ON_CPU_SECTION\n"
            f'#define CUDA_ON_CPU_SECTION "{section}"\n'
            f"extern unsigned char __start_{section}[] __attribute__((weak));\n"
            f"extern unsigned char __stop_{section}[] __attribute__((weak));\n"
            f'namespace kernel_{i} {{ namespace {{\n#line 1 "kernel_{i}.cu"\n{for_cpu(source)}\n}}\n'
            f"void call(void *const *p, const int *s) {{ (void)s; {entry}({', '.join(arguments)}); }}\n}}\n"
        )
        table.append(f"{{kernel_{i}::call, __start_{section}, __stop_{section}}}")
    parts.append(
        f"int main(int, char **argv)\n{{\n    return cuda_on_cpu::run_file({{{', '.join(table)}}}, argv[1], argv[2]);\n}}\n"
    )
    return "\n".join(parts)


@cache
def fixed_addresses() -> tuple[str, ...]:
    """The command before a test program: older thread sanitizers cannot live with as much address randomisation as some
    kernels have. Nothing where it is not permitted.
    """
    prefix = ("setarch", "-R")
    usable = shutil.which("setarch") and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
    return prefix if usable else ()


@cache
def session_folder() -> Path:
    """Where this test session keeps its binaries; gone when Python ends."""
    holder = tempfile.TemporaryDirectory(prefix="cuda_on_cpu_")
    session_folder_holders.append(holder)
    return Path(holder.name)


session_folder_holders: list[tempfile.TemporaryDirectory[str]] = []


compiling: dict[Path, Lock] = {}


def compiler() -> str:
    """The path of g++; the tests that need one fail without it."""
    path = shutil.which("g++")
    assert path, "g++ is not installed"
    return path


def compile_program(text: str, sanitize: Sanitizer = "address") -> Binary:
    """Compile a program once per session, by any thread. AssertionError with the compiler's words where it does not compile."""
    flags = ["-std=c++20", "-g1", "-w", *FLAGS[sanitize], f"-I{TESTS}", f"-isystem{TESTS / 'cuda_stubs'}"]
    path = session_folder() / hashlib.sha256(repr((text, flags)).encode()).hexdigest()[:16]
    with compiling.setdefault(path, Lock()):
        if not path.exists():
            path.with_suffix(".cpp").write_text(text)
            command = [compiler(), *flags, str(path.with_suffix(".cpp")), "-o", str(path)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[:4000]
    return Binary(path)


def compile_kernels(
    template: Template, configs: Sequence[Config], sanitize: Sanitizer = "address", dtype: str | None = None
) -> Binary:
    """One binary that holds the rendered kernel of each config, in order, for tensors of a dtype (the template's first)."""
    workload = template.edge_shapes(configs[0])[0]
    tensors, scalars = len(template.tensors(workload)), len(template.scalars(workload))
    sources = [render(template, config, dtype) for config in configs]
    return compile_program(program(sources, template.entry, tensors, scalars), sanitize)


def job_of(template: Template, kernel: int, config: Config, workload: Workload, inputs: Arrays, seed: int = 0) -> Job:
    """The launch of one config on one workload; twice where there is a workspace, which the first has to leave reusable."""
    launch = template.launch(config, workload)
    return Job(kernel, launch, template.tensors(workload), template.scalars(workload), inputs, seed,
               2 if launch.workspace_bytes else 1, f"{workload} {config_text(config)}")  # fmt: skip


def draw(tensor: Tensor, rng: np.random.Generator) -> np.ndarray:
    """A random input array: values of the tensor's dtype, uniform in its range."""
    values = rng.uniform(tensor.low, tensor.high, tensor.shape).astype(np.float32)
    return from_words(to_words(values, tensor.dtype), tensor.dtype)


def draw_inputs(template: Template, workload: Workload, rng: np.random.Generator) -> Arrays:
    """Random input arrays of a workload, as the template wants them drawn."""
    return {tensor.name: draw(tensor, rng) for tensor in template.tensors(workload) if tensor.role == "in"}


def run(
    template: Template, config: Config, workload: Workload, inputs: Arrays,
    sanitize: Sanitizer = "address", seed: int = 0,
) -> Arrays:  # fmt: skip
    """The outputs of one config on one workload, by name. KernelFault where a sanitizer or the header objects."""
    binary = compile_kernels(template, [config], sanitize, workload.dtype)
    (result,) = binary.run([job_of(template, 0, config, workload, inputs, seed)])
    if isinstance(result, KernelFault):
        raise result
    return result
