"""Random legal matmul kernels give the right answer on the CPU, at shapes round their tile sizes, under both sanitizers.

CPU_CONFIGS sets how many under the address sanitizer (200), CPU_CONFIGS_THREAD under the thread sanitizer (24), CPU_SEED which.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from templates.knob import columns_of, config_text, configs_of
from templates.space import canonical, legal, sample
from templates.template import Limits, load_template
from templates.workload import Workload
from tests.cpu_run import Arrays, Job, KernelFault, Sanitizer, compile_kernels, draw_inputs, job_of

MATMUL = load_template("matmul")
LARGE = MATMUL.workload(M=4096, N=4096, K=4096)
CONFIGS = int(os.environ.get("CPU_CONFIGS", "200"))
CONFIGS_THREAD = int(os.environ.get("CPU_CONFIGS_THREAD", "24"))
SEED = int(os.environ.get("CPU_SEED", "0"))
BATCH = 10  # kernels per binary
MOST_PRODUCTS = {"address": 1e6, "thread": 3e5, "none": 1e9}  # multiplications per launch, tiles padded: bounds the time


def unshared(n: int, rng: np.random.Generator) -> list[dict[str, int]]:
    """Legal configs that use no shared memory: too rare for `sample` to meet often."""
    columns = {knob.name: rng.choice(np.array(knob.values), size=1000) for knob in MATMUL.knobs}
    columns = canonical(MATMUL, {**columns, "shared": np.zeros(1000, dtype=np.int64)})
    keep = legal(MATMUL, columns, LARGE, Limits())
    return configs_of({name: column[keep] for name, column in columns.items()})[:n]


def kernels(n: int, rng: np.random.Generator, threads: int = 1024) -> list[dict[str, int]]:
    """The naive and the expert config, and random legal ones, a fifth of them without shared memory, of that many threads."""
    drawn = unshared(8 * n, rng)[: n // 5] + sample(MATMUL, LARGE, Limits(), 8 * n, rng)
    count = MATMUL.derived(columns_of(tuple(drawn), MATMUL.names), LARGE)["threads"]
    small = [config for config, of_block in zip(drawn, count, strict=True) if of_block <= threads]
    chosen = [dict(MATMUL.naive), dict(MATMUL.expert(LARGE)), *small][:n]
    assert len(chosen) == n
    return chosen


def products(config: dict[str, int], w: Workload) -> int:
    """Multiplications of one launch, whole tiles counted."""
    m, n = config["block_m"], config["block_n"]
    return -(-w["M"] // m) * m * -(-w["N"] // n) * n * w["K"]


def shapes(config: dict[str, int], most: float) -> list[Workload]:
    """The edge shapes of a config, cheap ones first; those over `most` products only for a size that no other has."""
    chosen: list[Workload] = []
    for w in sorted(MATMUL.edge_shapes(config), key=lambda w: products(config, w)):
        new = any(w[dim] not in {other[dim] for other in chosen} for dim in MATMUL.dims)
        if new or products(config, w) <= most:
            chosen.append(w)
    return chosen


def judge(job: Job, workload: Workload, result: Arrays | KernelFault) -> str:
    """What is wrong with one result; empty when it is right."""
    if isinstance(result, KernelFault):
        return str(result)
    reference = MATMUL.reference(job.inputs, workload)
    magnitude = MATMUL.reference({name: np.abs(values) for name, values in job.inputs.items()}, workload)
    assert np.linalg.norm(reference) > 0
    error = float(np.max(np.abs(result["C"] - reference) / (MATMUL.error_bound(workload) * magnitude)))
    return "" if error <= 1.0 else f"{job.label}\nerror {error:.3g} of the bound"  # NaN is not <= 1


def check(configs: Sequence[dict[str, int]], sanitize: Sanitizer, seed: int) -> tuple[int, list[str]]:
    """Run each config at its edge shapes; how many launches, and what went wrong."""
    rng = np.random.default_rng(seed)
    todo = [(i, config, w) for i, config in enumerate(configs) for w in shapes(config, MOST_PRODUCTS[sanitize])]
    jobs = [job_of(MATMUL, i, config, w, draw_inputs(MATMUL, w, rng), seed + j) for j, (i, config, w) in enumerate(todo)]
    results = compile_kernels(MATMUL, configs, sanitize).run(jobs)
    verdicts = [judge(job, w, result) for job, (_, _, w), result in zip(jobs, todo, results, strict=True)]
    return len(jobs), [verdict for verdict in verdicts if verdict]


def check_all(configs: Sequence[dict[str, int]], sanitize: Sanitizer) -> None:
    batches = [configs[i : i + BATCH] for i in range(0, len(configs), BATCH)]
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as pool:
        done = list(pool.map(lambda i: check(batches[i], sanitize, 1000 * (SEED + i)), range(len(batches))))
    wrong = [verdict for _, verdicts in done for verdict in verdicts]
    assert sum(launches for launches, _ in done) >= 4 * len(configs)
    assert not wrong, f"{len(wrong)} launches are wrong; the first:\n" + "\n\n".join(wrong[:5])


def test_random_configs_are_right_at_edge_shapes() -> None:
    configs = kernels(CONFIGS, np.random.default_rng(SEED))
    for knob in MATMUL.knobs:
        assert CONFIGS < 100 or {config[knob.name] for config in configs} == set(knob.values), f"{knob.name}: a value is missing"
    assert len({config_text(config) for config in configs}) >= CONFIGS - 2
    check_all(configs, "address")


def test_random_configs_have_no_race() -> None:
    check_all(kernels(CONFIGS_THREAD, np.random.default_rng(SEED + 1), threads=256), "thread")


def test_every_size_of_every_dimension_is_run() -> None:
    for config in kernels(50, np.random.default_rng(SEED)):
        run = shapes(config, MOST_PRODUCTS["address"])
        for dim, block in (("M", "block_m"), ("N", "block_n"), ("K", "block_k")):
            assert {w[dim] for w in run} == {w[dim] for w in MATMUL.edge_shapes(config)}, (dim, config_text(config))
            assert len({w[dim] for w in run}) >= 3 and max(w[dim] for w in run) > config[block]


def test_wrong_kernel_is_caught() -> None:
    """The check itself bites: a dropped product, a NaN and a fault are each named."""
    config, workload = dict(MATMUL.naive), MATMUL.workload(M=17, N=16, K=33)
    inputs = draw_inputs(MATMUL, workload, np.random.default_rng(0))
    job = job_of(MATMUL, 0, config, workload, inputs)
    right = MATMUL.reference(inputs, workload)
    assert judge(job, workload, {"C": right.astype(np.float32)}) == ""
    dropped = right - np.outer(inputs["A"][:, -1], inputs["B"][-1])
    holed = right.copy()
    holed[16, 15] = np.nan
    assert "error" in judge(job, workload, {"C": dropped}) and "error nan" in judge(job, workload, {"C": holed})
    assert "overflow" in judge(job, workload, KernelFault("heap-buffer-overflow"))
