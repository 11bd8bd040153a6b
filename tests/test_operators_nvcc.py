"""nvcc accepts every sampled config that an operator's constraints allow, and ptxas agrees with what they derive.

NVCC_CONFIGS sets how many (4; a third for an operator's further dtypes), NVCC_SEED which.
"""

import os
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from datasets.measurement import Resources
from pipeline.measure.nvcc import BuildFailure, Compiled, compile_cubin, find_nvcc
from pipeline.measure.settings import BuildSettings
from templates.knob import Config, config_text
from templates.render import render, render_reference
from templates.space import complete, violations
from templates.template import Template, load_template
from templates.workload import Workload
from tests.operator_cases import CASES, IDS, LIMITS, configs, count, listed

each_case = pytest.mark.parametrize(("op", "dtype"), CASES, ids=IDS)
SEED = int(os.environ.get("NVCC_SEED", "0"))
SMALL_VARIABLES = 1024
"""Bytes of shared memory that a template need not derive: flags, a few partial sums."""
MOST_SPILLED = 512
"""Bytes per thread: beyond this, constraints should have refused the config."""


def compile_all(sources: Sequence[str]) -> list[Compiled | BuildFailure]:
    """Each with the settings' flags, as the farm compiles."""
    settings = BuildSettings()
    compiler = find_nvcc(settings)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda source: compile_cubin(compiler, source, "sm_90", settings.flags, 120.0), sources))


def disagreement(template: Template, config: Config, w: Workload, resources: Resources) -> str:
    """Where ptxas and the template's own figures differ; empty when they agree."""
    derived, launch = template.derived(config, w), template.launch(config, w)
    least, smem = int(derived["smem_bytes"]), resources.static_smem_bytes + launch.dynamic_smem_bytes
    threads = int(derived["threads"])
    if not least <= smem <= min(least + SMALL_VARIABLES, LIMITS.smem_block_bytes):
        return f"shared memory is {smem} B, derived {least} B"
    if resources.registers > LIMITS.registers_per_thread or resources.registers * threads > LIMITS.registers_per_sm:
        return f"{resources.registers} registers x {threads} threads do not fit"
    if resources.spill_bytes > MOST_SPILLED:
        return f"spills {resources.spill_bytes} B per thread"
    return ""


@each_case
def test_nvcc_accepts_legal_configs(op: str, dtype: str) -> None:
    template = load_template(op)
    workloads = listed(template, dtype)
    chosen = configs(template, dtype, count("NVCC_CONFIGS", 4, template, dtype), np.random.default_rng(100 + SEED))
    results = compile_all([render(template, config, dtype) for config in chosen])
    wrong, spills = [], []
    for config, result in zip(chosen, results, strict=True):
        if isinstance(result, BuildFailure):
            wrong.append(f"{config_text(config)}\n{result.message}")
            continue
        resources = result.resources[template.entry]
        w = next(w for w in workloads if not violations(template, config, w, LIMITS))
        if said := disagreement(template, config, w, resources):
            wrong.append(f"{config_text(config)}\n{said}")
        spills.append(resources.spill_bytes)
    print(f"{sum(map(bool, spills))} of {len(chosen)} spill, at most {max(spills, default=0)} B per thread")
    assert not wrong, f"{len(wrong)} of {len(chosen)}; the first:\n" + "\n\n".join(wrong[:5])
    assert spills.count(0) >= len(spills) / 2


@each_case
def test_template_and_reference_compile_as_they_stand(op: str, dtype: str) -> None:
    template = load_template(op)
    kernel, reference = compile_all([template.source_path.read_text(), render_reference(template, dtype)])
    for done, entry in ((kernel, template.entry), (reference, "reference")):
        assert not isinstance(done, BuildFailure), done
        assert entry in done.resources


def test_more_static_shared_memory_than_allowed_is_refused_by_both() -> None:
    """The limit in the constraints is the compiler's: one tile size over it, neither accepts."""
    template = load_template("matmul")
    w = template.workload(M=4096, N=4096, K=4096)
    config = complete(template, {"block_m": 128, "block_n": 128, "block_k": 32, "async_copy": 1, "stages": 3, "width_a": 1},
                      template.expert(w))  # fmt: skip
    assert any("shared memory" in reason for reason in violations(template, config, w, LIMITS))
    (result,) = compile_all([render(template, config)])
    assert isinstance(result, BuildFailure) and "shared" in result.message


def test_packaged_nvcc_knows_16_bit_floats() -> None:
    """The compiler of the Python packages, which serves where no toolkit is installed, with the headers that come beside it."""
    packaged = Path(sysconfig.get_paths()["purelib"]) / "nvidia/cu13/bin/nvcc"
    compiler = find_nvcc(BuildSettings(nvcc=str(packaged)))
    source = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void kernel(const __half *A, __nv_bfloat16 *B)
{
    B[threadIdx.x] = __float2bfloat16_rn(__half2float(A[threadIdx.x]));
}
"""
    done = compile_cubin(compiler, source, "sm_90", BuildSettings().flags, 120.0)
    assert isinstance(done, Compiled) and "kernel" in done.resources, done
