"""Properties of conv2d's spec: its space, its reference, its error bound, its flaws."""

from dataclasses import replace

import numpy as np
import pytest

from datasets import split
from templates.knob import columns_of
from templates.render import render
from templates.space import canonical, edits, legal, sample, violations
from templates.template import Limits, load_template
from templates.workload import Workload
from tests.cpu_run import Job, KernelFault, compile_program, draw_inputs, program

CONV = load_template("conv2d")
LIMITS = Limits()
LISTED = [w for listed in split.workloads("conv2d").values() for w in listed]


def conv(
    n: int, c: int, h: int, w: int, k: int, r: int, s: int, stride: int, pad: int, dilation: int, groups: int, nhwc: int
) -> Workload:  # fmt: skip
    sizes = {"N": n, "C": c, "H": h, "W": w, "K": k, "R": r, "S": s}
    return CONV.workload(**sizes, stride=stride, pad=pad, dilation=dilation, groups=groups, nhwc=nhwc)


RESNET = conv(32, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1, 0)
RESNET_LAST = conv(32, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1, 1)
PLAIN = conv(32, 64, 56, 56, 256, 1, 1, 1, 0, 1, 1, 0)
DEPTHWISE = conv(32, 128, 56, 56, 128, 3, 3, 1, 1, 1, 128, 0)
DEPTHWISE_LAST = conv(32, 96, 112, 112, 96, 3, 3, 2, 1, 1, 96, 1)
KINDS = (RESNET, RESNET_LAST, PLAIN, DEPTHWISE, DEPTHWISE_LAST)
AWKWARD = (
    conv(1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0),
    conv(2, 5, 9, 7, 3, 3, 2, 2, 1, 3, 1, 1),
    conv(3, 6, 40, 1, 9, 5, 1, 3, 2, 1, 3, 0),
    conv(1, 2, 5, 5, 2, 21, 21, 1, 10, 1, 1, 0),
)


def random_columns(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {knob.name: rng.choice(np.array(knob.values), size=n) for knob in CONV.knobs}


def some_configs(w: Workload, n: int, seed: int) -> list[dict[str, int]]:
    return sample(CONV, w, LIMITS, n, np.random.default_rng(seed))


def test_naive_and_expert_are_legal_everywhere() -> None:
    rng = np.random.default_rng(0)
    for w in [*LISTED, *AWKWARD, *(split.perturbed(w, rng) for w in LISTED for _ in range(3))]:
        assert CONV.check_workload(w) == w
        assert violations(CONV, CONV.naive, w, LIMITS) == [], w
        assert violations(CONV, CONV.expert(w), w, LIMITS) == [], w


def test_expert_goes_directly_where_groups_are_small() -> None:
    assert CONV.expert(RESNET)["shared"] == 1 and CONV.expert(RESNET_LAST)["channels_last"] == 1
    assert CONV.expert(PLAIN)["walk"] == 3 and CONV.expert(PLAIN)["width_x"] == 4
    assert CONV.expert(DEPTHWISE)["depthwise"] == 1 and CONV.expert(DEPTHWISE_LAST)["width_x"] == 4


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"groups": 3}, "C=64 is not a multiple of groups=3"),
        ({"C": 60, "groups": 12}, "K=64 is not a multiple of groups=12"),
        ({"H": 2, "pad": 0}, "does not fit"),
        ({"dilation": 40}, "does not fit"),
        ({"N": 2**16}, "more than 2\\^30 elements"),
        ({"nhwc": 2}, "nhwc=2 is not a size"),
        ({"stride": 0}, "stride=0 is not a size"),
    ],
)
def test_shapes_that_do_not_fit_together_are_one_clear_line(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        CONV.workload(**{**dict(RESNET.dims), **wrong})
    assert "\n" not in str(error.value)


def test_lists_hold_every_kind_and_no_workload_of_a_gigabyte_and_a_half() -> None:
    lists = split.workloads("conv2d")
    assert len(lists["train"]) >= 10 and len(lists["validation"]) >= 2 and len(lists["test"]) >= 5 and len(LISTED) >= 16
    assert RESNET in lists["test"] and all(CONV.bytes(w) < 1.5e9 for w in LISTED)
    for part in ("train", "test"):
        assert {w["nhwc"] for w in lists[part]} == {0, 1} and any(w["groups"] == w["C"] > 1 for w in lists[part])
        assert {1, 3, 7} <= {w["R"] for w in lists[part]} and {1, 2} <= {w["stride"] for w in lists[part]}


@pytest.mark.parametrize("w", [RESNET, RESNET_LAST, PLAIN], ids=str)
def test_tiled_space_holds_hundreds_of_thousands_of_configs(w: Workload) -> None:
    """Counted by sampling raw columns; `legal` counts each canonical config once, so this is far below the truth."""
    n = 400_000
    columns = random_columns(n, np.random.default_rng(8))
    folded = canonical(CONV, {**columns, "shared": np.ones(n, dtype=np.int64)})
    hits = int(np.sum(legal(CONV, folded, w, LIMITS)))
    defaults = {knob.name: knob.default for knob in CONV.knobs}
    raw = np.prod([len(knob.values) for knob in CONV.knobs if knob.active is None or knob.active(defaults)], dtype=float)
    assert hits >= 50 and hits / n * raw >= 300_000


@pytest.mark.parametrize("w", [DEPTHWISE, DEPTHWISE_LAST], ids=str)
def test_depthwise_is_sampled_though_most_knobs_are_inactive(w: Workload) -> None:
    configs = some_configs(w, 300, 1)
    assert len({tuple(config.values()) for config in configs}) == 300
    assert {config["shared"] for config in configs} == {0} and {config["depthwise"] for config in configs} == {0, 1}


@pytest.mark.parametrize("w", KINDS, ids=str)
def test_derived_of_columns_is_derived_of_each_config(w: Workload) -> None:
    configs = some_configs(w, 30, 14)
    columns = CONV.derived(columns_of(tuple(configs), CONV.names), w)
    for i, config in enumerate(configs):
        for name, value in CONV.derived(config, w).items():
            assert np.broadcast_to(columns[name], (30,))[i] == pytest.approx(value) and value >= 0, name
    for constraint in CONV.constraints:
        together = np.broadcast_to(constraint.holds(columns_of(tuple(configs), CONV.names), w, LIMITS), (30,))
        assert [bool(constraint.holds(config, w, LIMITS)) for config in configs] == together.tolist()


def test_every_constraint_forbids_something_that_the_others_allow() -> None:
    """A constraint that never decides is dead, or written twice."""
    n = 100_000
    drawn = random_columns(n, np.random.default_rng(12))
    old = Limits(compute_capability=(7, 5))
    small = Limits(grid_x=50, grid_yz=4)
    grouped, large = conv(2, 24, 9, 9, 24, 3, 3, 1, 1, 1, 8, 1), conv(1, 4, 40, 40, 64, 17, 17, 1, 8, 1, 1, 0)
    odd = conv(2, 63, 9, 9, 63, 3, 3, 1, 1, 1, 1, 1)
    worlds = [(w, LIMITS) for w in (*KINDS, grouped, large, odd, conv(32, 3, 99, 99, 5, 3, 3, 2, 1, 1, 1, 0))]
    deciding: set[str] = set()
    for w, limits in [*worlds, (RESNET, old), (grouped, small), (RESNET, small)]:
        for shared in (0, 1):
            columns = canonical(CONV, {**drawn, "shared": np.full(n, shared), "channels_last": np.full(n, w["nhwc"])})
            columns = columns if w is not RESNET else canonical(CONV, {**drawn, "shared": np.full(n, shared)})
            held = np.array([np.broadcast_to(c.holds(columns, w, limits), (n,)) for c in CONV.constraints], dtype=bool)
            alone = held.sum(axis=0) == len(CONV.constraints) - 1
            deciding |= {c.reason for c, holds in zip(CONV.constraints, held, strict=True) if np.any(alone & ~holds)}
    assert {c.reason for c in CONV.constraints} - deciding == set()


@pytest.mark.parametrize("w", KINDS, ids=str)
def test_launches_fit_the_limits_and_cover_the_output(w: Workload) -> None:
    y = CONV.tensors(w)[2].shape
    pixels = int(np.prod(y)) // w["K"]
    for config in [CONV.naive, CONV.expert(w), *some_configs(w, 40, 13)]:
        launch, d = CONV.launch(config, w), CONV.derived(config, w)
        assert launch.block[0] == d["threads"] <= LIMITS.threads_per_block and launch.block[0] % 32 == 0
        assert launch.grid[0] <= LIMITS.grid_x and max(launch.grid[1:]) <= LIMITS.grid_yz and launch.grid[2] == config["split"]
        assert np.prod(launch.grid) == d["blocks"] and launch.dynamic_smem_bytes <= LIMITS.smem_block_bytes
        assert (launch.workspace_bytes > 0) == (config["split"] > 1) and d["work"] >= 1
        outputs = config["thread_k"] * config["thread_p"] * launch.block[0] * launch.grid[0] * launch.grid[1]
        assert outputs >= w["K"] * pixels


@pytest.mark.parametrize("w", KINDS, ids=str)
def test_every_edit_changes_the_source(w: Workload) -> None:
    for config in [CONV.naive, CONV.expert(w), *some_configs(w, 4, 6)]:
        source = render(CONV, config)
        for name, value, edited in edits(CONV, config, w, LIMITS):
            assert render(CONV, edited) != source, f"{name}={value} changes nothing"


@pytest.mark.parametrize("w", KINDS, ids=str)
def test_edge_shapes_are_legal_and_surround_the_tiles(w: Workload) -> None:
    for config in [CONV.naive, CONV.expert(w), *some_configs(w, 60, 16)]:
        shapes = CONV.edge_shapes(config)
        assert len(shapes) >= 6
        for shape in shapes:
            assert CONV.check_workload(shape) == shape and violations(CONV, config, shape, LIMITS) == [], shape
        if config["shared"] and config["width_y"] == 1:
            filters = {shape["K"] // shape["groups"] for shape in shapes}
            assert {config["block_k"] + extra for extra in (-1, 0, 1)} <= filters
            grids = {int(CONV.derived(config, shape)["tiles_p"]) for shape in shapes}
            assert {1, 2, 3} <= grids


def test_reference_agrees_with_the_definition() -> None:
    """Against seven loops over one small shape of each kind."""
    rng = np.random.default_rng(3)
    for w in (conv(2, 6, 5, 7, 4, 3, 2, 2, 1, 2, 2, 0), conv(2, 6, 5, 7, 4, 3, 2, 2, 1, 2, 2, 1), AWKWARD[2]):
        inputs = draw_inputs(CONV, w, rng)
        x, f = (inputs[name].astype(np.float64) for name in ("x", "w"))
        if w["nhwc"]:
            x, f = x.transpose(0, 3, 1, 2), f.transpose(0, 3, 1, 2)
        y = CONV.reference(inputs, w)
        y = y.transpose(0, 3, 1, 2) if w["nhwc"] else y
        channels, filters = w["C"] // w["groups"], w["K"] // w["groups"]
        for (n, k, i, j), value in np.ndenumerate(y):
            total = 0.0
            for c, r, s in np.ndindex(channels, w["R"], w["S"]):
                row, column = (at * w["stride"] - w["pad"] + tap * w["dilation"] for at, tap in ((i, r), (j, s)))
                if 0 <= row < w["H"] and 0 <= column < w["W"]:
                    total += x[n, k // filters * channels + c, row, column] * f[k, c, r, s]
            assert value == pytest.approx(total, rel=1e-12, abs=1e-13)


def test_reference_kernel_agrees_with_numpy() -> None:
    """reference.cu itself, on the CPU: the answer and its magnitude, with a last block that is not full."""
    rng = np.random.default_rng(18)
    binary = compile_program(program([CONV.reference_path.read_text()], "reference", 4, 12, workspace=False))
    for w in (*AWKWARD, conv(2, 6, 5, 7, 4, 3, 2, 2, 1, 2, 2, 0), conv(2, 6, 5, 7, 4, 3, 2, 2, 1, 2, 2, 1)):
        x, f, y = CONV.tensors(w)
        inputs = draw_inputs(CONV, w, rng)
        tensors = (x, f, replace(y, dtype="f64"), replace(y, name="magnitude", dtype="f64"))
        blocks = -(-int(np.prod(y.shape)) // 64)
        launch = replace(CONV.launch(CONV.naive, w), grid=(blocks, 1, 1), block=(64, 1, 1), workspace_bytes=0)
        (result,) = binary.run([Job(0, launch, tensors, CONV.scalars(w), inputs, label="reference")])
        assert not isinstance(result, KernelFault), result
        np.testing.assert_allclose(result["y"], CONV.reference(inputs, w), rtol=1e-13, atol=1e-14)
        scale = CONV.reference({name: np.abs(values) for name, values in inputs.items()}, w)
        np.testing.assert_allclose(result["magnitude"], scale, rtol=1e-13)


def rounded(inputs: dict[str, np.ndarray], dtype: type[np.floating], skip: int | None = None) -> np.ndarray:
    """A 1x1 convolution of one NHWC image, added up channel by channel in a precision, one channel left out if asked."""
    x, f = inputs["x"][0, 0], inputs["w"][:, 0, 0]
    total = np.zeros((x.shape[0], f.shape[0]), dtype=dtype)
    for c in range(x.shape[1]):
        if c != skip:
            total += np.outer(x[:, c], f[:, c]).astype(dtype)
    return total[None, None].astype(np.float64)


def test_error_bound_passes_rounding_and_refuses_mistakes() -> None:
    w = conv(1, 2304, 1, 64, 32, 1, 1, 1, 0, 1, 1, 1)
    inputs = draw_inputs(CONV, w, np.random.default_rng(17))
    reference = CONV.reference(inputs, w)
    allowed = CONV.error_bound(w) * CONV.reference({name: np.abs(values) for name, values in inputs.items()}, w)

    def worst(y: np.ndarray) -> float:
        return float(np.max(np.abs(y - reference) / allowed))

    assert 0 < worst(rounded(inputs, np.float32)) < 0.5
    assert worst(rounded(inputs, np.float32, skip=7)) > 1 and worst(rounded(inputs, np.float16)) > 1
    assert worst(reference * 1.001) > 1 and worst(np.roll(reference, 1, axis=2)) > 1
