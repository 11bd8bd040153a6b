"""Features by name: fixed in number, fast for thousands of configs, and printed for a person."""

import time

import numpy as np
import pytest

from cost_model.features import GROUPS, explain, matrix, names
from datasets import split
from datasets.device import H200
from pipeline.features import answer, main
from templates.errors import InputError
from templates.knob import Config, columns_of
from templates.space import sample
from templates.template import load_template

TEMPLATE = load_template("matmul")
WORKLOAD = TEMPLATE.workload(M=2048, N=1024, K=512)
CONFIGS: list[Config] = [*sample(TEMPLATE, WORKLOAD, H200.limits, 4096, np.random.default_rng(0))]
COLUMNS = columns_of(CONFIGS, TEMPLATE.names)


def column(name: str, values: np.ndarray) -> np.ndarray:
    found: np.ndarray = values[:, names(TEMPLATE).index(name)]
    return found


def test_every_workload_has_the_same_finite_features() -> None:
    for workload in (w for items in split.workloads("matmul").values() for w in items):
        values = matrix(TEMPLATE, workload, COLUMNS, H200)
        assert values.shape == (len(CONFIGS), len(names(TEMPLATE))) and values.dtype == np.float32
        assert np.isfinite(values).all()


def test_names_are_distinct_and_belong_to_a_described_group() -> None:
    assert len(set(names(TEMPLATE))) == len(names(TEMPLATE))
    assert {name.split("_")[0] for name in explain(TEMPLATE, WORKLOAD, TEMPLATE.naive, H200)} == set(GROUPS)


def test_configs_and_columns_give_the_same_rows() -> None:
    assert np.array_equal(matrix(TEMPLATE, WORKLOAD, CONFIGS[:20], H200), matrix(TEMPLATE, WORKLOAD, COLUMNS, H200)[:20])


def test_thousands_of_configs_take_milliseconds() -> None:
    matrix(TEMPLATE, WORKLOAD, COLUMNS, H200)
    times = []
    for _ in range(5):
        start = time.process_time()
        matrix(TEMPLATE, WORKLOAD, COLUMNS, H200)
        times.append(time.process_time() - start)
    assert min(times) < 0.03


def test_shape_and_roofline_are_what_arithmetic_says() -> None:
    found = explain(TEMPLATE, WORKLOAD, TEMPLATE.naive, H200)
    flops, size = 2 * 2048 * 1024 * 512, 4 * (2048 * 512 + 512 * 1024 + 2048 * 1024)
    assert found["shape_log_M"] == 11 and found["shape_align_K"] == 7
    assert found["roofline_log_intensity"] == pytest.approx(np.log2(flops / size), rel=1e-5)
    peak = 2 * 132 * 128 * 1980e6
    assert found["roofline_log_floor_us"] == pytest.approx(np.log2(max(flops / peak, size / 4.8e12) * 1e6), rel=1e-4)


def test_a_tile_that_overhangs_is_seen() -> None:
    odd = TEMPLATE.workload(M=2049, N=1024, K=512)
    use = column("launch_tile_use_M", matrix(TEMPLATE, odd, COLUMNS, H200))
    block_m = COLUMNS["block_m"]
    assert use[block_m == 256] == pytest.approx(2049 / (9 * 256)) and use[block_m == 16] == pytest.approx(2049 / (129 * 16))


def test_occupancy_never_exceeds_what_each_resource_allows() -> None:
    values = matrix(TEMPLATE, WORKLOAD, COLUMNS, H200)
    resident = 2 ** column("launch_resident", values) - 1
    threads = TEMPLATE.derived(COLUMNS, WORKLOAD)["threads"]
    smem = TEMPLATE.derived(COLUMNS, WORKLOAD)["smem_bytes"]
    assert (np.round(resident) * threads <= 2048).all() and (resident >= 0.99).all()
    assert (np.round(resident) * (smem + 1024) <= 228 * 1024).all()


def test_answer_prints_every_group_and_feature_with_its_value() -> None:
    text = answer(["op=matmul", "workload=matmul/f32/M=512,N=512,K=512", "config=block_m=64"])
    for group, meaning in GROUPS.items():
        assert f"{group}_: {meaning}" in text
    assert "block_m=64" in text.splitlines()[1]
    printed = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line.startswith("  ")}
    assert printed["shape_log_M"] == 9 and printed["knob_block_m"] == 6 and printed["ast_w_fma"] > 0


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("op=matmull", "operator 'matmull' is unknown"),
        ("workload=matmul/f32/M=0,N=512,K=512", "M=0 is not a size"),
        ("workload=512", "write it as op/dtype"),
        ("config=block_q=3", "knob 'block_q' is unknown"),
        ("config=block_m=65", "block_m=65 is not one of"),
        ("gpu=nothing", "known: nvidia-h200"),
        ("wrokload=x", "write op="),
    ],
)
def test_bad_arguments_give_one_line_and_exit_2(argument: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=says):
        answer([argument])
    assert main([argument]) == 2
    assert capsys.readouterr().err.count("\n") == 1
