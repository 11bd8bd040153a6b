"""Properties of layernorm's spec, of the space it spans, and of its error bound."""

from dataclasses import replace

import numpy as np
import pytest

from datasets import split
from pipeline.measure.nvcc import BuildFailure, compile_cubin, find_nvcc
from pipeline.measure.settings import BuildSettings
from templates.knob import columns_of, config_text
from templates.render import render, render_reference
from templates.space import canonical, complete, edits, legal, sample, violations
from templates.template import Limits
from templates.workload import Workload
from tests.cpu_run import Arrays, Job, KernelFault, compile_program, draw_inputs, from_words, program, to_words
from tests.layernorm_world import LAYERNORM, LIMITS, error, magnitude, shape

LARGE = shape(8192, 4096)
SHAPES = [LARGE, shape(4096, 2047), shape(8192, 1024, "f16"), shape(4096, 1600, "bf16"), shape(64, 150_000)]
LISTED = [w for listed in split.workloads("layernorm").values() for w in listed]


def test_naive_and_expert_are_legal_everywhere() -> None:
    rng = np.random.default_rng(0)
    shapes = [*LISTED, *(split.perturbed(w, rng) for w in LISTED), shape(1, 1), shape(1, 3, "f16"), shape(2, 10**6)]
    for dtype in LAYERNORM.dtypes:
        shapes += [shape(int(m), int(n), dtype) for m, n in rng.integers(1, 9000, (60, 2))]
    for w in shapes:
        assert violations(LAYERNORM, LAYERNORM.naive, w, LIMITS) == [], w
        assert violations(LAYERNORM, LAYERNORM.expert(w), w, LIMITS) == [], w


def test_lists_have_every_dtype_in_training_and_test() -> None:
    lists = split.workloads("layernorm")
    assert all({w.dtype for w in lists[s]} == set(LAYERNORM.dtypes) for s in ("train", "test"))
    assert len(lists["train"]) >= 10 and len(lists["validation"]) >= 2 and len(lists["test"]) >= 5


@pytest.mark.parametrize("w", SHAPES, ids=str)
def test_samples_are_many_distinct_and_legal(w: Workload) -> None:
    configs = sample(LAYERNORM, w, LIMITS, 500, np.random.default_rng(1))
    assert len({config_text(config) for config in configs}) == 500
    assert all(violations(LAYERNORM, config, w, LIMITS) == [] for config in configs[:100])


def test_typical_shapes_have_hundreds_of_thousands_of_configs() -> None:
    rng, n = np.random.default_rng(2), 400_000
    total = float(np.prod([len(knob.values) for knob in LAYERNORM.knobs]))
    for w in (LARGE, shape(4096, 2047)):
        drawn = {knob.name: rng.choice(np.array(knob.values), size=n) for knob in LAYERNORM.knobs}
        assert legal(LAYERNORM, drawn, w, LIMITS).mean() * total > 3e5, w


def test_derived_of_columns_is_derived_of_each_config() -> None:
    for w in SHAPES:
        configs = sample(LAYERNORM, w, LIMITS, 40, np.random.default_rng(3))
        columns = LAYERNORM.derived(columns_of(tuple(configs), LAYERNORM.names), w)
        for i, config in enumerate(configs):
            for name, value in LAYERNORM.derived(config, w).items():
                assert value >= 0 and np.broadcast_to(columns[name], (40,))[i] == pytest.approx(value), name


def test_every_constraint_forbids_something_that_the_others_allow() -> None:
    n, rng = 400_000, np.random.default_rng(4)
    columns = canonical(LAYERNORM, {knob.name: rng.choice(np.array(knob.values), size=n) for knob in LAYERNORM.knobs})
    worlds = [(w, LIMITS) for w in (*SHAPES, shape(16, 1024), shape(100, 30, "f16"), shape(2**30 + 1, 64))]
    worlds += [(LARGE, Limits(compute_capability=(7, 5)))]
    deciding: set[str] = set()
    for w, limits in worlds:
        held = np.array([np.broadcast_to(c.holds(columns, w, limits), (n,)) for c in LAYERNORM.constraints], dtype=bool)
        alone = held.sum(axis=0) == len(LAYERNORM.constraints) - 1
        deciding |= {c.reason for c, holds in zip(LAYERNORM.constraints, held, strict=True) if np.any(alone & ~holds)}
    assert {c.reason for c in LAYERNORM.constraints} == deciding


def test_blocks_cover_the_rows_and_no_round_is_idle() -> None:
    for w in SHAPES:
        for config in [LAYERNORM.naive, LAYERNORM.expert(w), *sample(LAYERNORM, w, LIMITS, 60, np.random.default_rng(5))]:
            launch, derived = LAYERNORM.launch(config, w), LAYERNORM.derived(config, w)
            rows = config["block_m"] * config["rounds"]
            assert launch.grid == (-(-w["M"] // rows), 1, 1) or rows > config["block_m"]
            assert launch.grid[0] * rows >= w["M"] > (launch.grid[0] - 1) * rows - rows
            assert launch.block == (derived["threads"], 1, 1) and derived["threads"] % 32 == 0
            assert launch.dynamic_smem_bytes <= derived["smem_bytes"] <= LIMITS.smem_block_bytes
            if config["storage"]:
                room = config["vectors"] * config["threads_row"] * config["width"]
                assert w["N"] <= room - (config["width"] - 1 if config["peel"] else 0)


def test_every_edit_changes_the_source() -> None:
    wanted = {(knob.name, value) for knob in LAYERNORM.knobs for value in knob.values}
    seen: set[tuple[str, int]] = set()
    for w in (*SHAPES, shape(512, 120, "f16"), shape(8192, 8192), shape(300, 60)):
        for config in sample(LAYERNORM, w, LIMITS, 60, np.random.default_rng(6)):
            source = render(LAYERNORM, config, w.dtype)
            for name, value, edited in edits(LAYERNORM, config, w, LIMITS):
                if {(name, value), (name, config[name])} - seen:
                    assert render(LAYERNORM, edited, w.dtype) != source, f"{name}={value} changes nothing"
                    seen |= {(name, value), (name, config[name])}
    assert seen == wanted


def test_edge_shapes_surround_what_a_block_holds() -> None:
    for w in SHAPES:
        for config in sample(LAYERNORM, w, LIMITS, 10, np.random.default_rng(7)):
            shapes = LAYERNORM.edge_shapes(config)
            assert all(violations(LAYERNORM, config, edge, LIMITS) == [] for edge in shapes)
            rows = config["block_m"] * config["rounds"]
            assert {rows + 1, 2 * rows + 1} <= {edge["M"] for edge in shapes}
            strip = config["threads_row"] * config["width"]
            held = config["vectors"] * strip if config["storage"] else (config["unroll"] + 1) * strip
            longest = held - config["width"] + 1 if config["peel"] else held
            assert max(edge["N"] for edge in shapes) >= longest - 2 * config["width"]


def test_ptxas_agrees_with_what_is_derived() -> None:
    """Static shared memory to the byte; registers within the block's share; few spills, if any."""
    settings, compiler = BuildSettings(), find_nvcc(BuildSettings())
    spilt = 0
    for seed, w in enumerate(SHAPES):
        (config,) = sample(LAYERNORM, w, LIMITS, 1, np.random.default_rng(70 + seed))
        result = compile_cubin(compiler, render(LAYERNORM, config, w.dtype), "sm_90", settings.flags, 60.0)
        assert not isinstance(result, BuildFailure), (config_text(config), result.message)
        resources, derived = result.resources["layernorm"], LAYERNORM.derived(config, w)
        static = derived["smem_bytes"] - LAYERNORM.launch(config, w).dynamic_smem_bytes
        buffers = 1 if config["one_pass"] and config["rounds"] == 1 else 2  # the second buffer may be unused
        assert static / 2 <= resources.static_smem_bytes <= static if buffers == 1 else resources.static_smem_bytes == static
        assert resources.registers * derived["threads"] * config["min_blocks"] <= LIMITS.registers_per_sm
        spilt += resources.spill_bytes > 0
    assert spilt <= 1


@pytest.mark.parametrize("dtype", LAYERNORM.dtypes)
def test_reference_kernel_agrees_with_numpy(dtype: str) -> None:
    """reference.cu itself, on the CPU: the answer and its magnitude, for rows shorter and longer than a block."""
    binary = compile_program(program([render_reference(LAYERNORM, dtype)], "reference", 5, 2, workspace=False))
    for w in (shape(3, 5, dtype), shape(2, 700, dtype)):
        inputs = draw_inputs(LAYERNORM, w, np.random.default_rng(8))
        *ins, out = LAYERNORM.tensors(w)
        tensors = (*ins, replace(out, dtype="f64"), replace(out, name="magnitude", dtype="f64"))
        launch = replace(LAYERNORM.launch(LAYERNORM.naive, w), grid=(w["M"], 1, 1), block=(256, 1, 1))
        (result,) = binary.run([Job(0, launch, tensors, LAYERNORM.scalars(w), inputs, label="reference")])
        assert not isinstance(result, KernelFault), result
        np.testing.assert_allclose(result["Y"], LAYERNORM.reference(inputs, w), rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(result["magnitude"], magnitude(inputs, w), rtol=1e-12)


def test_reference_agrees_with_pytorch() -> None:
    torch = pytest.importorskip("torch")
    w = shape(5, 333)
    inputs = draw_inputs(LAYERNORM, w, np.random.default_rng(9))
    x, weight, bias = (torch.from_numpy(inputs[name].astype(np.float64)) for name in ("X", "weight", "bias"))
    theirs = torch.nn.functional.layer_norm(x, (333,), weight, bias, eps=1e-5).numpy()
    np.testing.assert_allclose(LAYERNORM.reference(inputs, w), theirs, rtol=1e-12, atol=1e-13)


def normalised(inputs: Arrays, dtype: type = np.float32, dropped: int = 0, unbiased: bool = False, epsilon: float = 1e-5,
               naive_variance: bool = False) -> np.ndarray:  # fmt: skip
    """Layer normalisation in two passes, sums term by term in a dtype, with mistakes to order."""
    x, weight, bias = (inputs[name].astype(np.float32) for name in ("X", "weight", "bias"))
    n = x.shape[1]
    mean = np.add.accumulate(x.astype(dtype)[:, : n - dropped], axis=1)[:, -1:].astype(np.float32) / np.float32(n)
    deviation = x - mean
    if naive_variance:
        squares = np.add.accumulate(x * x, axis=1)[:, -1:] - np.float32(n) * mean * mean
    else:
        squares = np.add.accumulate((deviation * deviation).astype(dtype), axis=1)[:, -1:].astype(np.float32)
    variance = squares / np.float32(n - unbiased)
    result: np.ndarray = deviation / np.sqrt(np.maximum(variance, 0) + np.float32(epsilon)) * weight + bias
    return result


@pytest.mark.parametrize("n", [7, 320, 1024, 8192])
def test_error_bound_passes_rounding_and_refuses_mistakes(n: int) -> None:
    w = shape(16, n)
    inputs = draw_inputs(LAYERNORM, w, np.random.default_rng(10))
    assert error(normalised(inputs), inputs, w) < 1
    wrong = {"a dropped term": normalised(inputs, dropped=1), "n - 1": normalised(inputs, unbiased=True),
             "no epsilon": normalised(inputs, epsilon=0.0), "half sums": normalised(inputs, np.float16)}  # fmt: skip
    for mistake, y in wrong.items():
        assert error(y, inputs, w) > 1, mistake


def test_error_bound_refuses_a_variance_from_the_mean_of_squares() -> None:
    w = shape(16, 1024)
    inputs = draw_inputs(LAYERNORM, w, np.random.default_rng(11))
    inputs["X"] = np.random.default_rng(12).normal(1000.0, 1.0, (16, 1024)).astype(np.float32)
    assert error(normalised(inputs), inputs, w) < 1
    assert error(normalised(inputs, naive_variance=True), inputs, w) > 10


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_error_bound_of_16_bits_is_one_rounding(dtype: str) -> None:
    w = shape(16, 640, dtype)
    inputs = draw_inputs(LAYERNORM, w, np.random.default_rng(13))
    once = from_words(to_words(LAYERNORM.reference(inputs, w).astype(np.float32), dtype), dtype)
    assert 0.5 < error(once, inputs, w) < 1
    unit = 2.0**-11 if dtype == "f16" else 2.0**-8
    assert error(once * (1 + 2 * unit), inputs, w) > 1


def test_knobs_of_one_path_are_inactive_on_the_others() -> None:
    again = complete(LAYERNORM, {"storage": 0, "threads_row": 128, "vectors": 8, "parameters": 1, "async_copy": 1, "stages": 3})
    assert [again[name] for name in ("vectors", "parameters", "async_copy", "stages")] == [4, 0, 0, 1]
    kept = complete(LAYERNORM, {"storage": 2, "unroll": 8, "dynamic_smem": 1, "contiguous": 1})
    assert [kept[name] for name in ("unroll", "dynamic_smem", "contiguous")] == [4, 0, 0]
