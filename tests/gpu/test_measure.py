"""The measurer on a real GPU: planted faults become the right rows, times agree with CUDA-graph replay.

`python -m pytest -m gpu tests/gpu -q -s` on a machine with a GPU; skipped elsewhere.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from datasets.measurement import Candidate, Measurement
from pipeline.measure import clocks
from pipeline.measure.build import BuildPool, Cubin
from pipeline.measure.engine import GpuEngine
from pipeline.measure.farm import CHECK_SOURCE, GpuFarm
from pipeline.measure.jobs import Job, Outcome, Tools
from pipeline.measure.lane import graph_replay_us
from pipeline.measure.settings import BuildSettings, FarmSettings, TimingSettings
from pipeline.measure.timing import time_launches
from pipeline.measure.worker import Worker
from templates.render import render
from templates.space import sample
from templates.template import load_template
from templates.workload import Workload

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not clocks.visible_gpus(clocks.load_nvml()), reason="needs an NVIDIA GPU"),
]
MATMUL = load_template("matmul")

HEAD = (
    'extern "C" __global__ void matmul(const float *A, const float *B, float *C, int M, int N, int K, float *w)\n{\n'
    "    const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x, step = (long long)gridDim.x * blockDim.x;\n"
)
BODY = (
    "    for (long long i = first; i < (long long)M * N; i += step) {\n        float sum = 0.0f;\n"
    "        for (int k = 0; k < K; ++k)\n            sum += A[i / N * K + k] * B[(long long)k * N + i % N];\n"
    "        C[i] = sum;\n    }\n"
)
RIGHT = HEAD + BODY + "}\n"


def cubin(pool: BuildPool, source: str) -> Cubin:
    result = pool.submit(source).result()
    assert isinstance(result, Cubin), result
    return result


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> BuildPool:
    from pipeline.measure.gpu import device_of

    major, minor = device_of(0).compute_capability
    return BuildPool(BuildSettings(cache_dir=str(tmp_path_factory.mktemp("cache"))), f"sm_{major}{minor}")


@pytest.fixture(scope="module")
def tools(pool: BuildPool) -> Tools:
    return Tools(cubin(pool, CHECK_SOURCE.read_text()).code, {"matmul/f32": cubin(pool, MATMUL.reference_path.read_text()).code})


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def worker(tools: Tools, log_dir: Path) -> Iterator[Worker]:
    made = Worker(FarmSettings(deadline_s=3.0, log_dir=str(log_dir)), 0, "0")
    print("\n", made.start(), made.equip(tools, None))
    yield made
    made.close()


def run(worker: Worker, tools: Tools, pool: BuildPool, source: str, workload: Workload) -> Outcome:
    if not worker.alive:
        worker.start()
        worker.equip(tools, None)
    started = time.perf_counter()
    outcome = worker.run(Job(Candidate(workload, dict(MATMUL.naive)), cubin(pool, source).code))
    print(f"\n    {outcome.status}: {outcome.message} ({time.perf_counter() - started:.2f} s)")
    return outcome


SMALL = MATMUL.workload(M=300, N=260, K=130)

PLANTED = {
    "right": (RIGHT, "ok", ""),
    "writes half": (HEAD + BODY.replace("M * N;", "M * N / 2;") + "}\n", "wrong_answer", "C: 50 % of elements never written"),
    "writes nothing": (HEAD + "}\n", "wrong_answer", "C: 100 % of elements never written"),
    "zeros": (HEAD + BODY.replace("= sum;", "= 0.0f;") + "}\n", "wrong_answer", "C: all zero"),
    "one wrong element": (
        HEAD + BODY.replace("= sum;", "= i == 7LL * N + 5 ? sum + 1.0f : sum;") + "}\n", "wrong_answer", "at element (7, 5)",
    ),
    "drops the last k": (HEAD + BODY.replace("k < K;", "k < K - 1;") + "}\n", "wrong_answer", "x bound"),
    "slightly off": (HEAD + BODY.replace("= sum;", "= sum * 1.001f;") + "}\n", "wrong_answer", "x bound"),
    "right only the first time": (
        "__device__ int calls;\n" + HEAD
        + BODY.replace("= sum;", "= calls ? 1.0f : sum;") + "    if (first == 0) calls = 1;\n}\n",
        "wrong_answer", "C:",
    ),
    "past the end of C": (
        HEAD + BODY + "    if (first < 8) C[(long long)M * N + first] = 1.0f;\n}\n", "wrong_answer", "wrote outside buffer C",
    ),
    "before A": (HEAD + BODY + "    if (first == 0) ((float *)A)[-3] = 1.0f;\n}\n", "wrong_answer", "wrote outside buffer A"),
    "changes B": (HEAD + BODY + "    if (first == 0) ((float *)B)[5] += 1.0f;\n}\n", "wrong_answer", "changed input B"),
    "illegal address": (HEAD + BODY + "    if (first == 0) *(volatile float *)16 = 1.0f;\n}\n", "crash", "ILLEGAL_ADDRESS"),
    "misaligned": (HEAD + BODY + "    if (first == 0) *(volatile double *)((char *)C + 4) = 1.0;\n}\n", "crash", "MISALIGNED"),
    "trap": (HEAD + BODY + '    if (first == 0) asm("trap;");\n}\n', "crash", "CUDA error"),
    "hang": (HEAD + "    while (*(volatile float *)A != 12345.0f) {}\n}\n", "timeout", "no answer within 3 s (check)"),
    "too many threads": (RIGHT.replace("void matmul", "void __launch_bounds__(64) matmul"), "launch_error", "CUDA"),
    "another entry point": (RIGHT.replace("void matmul", "void other"), "launch_error", "NOT_FOUND"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_planted(name: str, worker: Worker, tools: Tools, pool: BuildPool) -> None:
    source, status, says = PLANTED[name]
    outcome = run(worker, tools, pool, source, SMALL)
    assert outcome.status == status and says in outcome.message, outcome
    assert worker.alive == (status not in ("crash", "timeout"))
    again = run(worker, tools, pool, RIGHT, SMALL)
    assert again.status == "ok" and again.error is not None and 0 < again.error <= 1, f"after {name}: {again}"


def test_garbage_cubin_is_a_launch_error(worker: Worker, tools: Tools, pool: BuildPool) -> None:
    run(worker, tools, pool, RIGHT, SMALL)
    outcome = worker.run(Job(Candidate(SMALL, dict(MATMUL.naive)), b"\x7fELF" + bytes(2000)))
    assert outcome.status in ("launch_error", "crash"), outcome
    assert run(worker, tools, pool, RIGHT, SMALL).status == "ok"


def engine_of(tools: Tools, **timing: object) -> GpuEngine:
    engine = GpuEngine(replace(TimingSettings(), **timing))  # type: ignore[arg-type]
    print("\n   ", engine.equip(tools, None))
    return engine


@pytest.fixture(scope="module")
def cold(tools: Tools) -> GpuEngine:
    return engine_of(tools)


@pytest.fixture(scope="module")
def warm(tools: Tools) -> GpuEngine:
    return engine_of(tools, l2="warm")


def test_inputs_are_uniform_and_the_reference_is_right(cold: GpuEngine) -> None:
    workload = MATMUL.workload(M=65, N=33, K=129)
    bench = cold.bench(workload, print)
    for which in (0, 1):
        inputs = {}
        for buffer, tensor in zip(bench.sets[which].inputs, bench.ins, strict=True):
            values = cold.gpu.read(buffer.address, np.empty(tensor.shape, np.float32))
            assert -1 <= values.min() < -0.98 and 0.98 < values.max() < 1 and abs(values.mean()) < 0.05
            assert len(np.unique(values)) > 0.99 * values.size
            inputs[tensor.name] = values
        want = MATMUL.reference(inputs, workload)
        got = cold.gpu.read(bench.sets[which].answers.address, np.empty((2, *want.shape)))
        np.testing.assert_allclose(got[0], want, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(got[1], np.abs(inputs["A"]).astype(float) @ np.abs(inputs["B"]).astype(float), rtol=1e-12)
    assert bench.sets[0].sums != bench.sets[1].sums


@pytest.mark.parametrize("size", [64, 128, 256, 512, 1024])
@pytest.mark.parametrize("which", ["naive", "expert"])
@pytest.mark.parametrize("l2", ["warm", "cold"])
def test_times_agree_with_graph_replay(l2: str, which: str, size: int, cold: GpuEngine, warm: GpuEngine, pool: BuildPool) -> None:
    engine = cold if l2 == "cold" else warm
    workload = MATMUL.workload(M=size, N=size, K=size)
    config = MATMUL.naive if which == "naive" else MATMUL.expert(workload)
    bench = engine.bench(workload, lambda name: None)
    launch = MATMUL.launch(config, workload)
    workspace = bench.workspace(launch)
    code = cubin(pool, render(MATMUL, config)).code
    kernel = engine.gpu.kernel(code, MATMUL.entry, launch, bench.arguments(0, workspace))

    def enqueue() -> None:
        engine.gpu.launch(kernel)

    first_us = engine.lane.once_us(enqueue)
    samples = time_launches(enqueue, engine.lane, engine.timing, first_us)
    replayed = graph_replay_us(engine.lane, enqueue, flush=l2 == "cold")
    ours = median(samples)
    spread = (np.percentile(samples, 75) - np.percentile(samples, 25)) / ours
    print(
        f"\n    {l2} {which} {size}: first {first_us:.2f}, timed {ours:.2f} us (n={len(samples)}, IQR {100 * spread:.1f} %),"
        f" graph {replayed:.2f} us, {100 * (ours / replayed - 1):+.1f} %"
    )
    if workspace is not None:
        engine.checker.free(workspace)
    # After a flush, a kernel with shared memory first has the SMs repartition their L1: a microsecond or two that the graph's
    # difference counts and the gap before the start event hides. H200: at most 1.74 us (14.10 against 15.84).
    slack_us = 2.0 if l2 == "cold" else 0.0
    assert abs(ours - replayed) <= max(0.05 * replayed, slack_us)


def test_timing_repeats_itself(warm: GpuEngine, cold: GpuEngine) -> None:
    for engine in (warm, cold):
        times = [median(time_launches(engine.lane.empty, engine.lane, engine.timing, 5.0)) for _ in range(10)]
        print("\n    empty kernel:", ", ".join(f"{t:.2f}" for t in times), f"us; in a graph {engine.lane.empty_us:.2f} us")
        assert max(times) - min(times) < 0.5


def test_device_memory_does_not_grow(cold: GpuEngine, pool: BuildPool) -> None:
    code = cubin(pool, RIGHT).code
    job = Job(Candidate(SMALL, dict(MATMUL.naive)), code)
    assert cold.measure(job, lambda name: None).status == "ok"
    before = cold.gpu.free_bytes()
    for _ in range(50):
        assert cold.measure(job, lambda name: None).status == "ok"
    assert before - cold.gpu.free_bytes() <= 2 * 2**20


def farm_settings(tmp_path: Path) -> FarmSettings:
    return FarmSettings(log_dir=str(tmp_path), build=BuildSettings(cache_dir=str(tmp_path / "cache"), jobs=8))


def show(row: Measurement) -> None:
    flops = MATMUL.flops(row.workload)
    speed = f"{row.time_us:.1f} us, {flops / row.time_us * 1e-6:.2f} TFLOP/s" if row.time_us else row.message
    print(f"    {row.workload} {row.origin}: {row.status} {speed} n={len(row.samples_us)} error={row.error} {row.conditions}")


def test_naive_expert_and_vendor_end_to_end(tmp_path: Path) -> None:
    shapes = [(512, 512, 512), (333, 257, 129), (1, 1, 1), (7, 4096, 1000), (64, 64, 8192), (2048, 2048, 2048)]
    with GpuFarm(farm_settings(tmp_path)) as farm:
        print("\n   ", farm.device)
        workloads = [MATMUL.workload(M=m, N=n, K=k) for m, n, k in shapes]
        rows = list(farm.measure([Candidate(w, dict(MATMUL.naive), "naive") for w in workloads]))
        rows += list(farm.measure([Candidate(w, dict(MATMUL.expert(w)), "expert") for w in workloads]))
        rows += [farm.measure_vendor(w) for w in workloads]
        for row in rows:
            show(row)
        print("   ", farm.stats())
    assert [row.status for row in rows] == ["ok"] * len(rows)
    assert all(row.resources and row.resources.registers > 0 for row in rows if row.origin != "vendor")
    assert all(row.error is not None and row.error <= 1 for row in rows if row.origin != "vendor")


def test_random_configs_are_right_or_say_why(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with GpuFarm(farm_settings(tmp_path)) as farm:
        work = []
        for shape in ((512, 512, 512), (333, 257, 129)):
            workload = MATMUL.workload(M=shape[0], N=shape[1], K=shape[2])
            work += [Candidate(workload, config) for config in sample(MATMUL, workload, farm.device.limits, 40, rng)]
        rows = list(farm.measure(work))
        for row in rows:
            if row.status != "ok":
                show(row)
        print("\n   ", farm.stats())
    assert {row.status for row in rows} <= {"ok", "compile_error", "launch_error"}, "no wrong answers, no crashes"
    assert sum(row.status == "ok" for row in rows) >= 0.9 * len(rows)


def test_a_large_shape_fits_and_is_stopped_early(tmp_path: Path) -> None:
    workload = MATMUL.workload(M=8192, N=8192, K=8192)
    settings = replace(farm_settings(tmp_path), timing=replace(TimingSettings(), hopeless_factor=4.0))
    with GpuFarm(settings) as farm:
        started = time.perf_counter()
        for row in farm.measure([Candidate(workload, c) for c in (dict(MATMUL.expert(workload)), dict(MATMUL.naive))]):
            show(row)
            print(f"    after {time.perf_counter() - started:.1f} s")
            assert row.status == "ok" and row.time_us is not None and math.isfinite(row.time_us)
