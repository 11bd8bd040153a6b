"""What conv2d's kernels do with special values, and that mistakes planted in them are found."""

from pathlib import Path

import numpy as np
import pytest

from templates.render import render
from templates.space import complete, sample, violations
from templates.template import Limits, load_template
from templates.workload import Workload
from tests.cpu_run import Arrays, Job, KernelFault, compile_kernels, compile_program, draw_inputs, job_of, program

CONV = load_template("conv2d")
LIMITS = Limits()


def conv(n: int, c: int, size: int, k: int, taps: int, stride: int, pad: int, groups: int, nhwc: int) -> Workload:
    dims = {"N": n, "C": c, "H": size, "W": size + 1, "K": k, "R": taps, "S": taps}
    return CONV.workload(**dims, stride=stride, pad=pad, dilation=1, groups=groups, nhwc=nhwc)


SMALL = {"block_k": 16, "block_p": 32, "thread_k": 4, "thread_p": 4, "lanes_p": 8, "shared": 1, "pragma_unroll": 1, "unroll": 4}
TABLE = complete(CONV, {**SMALL, "walk": 0, "split": 2})
BY_TAP = complete(CONV, {**SMALL, "walk": 1, "channels_last": 1, "width_f": 2, "width_x": 2, "async_copy": 0})
BACKGROUND = complete(CONV, {**SMALL, "walk": 2, "async_copy": 1, "stages": 3})
PLAIN = complete(CONV, {**SMALL, "walk": 3})
WINDOW = complete(CONV, {"filter_size": 3, "filter_step": 1, "depthwise": 1, "channels_last": 1, "thread_k": 2, "thread_p": 4,
                         "width_x": 2, "width_y": 2})  # fmt: skip
CASES = [
    (TABLE, conv(2, 12, 5, 20, 3, 1, 1, 2, 0)),
    (BY_TAP, conv(2, 12, 5, 20, 3, 1, 1, 2, 1)),
    (BACKGROUND, conv(2, 12, 5, 20, 3, 2, 1, 2, 0)),
    (PLAIN, conv(2, 18, 5, 20, 1, 1, 0, 2, 0)),
    (WINDOW, conv(2, 6, 5, 6, 3, 1, 1, 6, 1)),
    (dict(CONV.naive), conv(2, 12, 5, 20, 3, 2, 1, 2, 1)),
]
IDS = ["table", "by_tap", "background", "plain", "window", "naive"]


def wrong(w: Workload, inputs: Arrays, result: Arrays | KernelFault) -> str:
    """What is wrong with a result; empty when it is right."""
    if isinstance(result, KernelFault):
        return str(result)
    scale = CONV.reference({name: np.abs(values) for name, values in inputs.items()}, w)
    error = np.abs(result["y"] - CONV.reference(inputs, w)) / (CONV.error_bound(w) * scale)
    return "" if np.max(error) <= 1 else f"error {np.max(error):.3g} of the bound"


@pytest.mark.parametrize(("config", "w"), CASES, ids=IDS)
def test_what_is_not_part_of_a_sum_never_reaches_it(config: dict[str, int], w: Workload) -> None:
    """One image, one group's channels and one filter are NaN: every other element is right."""
    rng = np.random.default_rng(1)
    assert violations(CONV, config, w, LIMITS) == []
    inputs = draw_inputs(CONV, w, rng)
    clean = {name: values.copy() for name, values in inputs.items()}
    inputs["x"][1] = np.nan
    channels = slice(w["C"] - w["C"] // w["groups"], None)
    inputs["x"][0][(..., channels) if w["nhwc"] else (channels,)] = np.inf
    inputs["w"][0] = np.nan
    (result,) = compile_kernels(CONV, [config]).run([job_of(CONV, 0, config, w, inputs)])
    assert not isinstance(result, KernelFault), result
    y = result["y"] if w["nhwc"] == 0 else result["y"].transpose(0, 3, 1, 2)
    right = CONV.reference(clean, w)
    right = right if w["nhwc"] == 0 else right.transpose(0, 3, 1, 2)
    kept = slice(1, w["K"] - w["K"] // w["groups"])
    np.testing.assert_allclose(y[0, kept], right[0, kept], atol=1e-4)
    assert np.isnan(y[1]).any() and np.isnan(y[0, 0]).all() and not np.isfinite(y[0, -1]).all()


MISTAKES = [
    ("padding is read", TABLE, CASES[0][1], "(outside[i % PIXELS] & tile_rows[c].y) == 0", "(tile_rows[c].y >= 0)"),
    ("the table's end is not marked", TABLE, CASES[0][1], "place < depth ? tap : 1u << 31", "tap"),
    ("a carry of the table is lost", TABLE, CASES[0][1], " + (middle >= middle_size);", ";"),
    ("a part of the sum is lost", TABLE, CASES[0][1], "z < SPLIT", "z < SPLIT - 1"),
    ("counters are not reset", TABLE, CASES[0][1], "*finished = 0;", ";"),
    ("the last channels are not cut off", BY_TAP, CASES[1][1], "f_c < rows_left", "f_c < rows_left + 2"),
    ("taps in the wrong order", BY_TAP, CASES[1][1], "(tap_r * W + tap_s)", "(tap_s * W + tap_r)"),
    ("the wait is too short", BACKGROUND, CASES[2][1], "__pipeline_wait_prior(STAGES - 2)", "__pipeline_wait_prior(STAGES - 1)"),
    ("no barrier", BACKGROUND, CASES[2][1], "__syncthreads();", ";"),
    ("all filters are stored", PLAIN, CASES[3][1], "if (filter < filters)", "if (filter < filters + 1)"),
    ("all pixels are stored", PLAIN, CASES[3][1], "if (pixel < pixels)", ""),
    ("rows of the window overlap", WINDOW, CASES[4][1], "row - p * FILTER_STEP", "row - p"),
    ("the window's rows are not cut off", WINDOW, CASES[4][1], "(unsigned)in_row < (unsigned)H && ", ""),
    ("rows below the image are stored", WINDOW, CASES[4][1], "if (out_row + p < out_h)", ""),
    ("groups are mixed up", dict(CONV.naive), CASES[5][1], "filter / filters * channels * x_channel", "0"),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("config", "w", "old", "new"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES])
def test_planted_mistake_is_found(config: dict[str, int], w: Workload, old: str, new: str) -> None:
    source = render(CONV, config)
    if "row - p *" in old:
        config = complete(CONV, {**config, "filter_step": 2})
        w, source = conv(2, 6, 9, 6, 3, 2, 1, 6, 1), render(CONV, config)
    assert old in source
    binary = compile_program(program([source, source.replace(old, new)], "conv2d", 3, 12))
    inputs = draw_inputs(CONV, w, np.random.default_rng(2))
    right, planted = binary.run([job_of(CONV, which, config, w, inputs) for which in (0, 1)])
    assert wrong(w, inputs, right) == "" and wrong(w, inputs, planted) != ""


@pytest.mark.parametrize("seed", range(2))
def test_real_layers_are_right(seed: int) -> None:
    """Random configs on layers with channels, images and taps as networks have them, only smaller."""
    rng = np.random.default_rng(seed)
    layers = [conv(1, 3, 19, 16, 7, 2, 3, 1, 0), conv(1, 24, 9, 24, 3, 1, 1, 1, 1), conv(2, 16, 8, 16, 3, 2, 1, 16, 1)]
    todo = [(config, w) for w in layers for config in sample(CONV, w, LIMITS, 4, rng)]
    inputs = [draw_inputs(CONV, w, rng) for _, w in todo]
    binary = compile_kernels(CONV, [config for config, _ in todo])
    jobs: list[Job] = [job_of(CONV, i, config, w, inputs[i]) for i, (config, w) in enumerate(todo)]
    for job, (_, w), result in zip(jobs, todo, binary.run(jobs), strict=True):
        assert wrong(w, dict(job.inputs), result) == "", job.label


def test_kernel_file_names_every_path() -> None:
    """The defaults stand for the general path: any shape of NCHW."""
    text = Path(CONV.source_path).read_text()
    defaults = {knob.name: knob.default for knob in CONV.knobs}
    assert "#define WALK 0 " in text and violations(CONV, defaults, conv(2, 61, 7, 70, 3, 2, 1, 1, 0), LIMITS) == []
