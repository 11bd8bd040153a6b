"""Kernels on the CPU: compile rendered sources with g++ under cuda_on_cpu.hpp, run them on numpy arrays.

Many kernels share one binary and many launches one process, since starting a compiler costs more than a small kernel.
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
from typing import Literal

import numpy as np

from templates.knob import Config, config_text
from templates.render import render
from templates.template import Launch, Template, Tensor
from templates.workload import Workload

TESTS = Path(__file__).parent
Sanitizer = Literal["address", "thread", "none"]
Arrays = dict[str, np.ndarray]
DTYPES: dict[str, np.dtype] = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}

FLAGS = {
    "none": ["-O1"],
    "address": ["-O1", "-fsanitize=address,alignment,bounds,bool", "-fsanitize-sections=cuda_shared_*",
                "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"],
    "thread": ["-O1", "-fsanitize=thread", "-fno-omit-frame-pointer"],
}  # fmt: skip
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
    """A compiled test program of one or more kernels."""

    path: Path
    timeout_s: float = field(default=120.0)

    def run(self, jobs: Sequence[Job]) -> list[Arrays | KernelFault]:
        """One result per job: its outputs by name, or the fault. A fault ends the process; the next job starts a new one."""
        results: list[Arrays | KernelFault] = []
        while len(results) < len(jobs):
            results += self._run_until_fault(jobs[len(results) :])
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


def _write(write: Callable[[bytes], object], job: Job) -> None:
    numbers = [job.kernel, *job.launch.grid, *job.launch.block, job.launch.dynamic_smem_bytes, job.launch.workspace_bytes]
    numbers += [job.seed, job.repeats, len(job.tensors), len(job.scalars)]
    for tensor in job.tensors:
        numbers += [DTYPES[tensor.dtype].itemsize * int(np.prod(tensor.shape)), int(tensor.role == "out")]
    numbers += job.scalars
    write(struct.pack(f"<{len(numbers)}q", *numbers))
    for tensor in job.tensors:
        if tensor.role == "in":
            write(np.ascontiguousarray(job.inputs[tensor.name], dtype=DTYPES[tensor.dtype]).tobytes())


def _read(data: bytes, jobs: Sequence[Job]) -> list[Arrays]:
    results, offset = [], 0
    for job in jobs:
        outputs: Arrays = {}
        for tensor in (t for t in job.tensors if t.role == "out"):
            size, dtype = int(np.prod(tensor.shape)), DTYPES[tensor.dtype]
            outputs[tensor.name] = np.frombuffer(data, dtype, size, offset).reshape(tensor.shape)
            offset += dtype.itemsize * size
        results.append(outputs)
    return results


def for_cpu(source: str) -> str:
    """A CUDA source with the two constructs rewritten that a C++ namespace cannot hold (see cuda_on_cpu.hpp)."""
    source = re.sub(r"extern __shared__ (\w+) (\w+)\[\];", r"CUDA_ON_CPU_DYNAMIC(\1, \2);", source)
    return source.replace('extern "C" ', "")


def program(sources: Sequence[str], entry: str, tensors: int, scalars: int, workspace: bool = True) -> str:
    """One C++ file: each kernel in a namespace and a shared-memory section of its own, and a main that launches them."""
    arguments = [f"cuda_on_cpu::Pointer{{p[{i}]}}" for i in range(tensors)]
    arguments += [f"s[{i}]" for i in range(scalars)]
    arguments += [f"cuda_on_cpu::Pointer{{p[{tensors}]}}"] if workspace else []
    parts, table = ['#include "cuda_on_cpu.hpp"\n#include "cuda_on_cpu_main.hpp"\n'], []
    for i, source in enumerate(sources):
        section = f"cuda_shared_{i}"
        parts.append(
            f"#undef CUDA_ON_CPU_SECTION\n"
            f'#define CUDA_ON_CPU_SECTION "{section}"\n'
            f"extern unsigned char __start_{section}[] __attribute__((weak));\n"
            f"extern unsigned char __stop_{section}[] __attribute__((weak));\n"
            f'namespace kernel_{i} {{\n#line 1 "kernel_{i}.cu"\n{for_cpu(source)}\n'
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


def compiler() -> str:
    """The path of g++; the tests that need one fail without it."""
    path = shutil.which("g++")
    assert path, "g++ is not installed"
    return path


def compile_program(text: str, sanitize: Sanitizer = "address") -> Binary:
    """Compile a program once per session. AssertionError with the compiler's words where it does not compile."""
    flags = ["-std=c++20", "-g1", "-w", *FLAGS[sanitize], f"-I{TESTS}", f"-isystem{TESTS / 'cuda_stubs'}"]
    path = session_folder() / hashlib.sha256(repr((text, flags)).encode()).hexdigest()[:16]
    if not path.exists():
        path.with_suffix(".cpp").write_text(text)
        command = [compiler(), *flags, str(path.with_suffix(".cpp")), "-o", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
    return Binary(path)


def compile_kernels(
    template: Template, configs: Sequence[Config], sanitize: Sanitizer = "address"
) -> Binary:
    """One binary that holds the rendered kernel of each config, in order."""
    workload = template.edge_shapes(configs[0])[0]
    tensors, scalars = len(template.tensors(workload)), len(template.scalars(workload))
    return compile_program(program([render(template, c) for c in configs], template.entry, tensors, scalars), sanitize)


def job_of(template: Template, kernel: int, config: Config, workload: Workload, inputs: Arrays, seed: int = 0) -> Job:
    """The launch of one config on one workload; twice where there is a workspace, which the first has to leave reusable."""
    launch = template.launch(config, workload)
    return Job(kernel, launch, template.tensors(workload), template.scalars(workload), inputs, seed,
               2 if launch.workspace_bytes else 1, f"{workload} {config_text(config)}")  # fmt: skip


def draw_inputs(template: Template, workload: Workload, rng: np.random.Generator) -> Arrays:
    """Random input arrays of a workload, as the template wants them drawn."""
    return {
        t.name: rng.uniform(t.low, t.high, t.shape).astype(np.float32) for t in template.tensors(workload) if t.role == "in"
    }


def run(
    template: Template, config: Config, workload: Workload, inputs: Arrays,
    sanitize: Sanitizer = "address", seed: int = 0,
) -> Arrays:  # fmt: skip
    """The outputs of one config on one workload, by name. KernelFault where a sanitizer or the header objects."""
    (result,) = compile_kernels(template, [config], sanitize).run([job_of(template, 0, config, workload, inputs, seed)])
    if isinstance(result, KernelFault):
        raise result
    return result
