"""Attention's spec: legal space, geometry, reference and error bound, against independent computations."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta

from datasets import split
from datasets.device import H200
from templates.attention.shapes import sum_floats
from templates.attention.spec import softmax_weights
from templates.attention.traffic import seen_keys
from templates.attention.vendor import _ways
from templates.errors import InputError
from templates.knob import Config, columns_of, config_text
from templates.space import canonical, legal, sample, violations
from templates.template import Limits, load_template
from templates.workload import Workload
from tests.cpu_run import Arrays, Job, KernelFault, compile_program, draw_inputs, program

ATTENTION = load_template("attention")
LIMITS = Limits()


def workload(b: int, h: int, kv: int, q: int, k: int, d: int, causal: int = 0) -> Workload:
    return ATTENTION.workload(B=b, H=h, KV=kv, Q=q, K=k, D=d, causal=causal)


LARGE = workload(4, 16, 16, 2048, 2048, 64)
GROUPED = workload(1, 32, 8, 2048, 2048, 128, 1)
DECODE = workload(16, 32, 8, 1, 4096, 128)
LISTED = [w for items in split.workloads("attention").values() for w in items]
AWKWARD = [workload(1, 1, 1, 1, 1, 1), workload(3, 6, 2, 33, 1, 37), workload(1, 7, 1, 2, 9973, 255, 1)]
AWKWARD += [workload(2, 4, 4, 1, 5, 256)]


def random_columns(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {knob.name: rng.choice(np.array(knob.values), size=n) for knob in ATTENTION.knobs}


def test_naive_and_expert_are_legal_everywhere() -> None:
    rng = np.random.default_rng(0)
    shapes = [*LISTED, *AWKWARD, *(split.perturbed(w, rng) for w in LISTED for _ in range(3))]
    shapes += [workload(2, 4, 2, int(rng.integers(1, 3000)), int(rng.integers(1, 3000)), d, d % 2) for d in range(1, 257)]
    for w in shapes:
        assert violations(ATTENTION, ATTENTION.naive, w, LIMITS) == [], w
        assert violations(ATTENTION, ATTENTION.expert(w), w, LIMITS) == [], w


def test_perturbed_shapes_keep_heads_and_head_dimension() -> None:
    rng = np.random.default_rng(1)
    for w in LISTED:
        near = split.perturbed(w, rng)
        assert near != w and all(near[dim] == w[dim] for dim in ("B", "H", "KV", "D", "causal"))


def test_listed_workloads_fit_a_gpu() -> None:
    lists = split.workloads("attention")
    assert len(lists["train"]) >= 10 and len(lists["validation"]) >= 2 and len(lists["test"]) >= 5
    for w in LISTED:
        assert sum(4 * int(np.prod(t.shape)) for t in ATTENTION.tensors(w)) < 1.5e9


@pytest.mark.parametrize("w", [LARGE, GROUPED, DECODE, *AWKWARD], ids=str)
def test_samples_are_legal_and_many(w: Workload) -> None:
    n = 50 if w["K"] > 16 else 10
    configs = sample(ATTENTION, w, LIMITS, n, np.random.default_rng(2))
    assert len({config_text(config) for config in configs}) == n
    assert all(violations(ATTENTION, config, w, LIMITS) == [] for config in configs)


@pytest.mark.parametrize("w", [LARGE, GROUPED, DECODE], ids=str)
def test_space_holds_millions_of_configs(w: Workload) -> None:
    """Clopper-Pearson lower bound, one-sided, 99.9 %; `legal` counts each canonical config once."""
    n = 200_000
    hits = int(np.sum(legal(ATTENTION, random_columns(n, np.random.default_rng(3)), w, LIMITS)))
    lower = float(beta.ppf(0.001, hits, n - hits + 1))
    assert lower * np.prod([len(knob.values) for knob in ATTENTION.knobs], dtype=float) >= 10_000_000


def test_derived_and_traffic_of_columns_are_those_of_each_config() -> None:
    for w in (LARGE, GROUPED, DECODE):
        configs: list[Config] = [ATTENTION.naive, *sample(ATTENTION, w, LIMITS, 30, np.random.default_rng(4))]
        columns = columns_of(tuple(configs), ATTENTION.names)
        together = ATTENTION.derived(columns, w)
        assert ATTENTION.traffic is not None
        moved = ATTENTION.traffic(columns, w, together, H200.sm_count, H200.l2_bytes)
        for i, config in enumerate(configs):
            alone = ATTENTION.derived(config, w)
            alone_moved = ATTENTION.traffic(config, w, alone, H200.sm_count, H200.l2_bytes)
            for whole, part in ((together, alone), (moved, alone_moved)):
                for name, value in part.items():
                    assert np.broadcast_to(whole[name], (31,))[i] == pytest.approx(value), name
            assert all(value > 0 for value in alone_moved.values())


def test_every_constraint_forbids_something_that_the_others_allow() -> None:
    """A constraint that never decides is dead, or written twice."""
    n = 200_000
    columns = canonical(ATTENTION, random_columns(n, np.random.default_rng(5)))
    narrow = canonical(ATTENTION, {**columns, "shared": np.zeros(n, dtype=np.int64)})
    old = replace(LIMITS, compute_capability=(7, 5), smem_block_bytes=64 * 1024)
    worlds = [(columns, LARGE, LIMITS), (columns, workload(2, 4, 2, 513, 70, 33), LIMITS), (columns, LARGE, old)]
    worlds += [(narrow, LARGE, LIMITS), (narrow, LARGE, replace(LIMITS, grid_x=1000))]
    worlds += [(columns, LARGE, replace(LIMITS, threads_per_block=128))]
    deciding: set[str] = set()
    for configs, w, limits in worlds:
        held = np.array([np.broadcast_to(c.holds(configs, w, limits), (n,)) for c in ATTENTION.constraints], dtype=bool)
        alone = held.sum(axis=0) == len(ATTENTION.constraints) - 1
        deciding |= {c.reason for c, holds in zip(ATTENTION.constraints, held, strict=True) if np.any(alone & ~holds)}
    assert {c.reason for c in ATTENTION.constraints} == deciding


@pytest.mark.parametrize("w", [LARGE, GROUPED, DECODE, *AWKWARD], ids=str)
def test_launches_fit_the_limits_and_cover_the_rows(w: Workload) -> None:
    for config in [ATTENTION.naive, ATTENTION.expert(w), *sample(ATTENTION, w, LIMITS, 30, np.random.default_rng(6))]:
        launch, d = ATTENTION.launch(config, w), ATTENTION.derived(config, w)
        assert launch.block[0] == 32 * d["warps_q"] * config["warps_k"] <= LIMITS.threads_per_block
        assert d["lanes_q"] * config["lanes_k"] == 32 and d["warps_q"] * d["lanes_q"] * config["thread_q"] == config["block_q"]
        assert d["thread_k"] * config["lanes_k"] * config["warps_k"] == config["block_k"]
        rows, heads = (w["H"] // w["KV"] * w["Q"], w["KV"]) if config["pack_heads"] else (w["Q"], w["H"])
        blocks = w["B"] * heads * -(-rows // config["block_q"])
        assert launch.grid == (blocks, 1, config["split_k"])
        assert launch.dynamic_smem_bytes <= LIMITS.smem_block_bytes
        partial = 4 * blocks * config["split_k"] * sum_floats(config)
        expected = -(-4 * blocks // 16) * 16 + partial if config["split_k"] > 1 else 0
        assert launch.workspace_bytes == expected


def test_edge_shapes_keep_the_config_legal_and_surround_its_tiles() -> None:
    for w in (LARGE, GROUPED, workload(1, 4, 2, 300, 300, 40), workload(1, 4, 2, 300, 300, 200)):
        for config in [ATTENTION.naive, *sample(ATTENTION, w, LIMITS, 15, np.random.default_rng(8))]:
            shapes = ATTENTION.edge_shapes(config)
            assert all(violations(ATTENTION, config, shape, LIMITS) == [] for shape in shapes)
            block = config["block_q"]
            assert {shape["Q"] for shape in shapes} == {1, block - 1, block, block + 1, 2 * block + 1}
            assert len({shape["K"] for shape in shapes}) >= 3 and max(shape["K"] for shape in shapes) > config["block_k"]
            assert {shape["causal"] for shape in shapes} >= {1}


def test_wrong_workloads_are_one_clear_line() -> None:
    for given, said in (((1, 6, 4, 8, 8, 64, 0), "H=6 is not a multiple of KV=4"), ((1, 1, 1, 8, 8, 257, 0), "D=257"),
                        ((1, 1, 1, 8, 8, 64, 2), "causal=2"), ((1, 2**10, 1, 2**21, 8, 256, 0), "2\\^31")):  # fmt: skip
        with pytest.raises(InputError, match=said) as error:
            workload(*given)
        assert "\n" not in str(error.value)


def test_flops_count_the_pairs_that_are_seen() -> None:
    for w in (workload(2, 4, 2, 5, 9, 8, 1), workload(1, 1, 1, 9, 5, 8, 1), workload(2, 4, 2, 5, 9, 8)):
        pairs = sum(1 for i in range(w["Q"]) for j in range(w["K"]) if j <= i or not w["causal"])
        assert seen_keys(w) * w["Q"] == pytest.approx(pairs)
        assert ATTENTION.flops(w) == pytest.approx(4 * w["B"] * w["H"] * pairs * w["D"])


def by_hand(inputs: Arrays, w: Workload) -> np.ndarray:
    """O as the definition has it, one row at a time."""
    out = np.zeros((w["B"], w["H"], w["Q"], w["D"]))
    q, k, v = (inputs[name].astype(np.float64) for name in ("Q", "K", "V"))
    for b, h, i in np.ndindex(w["B"], w["H"], w["Q"]):
        seen = min(w["K"], i + 1) if w["causal"] else w["K"]
        kv = h // (w["H"] // w["KV"])
        weights = np.exp([sum(q[b, h, i] * k[b, kv, j]) / np.sqrt(w["D"]) for j in range(seen)])
        out[b, h, i] = sum(weights[j] * v[b, kv, j] for j in range(seen)) / sum(weights)
    return out


CASES = [workload(2, 4, 2, 5, 7, 6, 1), workload(1, 3, 1, 4, 2, 3, 1), workload(1, 2, 2, 3, 300, 9)]
CASES += [workload(1, 2, 1, 290, 270, 2, 1)]
ROUNDED = [workload(1, 2, 1, 32, 2048, 64), workload(1, 1, 1, 16, 4096, 128), workload(1, 1, 1, 64, 77, 40)]


@pytest.mark.parametrize("w", CASES, ids=str)
def test_reference_is_the_definition(w: Workload) -> None:
    inputs = draw_inputs(ATTENTION, w, np.random.default_rng(9))
    np.testing.assert_allclose(ATTENTION.reference(inputs, w), by_hand(inputs, w), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("w", CASES, ids=str)
def test_reference_kernel_agrees_with_numpy(w: Workload) -> None:
    """reference.cu itself, on the CPU: the answer and its magnitude, more keys than threads included."""
    inputs = draw_inputs(ATTENTION, w, np.random.default_rng(10))
    *ins, out = ATTENTION.tensors(w)
    tensors = (*ins, replace(out, dtype="f64"), replace(out, name="magnitude", dtype="f64"))
    assert ATTENTION.reference_threads is not None
    launch = replace(ATTENTION.launch(ATTENTION.naive, w), grid=(ATTENTION.reference_threads(w) // 256, 1, 1), block=(256, 1, 1))
    binary = compile_program(program([ATTENTION.reference_path.read_text()], "reference", 5, 6, workspace=False))
    (result,) = binary.run([Job(0, launch, tensors, ATTENTION.scalars(w), inputs, label="reference")])
    assert not isinstance(result, KernelFault), result
    np.testing.assert_allclose(result["O"], ATTENTION.reference(inputs, w), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(result["magnitude"], magnitude(inputs, w), rtol=1e-12)


def magnitude(inputs: Arrays, w: Workload) -> np.ndarray:
    result: np.ndarray = softmax_weights(inputs, w) @ np.repeat(np.abs(inputs["V"].astype(np.float64)), w["H"] // w["KV"], axis=1)
    return result


def online(inputs: Arrays, w: Workload, tile: int, accumulate: type = np.float32, rescale: bool = True) -> np.ndarray:
    """Online softmax in fp32, tile by tile, products summed one at a time; `accumulate` and `rescale` plant mistakes."""
    q = (inputs["Q"] * np.float32(1.0 / np.sqrt(w["D"]))).astype(np.float32)
    out = np.zeros(q.shape, accumulate)
    top, total = np.full((*q.shape[:3], 1), -np.inf, np.float32), np.zeros((*q.shape[:3], 1), np.float32)
    for begin in range(0, w["K"], tile):
        k, v = (np.repeat(inputs[name][:, :, begin : begin + tile], w["H"] // w["KV"], axis=1) for name in ("K", "V"))
        scores = np.zeros((*q.shape[:3], k.shape[2]), np.float32)
        for d in range(w["D"]):
            scores += q[..., d, None] * k[..., None, :, d]
        larger = np.maximum(top, scores.max(axis=-1, keepdims=True))
        shrink = np.exp(top - larger) if rescale else np.ones_like(top)
        weights = np.exp(scores - larger)
        out, total = (out * shrink).astype(accumulate), total * shrink + weights.sum(axis=-1, keepdims=True, dtype=np.float32)
        for j in range(k.shape[2]):
            out = (out + weights[..., j, None] * v[..., j, None, :]).astype(accumulate)
        top = larger
    result: np.ndarray = out / total
    return result


@pytest.mark.parametrize("w", ROUNDED, ids=str)
def test_error_bound_passes_rounding_and_refuses_mistakes(w: Workload) -> None:
    inputs = draw_inputs(ATTENTION, w, np.random.default_rng(11))
    right, scale, bound = ATTENTION.reference(inputs, w), magnitude(inputs, w), ATTENTION.error_bound(w)

    def error(out: np.ndarray) -> float:
        return float(np.max(np.abs(out - right) / (bound * scale)))

    assert 0 < error(online(inputs, w, 32)) < 1
    assert error(online(inputs, w, 32, accumulate=np.float16)) > 1
    assert error(online(inputs, w, 32, rescale=False)) > 1
    dropped = replace_last(w, K=w["K"] - 1)
    assert error(ATTENTION.reference({**inputs, "K": inputs["K"][:, :, :-1], "V": inputs["V"][:, :, :-1]}, dropped)) > 1
    assert error(ATTENTION.reference({**inputs, "Q": inputs["Q"] * np.float32(1 + 2.0**-9)}, w)) > 1
    tf32 = {**inputs, "Q": (inputs["Q"].view(np.uint32) & 0xFFFFE000).view(np.float32)}
    assert error(ATTENTION.reference(tf32, w)) > 1


def replace_last(w: Workload, **extents: int) -> Workload:
    return ATTENTION.workload(**{**dict(w.dims), **extents})


@pytest.mark.parametrize("w", [workload(2, 4, 2, 5, 7, 8), workload(2, 4, 2, 5, 5, 8, 1), workload(2, 3, 3, 5, 7, 8, 1)], ids=str)
def test_every_way_to_ask_the_vendor_computes_the_same(w: Workload) -> None:
    torch = pytest.importorskip("torch")
    inputs = draw_inputs(ATTENTION, w, np.random.default_rng(12))
    attend = torch.nn.functional.scaled_dot_product_attention
    outputs = []

    def recorded(*args: object, **kwargs: object) -> None:
        outputs.append(attend(*args, **kwargs))

    ways = _ways(recorded, *(torch.from_numpy(inputs[name]) for name in ("Q", "K", "V")), bool(w["causal"]))
    assert len(ways) == (1 if w["H"] == w["KV"] else 2 if w["causal"] else 3)
    for way in ways:
        way()
    for out in outputs:
        np.testing.assert_allclose(out.numpy().reshape(ATTENTION.tensors(w)[3].shape), by_hand(inputs, w), atol=1e-5)


def test_the_narrowest_listed_space_has_hundreds_of_configs_to_draw() -> None:
    """Wide heads leave few legal configs."""
    w = workload(2, 8, 1, 1024, 1024, 256, 1)
    configs = sample(ATTENTION, w, LIMITS, 600, np.random.default_rng(13))
    assert w in LISTED and len({config_text(config) for config in configs}) == 600
