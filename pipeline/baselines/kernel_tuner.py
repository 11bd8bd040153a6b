"""Kernel Tuner beside our farm: the same candidates, cold compile caches, checked answers, candidates per second.

    python -m pipeline.baselines.kernel_tuner [candidates [extent [settings of farm.build ...]]]

measures that many random matmul configs on a square of that extent by both, one after the other, in one process on one GPU.
Needs a GPU and `pip install kernel-tuner cuda-python`. Kernel Tuner gets the sources that our templates render to, compiled by
its NVRTC backend one at a time, 100 launches each, its verification on; ours are the defaults but for the number of compilers.
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from datasets.measurement import Candidate, Measurement
from pipeline.measure.farm import GpuFarm
from pipeline.measure.nvcc import toolkits
from pipeline.measure.settings import BuildSettings, FarmSettings
from pipeline.tables import table
from templates import space
from templates.errors import InputError
from templates.knob import Config, config_text
from templates.render import render
from templates.template import Limits, Template, load_template
from templates.workload import Workload

LAUNCHES = 100
MOST_THREADS = 2048


def draw(template: Template, workload: Workload, limits: Limits, n: int, seed: int = 0) -> list[dict[str, int]]:
    """n random legal configs that both can launch: without a workspace, and without shared memory sized at launch."""
    drawn = space.sample(template, workload, limits, 20 * n, np.random.default_rng(seed))
    plain = [c for c in drawn if (launch := template.launch(c, workload)).workspace_bytes == launch.dynamic_smem_bytes == 0]
    return plain[:n]


def tune(template: Template, workload: Workload, configs: Sequence[Config], seed: int = 0) -> list[dict[str, Any]]:
    """Kernel Tuner's row for each config, `time` in milliseconds where it ran. InputError where it is not installed."""
    try:
        from kernel_tuner import tune_kernel  # type: ignore[import-not-found]  # not among our requirements
    except ImportError:
        raise InputError("Kernel Tuner is not installed: pip install kernel-tuner cuda-python") from None
    rng = np.random.default_rng(seed)
    tensors = template.tensors(workload)
    inputs = {t.name: rng.uniform(t.low, t.high, t.shape).astype(np.float32) for t in tensors if t.role == "in"}
    outputs = {t.name: np.zeros(t.shape, np.float32) for t in tensors if t.role == "out"}
    answer = template.reference(inputs, workload).astype(np.float32)
    scalars = [np.int32(value) for value in template.scalars(workload)]
    launches = [template.launch(config, workload) for config in configs]
    # Its restrictions see parameters only, so a candidate's number carries its threads.
    threads = [launch.block[0] for launch in launches]
    numbers = [i * MOST_THREADS + count for i, count in enumerate(threads)]
    folders = [root / "include" for root in toolkits(BuildSettings())]
    headers = next((folder for folder in folders if (folder / "cuda.h").is_file()), Path("/usr/include"))
    results, _ = tune_kernel(
        template.entry,
        lambda params: render(template, configs[params["candidate"] // MOST_THREADS], workload.dtype),
        lambda params: launches[params["candidate"] // MOST_THREADS].grid,
        [*inputs.values(), *outputs.values(), *scalars, np.uint64(0)],
        {"candidate": numbers, "block_size_x": sorted(set(threads))},
        grid_div_x=[], grid_div_y=[], grid_div_z=[],
        restrictions=[f"candidate % {MOST_THREADS} == block_size_x"],
        answer=[None] * len(inputs) + [answer] + [None] * (len(scalars) + 1),
        atol=1e-3, iterations=LAUNCHES, lang="CUDA", quiet=True, compiler_options=["--std=c++17", f"-I{headers}"],
    )  # fmt: skip
    return list(results)


def measure(workload: Workload, configs: Sequence[dict[str, int]], build: BuildSettings) -> tuple[list[Measurement], float]:
    """Our farm's rows for the same configs, and the seconds they took once the GPU was ready."""
    with tempfile.TemporaryDirectory() as folder:
        farm = GpuFarm(FarmSettings(look_ahead=128, build=replace(build, cache_dir=folder)))
        started = time.perf_counter()
        try:
            rows = list(farm.measure([Candidate(workload, config, "random") for config in configs]))
        finally:
            seconds = time.perf_counter() - started
            farm.close()
    return rows, seconds


def main(count: str = "200", side: str = "1024", *build: str) -> None:
    """Measure by both and print what came of it."""
    n, extent = int(count), int(side)
    template = load_template("matmul")
    workload = template.workload(M=extent, N=extent, K=extent)
    configs = draw(template, workload, Limits(), n)
    settings = BuildSettings(jobs=os.cpu_count() or 4, **dict(part.split("=", 1) for part in build))  # type: ignore[arg-type]
    ours, our_seconds = measure(workload, configs, settings)
    started = time.perf_counter()
    theirs = tune(template, workload, configs)
    their_seconds = time.perf_counter() - started
    our_us = {config_text(m.config): m.time_us for m in ours if m.time_us is not None}
    their_us = {
        config_text(configs[row["candidate"] // MOST_THREADS]): 1e3 * row["time"]
        for row in theirs
        if isinstance(row["time"], float)
    }
    both = sorted(set(our_us) & set(their_us))
    ratio = float(np.median([their_us[c] / our_us[c] for c in both])) if both else float("nan")
    lines = [
        ["CUDA-Agent", str(len(ours)), str(len(our_us)), f"{our_seconds:.1f}", f"{len(ours) / our_seconds:.2f}"],
        ["Kernel Tuner", str(len(theirs)), str(len(their_us)), f"{their_seconds:.1f}", f"{len(theirs) / their_seconds:.2f}"],
    ]
    print(table([f"{workload}", "candidates", "ok", "seconds", "a second"], lines))
    print(f"candidates a second, ours over Kernel Tuner's: {len(ours) / our_seconds / (len(theirs) / their_seconds):.1f}")
    print(f"its time over ours, median of {len(both)}: {ratio:.3f} (its L2 is warm, ours cold)")


if __name__ == "__main__":
    main(*sys.argv[1:])
