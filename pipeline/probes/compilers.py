"""Which compilers there are, and whether the one in use compiles tiny programs."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor

from pipeline.checks.facts import Build, Compilers, Toolkit
from pipeline.measure.nvcc import BuildFailure, Compiler, compile_cubin, find_nvcc, installed, release
from pipeline.measure.settings import BuildSettings
from pipeline.probes.child import Deadline, run
from templates.errors import InputError

DOUBLED = """extern "C" __global__ void doubled(float *values, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] *= 2.0f;
}
"""
PROGRAMS = {
    "plain kernels": DOUBLED,
    "asynchronous copies": "#include <cuda_pipeline_primitives.h>\n" + DOUBLED,
    "half and bfloat16": "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n" + DOUBLED,
}
"""What a template may include, each apart: a toolkit may lack some headers. The first one's cubin is tried on the GPU."""


def probe(settings: BuildSettings, arch: str, deadline: Deadline) -> Compilers:
    """Everything about compilers; `arch` is e.g. sm_90."""
    gcc = shutil.which(settings.host_compiler or "gcc")
    version = run([gcc, "-dumpfullversion", "-dumpversion"], deadline.left(5.0)).out.strip() if gcc else ""
    paths = list(dict.fromkeys([*([settings.nvcc] if settings.nvcc else []), *map(str, installed())]))
    with ThreadPoolExecutor(max(1, len(paths))) as threads:
        found = tuple(threads.map(lambda path: _toolkit(path, deadline), paths))
    facts = {"installed": found, "home": os.environ.get("CUDA_HOME"), "gcc": gcc, "gcc_version": version, "arch": arch}
    if paths and found[0].version is None:
        return Compilers(why_none=f"{paths[0]} does not answer", **facts)  # type: ignore[arg-type]
    try:
        compiler = find_nvcc(settings)
    except InputError as error:
        return Compilers(why_none=str(error), **facts)  # type: ignore[arg-type]
    codes = run([compiler.path, "--list-gpu-code"], deadline.left(5.0)).out.split()
    builds = tuple(_builds(compiler, settings, arch, deadline))
    used = Toolkit(compiler.path, compiler.version)
    return Compilers(used, codes=tuple(codes), builds=builds, **facts)  # type: ignore[arg-type]


def _toolkit(path: str, deadline: Deadline) -> Toolkit:
    return Toolkit(path, release(run([path, "--version"], deadline.left(5.0)).out))


def _builds(compiler: Compiler, settings: BuildSettings, arch: str, deadline: Deadline) -> list[Build]:
    def build(needs: str) -> Build:
        made = compile_cubin(compiler, PROGRAMS[needs], arch, settings.flags, round(deadline.left(12.0), 1))
        return Build(needs, made.message) if isinstance(made, BuildFailure) else Build(needs, cubin=made.code)

    with ThreadPoolExecutor(len(PROGRAMS)) as threads:
        return list(threads.map(build, PROGRAMS))
