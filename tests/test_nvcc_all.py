"""nvcc accepts every sampled config that the constraints allow, and ptxas agrees with what they derive.

NVCC_CONFIGS sets how many (12), NVCC_SEED which.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from datasets.measurement import Resources
from pipeline.measure.nvcc import BuildFailure, Compiled, compile_cubin, find_nvcc
from pipeline.measure.settings import BuildSettings
from templates.knob import config_text
from templates.render import render
from templates.space import complete, violations
from templates.template import Limits, load_template
from tests.test_matmul_cpu import kernels

MATMUL = load_template("matmul")
LARGE = MATMUL.workload(M=4096, N=4096, K=4096)
LIMITS = Limits()
CONFIGS = int(os.environ.get("NVCC_CONFIGS", "12"))
SEED = int(os.environ.get("NVCC_SEED", "0"))
FLAG_BYTES = 16  # the flag of the last block beside the tiles, with its alignment


def compile_config(config: dict[str, int]) -> Compiled | BuildFailure:
    settings = BuildSettings()
    return compile_cubin(find_nvcc(settings), render(MATMUL, config), "sm_90", settings.flags, 60.0)


def disagreement(config: dict[str, int], resources: Resources) -> str:
    """Where ptxas and the template's own figures differ; empty when they agree."""
    derived = MATMUL.derived(config, LARGE)
    tiles = 0 if config["dynamic_smem"] else int(derived["smem_bytes"])
    most = tiles + (FLAG_BYTES if config["split_k"] > 1 else 0)
    if not tiles <= resources.static_smem_bytes <= most:
        return f"static shared memory is {resources.static_smem_bytes} B, derived {tiles} to {most} B"
    if resources.registers > LIMITS.registers_per_thread:
        return f"{resources.registers} registers per thread"
    if resources.registers * derived["threads"] * config["min_blocks"] > LIMITS.registers_per_sm:
        return f"{resources.registers} registers x {derived['threads']} threads x {config['min_blocks']} blocks do not fit"
    return ""


def test_nvcc_accepts_legal_configs() -> None:
    configs = kernels(CONFIGS, np.random.default_rng(100 + SEED))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(compile_config, configs))
    wrong, spills = [], []
    for config, result in zip(configs, results, strict=True):
        if isinstance(result, BuildFailure):
            wrong.append(f"{config_text(config)}\n{result.message}")
            continue
        resources = result.resources[MATMUL.entry]
        if said := disagreement(config, resources):
            wrong.append(f"{config_text(config)}\n{said}")
        spills.append(resources.spill_bytes)
    print(f"{sum(map(bool, spills))} of {len(configs)} spill, at most {max(spills, default=0)} B per thread")
    assert not wrong, f"{len(wrong)} of {len(configs)}; the first:\n" + "\n\n".join(wrong[:5])
    assert spills.count(0) >= len(spills) / 2


def test_more_static_shared_memory_than_allowed_is_refused_by_both() -> None:
    """The limit in the constraints is the compiler's: one tile size over it, neither accepts."""
    config = complete(MATMUL, {"block_m": 128, "block_n": 128, "block_k": 32, "async_copy": 1, "stages": 3, "width_a": 1},
                      MATMUL.expert(LARGE))  # fmt: skip
    assert any("shared memory" in reason for reason in violations(MATMUL, config, LARGE, LIMITS))
    result = compile_config(config)
    assert isinstance(result, BuildFailure) and "shared" in result.message
