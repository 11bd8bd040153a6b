"""Softmax's spec: what its config space holds, its lists of workloads, its error bound, and what the compiler makes of it."""

import numpy as np
import pytest
from scipy.stats import beta

from datasets import split
from pipeline.measure.nvcc import Compiled, compile_cubin, find_nvcc
from pipeline.measure.settings import BuildSettings
from templates.knob import columns_of, config_text
from templates.render import render
from templates.softmax.work import tile_bytes
from templates.space import canonical, complete, distance, edits, legal, sample, violations
from templates.template import ELEMENT_BYTES, Limits, load_template
from templates.workload import Workload
from tests.test_softmax_cpu import error

SOFTMAX = load_template("softmax")
LIMITS = Limits()
LISTED = [(name, w) for name, listed in split.workloads("softmax").items() for w in listed]
AWKWARD = [
    SOFTMAX.workload(dtype, M=m, N=n)
    for dtype in SOFTMAX.dtypes
    for m, n in ((1, 1), (1, 2**27), (2**24, 1), (3, 7), (5, 4095), (7, 200_000), (1_000_003, 10), (2, 1_000_003))
]


def test_naive_and_expert_are_legal_on_any_shape() -> None:
    rng = np.random.default_rng(0)
    shapes = AWKWARD + [
        SOFTMAX.workload(str(rng.choice(SOFTMAX.dtypes)), M=int(2 ** rng.uniform(0, 17)), N=int(2 ** rng.uniform(0, 18)))
        for _ in range(200)
    ]
    for w in shapes:
        assert violations(SOFTMAX, SOFTMAX.naive, w, LIMITS) == [], w
        assert violations(SOFTMAX, SOFTMAX.expert(w), w, LIMITS) == [], w


def test_expert_reads_a_row_once_while_it_fits_on_chip() -> None:
    for text, storage in (("f32/M=8192,N=8192", 2), ("f32/M=256,N=50257", 1), ("f32/M=64,N=200000", 0), ("f16/M=64,N=50257", 2)):
        w = Workload.parse(f"softmax/{text}")
        assert SOFTMAX.expert(w)["storage"] == storage, w


def test_lists_hold_what_they_should() -> None:
    count = {name: sum(listed == name for listed, _ in LISTED) for name in split.SPLITS}
    assert count["train"] >= 10 and count["validation"] >= 2 and count["test"] >= 5
    for name in split.SPLITS:
        short = sum(ELEMENT_BYTES[w.dtype] == 2 for listed, w in LISTED if listed == name)
        assert 0.2 <= short / count[name] <= 0.5, name
    for _, w in LISTED:
        assert SOFTMAX.bytes(w) == 2 * ELEMENT_BYTES[w.dtype] * w["M"] * w["N"] <= 1.5e9, w
    tests = [w for name, w in LISTED if name == "test"]
    assert SOFTMAX.workload(M=8192, N=8192) in tests and any(w["N"] % 2 for w in tests)


@pytest.mark.parametrize("text", ["f32/M=16384,N=4096", "f32/M=18912,N=197", "f16/M=64,N=32000", "bf16/M=512,N=128256"])
def test_space_holds_far_more_than_thousands_of_configs(text: str) -> None:
    """Clopper-Pearson lower bound, one-sided, 99.9 %."""
    n, rng, w = 200_000, np.random.default_rng(1), Workload.parse(f"softmax/{text}")
    columns = {knob.name: rng.choice(np.array(knob.values), size=n) for knob in SOFTMAX.knobs}
    hits = int(np.sum(legal(SOFTMAX, columns, w, LIMITS)))
    raw = np.prod([len(knob.values) for knob in SOFTMAX.knobs], dtype=float)
    assert beta.ppf(0.001, hits, n - hits + 1) * raw >= 100_000


@pytest.mark.parametrize("text", ["f32/M=8192,N=8192", "f32/M=8192,N=4095", "f32/M=256,N=50257", "bf16/M=24624,N=577"])
def test_legal_edits_lead_from_the_naive_config_to_the_expert(text: str) -> None:
    """Best first by distance: a search that edits one knob at a time meets no wall between wide accesses and storages."""
    w = Workload.parse(f"softmax/{text}")
    goal = SOFTMAX.expert(w)
    queue, seen = [dict(SOFTMAX.naive)], {config_text(SOFTMAX.naive)}
    for _ in range(60):
        config = queue.pop(int(np.argmin(distance(SOFTMAX, goal, queue))))
        if config == goal:
            return
        new = [edited for _, _, edited in edits(SOFTMAX, config, w, LIMITS) if config_text(edited) not in seen]
        queue, seen = queue + new, seen | {config_text(edited) for edited in new}
    raise AssertionError(f"no way to {config_text(goal)}")


def test_every_constraint_forbids_something_that_the_others_allow() -> None:
    """A constraint that never decides is dead, or written twice."""
    n = 150_000
    rng = np.random.default_rng(3)
    columns = canonical(SOFTMAX, {knob.name: rng.choice(np.array(knob.values), size=n) for knob in SOFTMAX.knobs})
    worlds = [(Workload.parse(f"softmax/{text}"), LIMITS) for text in (
        "f32/M=16384,N=4096", "f32/M=16384,N=4095", "f16/M=3,N=513", "f32/M=256,N=50256", "f32/M=2147483647,N=1024",
        "f16/M=99,N=32000")]  # fmt: skip
    worlds += [(worlds[0][0], Limits(compute_capability=(7, 5)))]
    deciding: set[str] = set()
    for w, limits in worlds:
        held = np.array([np.broadcast_to(c.holds(columns, w, limits), (n,)) for c in SOFTMAX.constraints], dtype=bool)
        alone = held.sum(axis=0) == len(SOFTMAX.constraints) - 1
        deciding |= {c.reason for c, holds in zip(SOFTMAX.constraints, held, strict=True) if np.any(alone & ~holds)}
    assert {c.reason for c in SOFTMAX.constraints} - deciding == set()


@pytest.mark.parametrize("w", [w for _, w in LISTED[::3]], ids=str)
def test_launches_cover_the_rows_and_threads_have_room_for_them(w: Workload) -> None:
    for config in sample(SOFTMAX, w, LIMITS, 60, np.random.default_rng(4)):
        launch, derived = SOFTMAX.launch(config, w), SOFTMAX.derived(config, w)
        rows = launch.grid[0] * config["block_m"] * config["rounds"]
        assert w["M"] <= rows < w["M"] + config["block_m"] * config["rounds"]
        assert derived["slots"] + config["peel"] * (config["width"] - 1) >= w["N"], config_text(config)
        assert derived["slots"] * (1 - (config["storage"] != 2)) <= config["threads_row"] * config["vectors"] * config["width"]
        held = tile_bytes(config, w) / ELEMENT_BYTES[w.dtype] / config["block_m"]
        if config["storage"] == 1 and config["held"] == 8:
            assert held >= w["N"] - config["width"] + 1
        assert launch.workspace_bytes == 0 and launch.dynamic_smem_bytes == tile_bytes(config, w)


def test_traffic_is_positive_and_knows_what_is_read_again() -> None:
    assert SOFTMAX.traffic is not None
    w = SOFTMAX.workload(M=512, N=128256)
    found = sample(SOFTMAX, w, LIMITS, 100, np.random.default_rng(5))
    columns = columns_of(found, SOFTMAX.names)
    derived = SOFTMAX.derived(columns, w)
    for name, value in SOFTMAX.traffic(columns, w, derived, 132, 60 * 2**20).items():
        assert np.all(np.isfinite(value)) and np.all(np.asarray(value) > 0), name

    def moved(**knobs: int) -> float:
        assert SOFTMAX.traffic is not None
        config = complete(SOFTMAX, {"threads_row": 1024, "block_m": 1, "width": 4, "peel": 0, **knobs})
        return float(SOFTMAX.traffic(config, w, SOFTMAX.derived(config, w), 132, 60 * 2**20)["dram_bytes"])

    once = SOFTMAX.bytes(w)
    assert once < moved(storage=1, held=2, online=1) < moved(online=1) < moved(online=0) == pytest.approx(2 * once)


def scores(n: int, m: int = 40) -> tuple[Workload, np.ndarray]:
    w = SOFTMAX.workload(M=m, N=n)
    return w, np.random.default_rng(n).uniform(80, 100, (m, n)).astype(np.float32)


def powers_of(x: np.ndarray) -> np.ndarray:
    powers: np.ndarray = np.exp(x - x.max(axis=1, keepdims=True))
    return powers


@pytest.mark.parametrize("n", [77, 4096, 50257])
def test_error_bound_leaves_room_for_single_precision(n: int) -> None:
    """The longest sum of a thread, an exponential as far off as __expf may be, and a reciprocal instead of a division."""
    w, x = scores(n)
    below = x.max(axis=1, keepdims=True) - x
    ulps = np.random.default_rng(0).uniform(-1, 1, x.shape) * (2 + 1.173 * below)
    powers = (powers_of(x) * (1 + 2.0**-23 * ulps)).astype(np.float32)
    total = np.zeros(len(x), dtype=np.float32)
    chains = np.zeros((len(x), 32), dtype=np.float32)
    for start in range(0, n, 32):
        part = powers[:, start : start + 32]
        chains[:, : part.shape[1]] += part
    for lane in range(32):
        total += chains[:, lane]
    y = powers * (np.float32(1) / total)[:, None]
    assert 0.02 < error(y, x, w) < 0.8


@pytest.mark.parametrize("n", [77, 4096, 50257])
def test_error_bound_refuses_a_forgotten_term_and_half_precision(n: int) -> None:
    w, x = scores(n)
    powers = powers_of(x.astype(np.float64))
    assert error(powers / powers.sum(axis=1, keepdims=True), x, w) < 1e-3
    assert error(powers / powers[:, :-1].sum(axis=1, keepdims=True), x, w) > 1
    assert error(powers.astype(np.float16) / powers.astype(np.float16).sum(axis=1, keepdims=True, dtype=np.float32), x, w) > 1
    assert error(powers / (1.001 * powers.sum(axis=1, keepdims=True)), x, w) > 1
    assert error(np.roll(powers / powers.sum(axis=1, keepdims=True), 1, axis=1), x, w) > 1


def test_static_shared_memory_is_what_is_derived() -> None:
    compiler, rng = find_nvcc(BuildSettings()), np.random.default_rng(6)
    for text in ("f32/M=8192,N=8192", "bf16/M=1024,N=50257"):
        w = Workload.parse(f"softmax/{text}")
        for config in sample(SOFTMAX, w, LIMITS, 3, rng):
            done = compile_cubin(compiler, render(SOFTMAX, config, w.dtype), "sm_90", BuildSettings().flags, 120.0)
            assert isinstance(done, Compiled), done
            parts = SOFTMAX.derived(config, w)["smem_bytes"] - SOFTMAX.launch(config, w).dynamic_smem_bytes
            resources = done.resources["softmax"]
            assert resources.static_smem_bytes == parts, config_text(config)
            assert resources.spill_bytes <= 128, config_text(config)
