"""What is special to matmul's spec and space. What holds for every operator: test_operators_spec.py."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, chi2

from datasets import split
from templates.errors import InputError
from templates.knob import Knob, config_text, configs_of, parse_config
from templates.space import canonical, canonical_config, complete, distance, edits, legal, sample, violations
from templates.template import Constraint, Limits, load_template, operators
from templates.workload import Workload
from tests.cpu_run import draw_inputs
from tests.operator_cases import answers

MATMUL = load_template("matmul")
LIMITS = Limits()


def workload(m: int, n: int, k: int) -> Workload:
    return MATMUL.workload(M=m, N=n, K=k)


LARGE = workload(4096, 4096, 4096)
LISTED = [w for listed in split.workloads("matmul").values() for w in listed]
AWKWARD = [workload(*size) for size in ((1, 1, 1), (1, 4096, 4096), (4096, 1, 4096), (1021, 1023, 1019), (5, 7, 100_003))]


def random_columns(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {knob.name: rng.choice(np.array(knob.values), size=n) for knob in MATMUL.knobs}


def test_naive_and_expert_are_legal_everywhere() -> None:
    rng = np.random.default_rng(0)
    shapes = [*LISTED, *AWKWARD, *(split.perturbed(w, rng) for w in LISTED)]
    shapes += [workload(*(int(size) for size in rng.integers(1, 5000, 3))) for _ in range(100)]
    for w in shapes:
        assert violations(MATMUL, MATMUL.naive, w, LIMITS) == [], w
        assert violations(MATMUL, MATMUL.expert(w), w, LIMITS) == [], w


@pytest.mark.parametrize("w", [LARGE, *AWKWARD[1:], workload(16, 4096, 4096)], ids=str)
def test_samples_are_distinct_canonical_and_legal(w: Workload) -> None:
    configs = sample(MATMUL, w, LIMITS, 100, np.random.default_rng(1))
    assert len({config_text(config) for config in configs}) == len(configs) == 100
    for config in configs:
        assert canonical_config(MATMUL, config) == config and violations(MATMUL, config, w, LIMITS) == []
        assert all(config[knob.name] in knob.values for knob in MATMUL.knobs)


def test_smallest_workload_has_configs_to_try() -> None:
    configs = sample(MATMUL, AWKWARD[0], LIMITS, 8, np.random.default_rng(2))
    assert len({config_text(config) for config in configs}) == 8
    assert all(violations(MATMUL, config, AWKWARD[0], LIMITS) == [] for config in configs)


TOY = replace(
    MATMUL,
    knobs=(
        Knob("tile", "layout", (1, 2, 4, 8), 2, ""),
        Knob("copies", "memory", (0, 1), 0, ""),
        Knob("stages", "schedule", (1, 2, 3), 2, "", lambda c: c["copies"] == 1),
    ),
    constraints=(Constraint("too much", lambda c, *_: c["tile"] * c["stages"] <= 16),),
)


def unevenness(texts: list[str], of: set[str]) -> float:
    """Chi-square statistic over its 1 - 1e-4 quantile: above 1 is uneven. Draws without return make it smaller, if anything."""
    counts = np.array([texts.count(text) for text in of])
    expected = len(texts) / len(of)
    assert counts.sum() == len(texts)
    return float(np.sum((counts - expected) ** 2 / expected) / chi2.ppf(1 - 1e-4, len(of) - 1))


def test_each_legal_config_is_as_likely_as_any_other() -> None:
    """Though each tile has three raw draws without copies that are one config. Keeping all three is the planted bug."""
    rng = np.random.default_rng(5)
    everything = {config_text(config) for config in sample(TOY, LARGE, LIMITS, 100, rng)}
    assert len(everything) == 4 + 11
    drawn = [config_text(config) for _ in range(150) for config in sample(TOY, LARGE, LIMITS, 3, rng)]
    assert unevenness(drawn, everything) < 1
    raw = canonical(TOY, {knob.name: rng.choice(np.array(knob.values), size=450) for knob in TOY.knobs})
    keep = legal(TOY, raw, LARGE, LIMITS)
    folded = [config_text(config) for config, ok in zip(configs_of(raw), keep, strict=True) if ok]
    assert unevenness(folded, everything) > 1


def test_space_holds_hundreds_of_thousands_of_configs() -> None:
    """Clopper-Pearson lower bound, one-sided, 99.9 %; `legal` counts each canonical config once."""
    n = 400_000
    hits = int(np.sum(legal(MATMUL, random_columns(n, np.random.default_rng(8)), LARGE, LIMITS)))
    lower = beta.ppf(0.001, hits, n - hits + 1)
    assert lower * np.prod([len(knob.values) for knob in MATMUL.knobs], dtype=float) >= 300_000


def test_every_constraint_forbids_something_that_the_others_allow() -> None:
    """A constraint that never decides is dead, or written twice."""
    n = 150_000
    columns = canonical(MATMUL, random_columns(n, np.random.default_rng(12)))
    old = Limits(compute_capability=(7, 5), smem_block_bytes=64 * 1024)
    worlds = [(LARGE, LIMITS), (workload(33, 4093, 4093), LIMITS), (workload(2**20, 2**20, 64), LIMITS), (LARGE, old)]
    worlds += [(workload(64, 64, 2**23), LIMITS)]
    deciding: set[str] = set()
    for w, limits in worlds:
        held = np.array([np.broadcast_to(c.holds(columns, w, limits), (n,)) for c in MATMUL.constraints], dtype=bool)
        alone = held.sum(axis=0) == len(MATMUL.constraints) - 1
        deciding |= {c.reason for c, holds in zip(MATMUL.constraints, held, strict=True) if np.any(alone & ~holds)}
    assert {c.reason for c in MATMUL.constraints} == deciding


@pytest.mark.parametrize("w", [LARGE, *AWKWARD[1:]], ids=str)
def test_launches_fit_the_limits_and_cover_the_matrix(w: Workload) -> None:
    for config in [MATMUL.naive, MATMUL.expert(w), *sample(MATMUL, w, LIMITS, 60, np.random.default_rng(13))]:
        launch, derived = MATMUL.launch(config, w), MATMUL.derived(config, w)
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        assert threads == derived["threads"] <= LIMITS.threads_per_block and threads % 32 == 0
        assert derived["lanes_m"] * config["lanes_n"] == 32
        assert derived["warps_m"] * derived["warps_n"] * 32 == threads
        assert launch.grid[0] <= LIMITS.grid_x and max(launch.grid[1:]) <= LIMITS.grid_yz
        tiles = -(-w["M"] // config["block_m"]) * -(-w["N"] // config["block_n"])
        assert launch.grid == (tiles, 1, config["split_k"])
        assert launch.dynamic_smem_bytes == (derived["smem_bytes"] if config["dynamic_smem"] else 0)
        assert launch.dynamic_smem_bytes <= LIMITS.smem_block_bytes
        assert (launch.workspace_bytes > 0) == (config["split_k"] > 1)


def test_distance_is_a_metric_on_configs() -> None:
    a, b, c = sample(MATMUL, LARGE, LIMITS, 3, np.random.default_rng(15))
    to_others = distance(MATMUL, a, [a, b, c])
    assert to_others[0] == 0 and to_others[1] == distance(MATMUL, b, [a])[0] > 0
    assert to_others[2] <= to_others[1] + distance(MATMUL, b, [c])[0] + 1e-12
    nearest = [edited for _, _, edited in edits(MATMUL, a, LARGE, LIMITS)]
    assert distance(MATMUL, a, nearest).min() < to_others[1:].min()


def test_edge_shapes_surround_the_tiles_and_stay_aligned() -> None:
    for config in sample(MATMUL, LARGE, LIMITS, 30, np.random.default_rng(16)):
        shapes = MATMUL.edge_shapes(config)
        for dim, block, width in (("M", config["block_m"], 1), ("N", config["block_n"], config["width_b"])):
            sizes = {w[dim] for w in shapes}
            wanted = (1, block - 1, block, block + 1, 2 * block + 1)
            assert sizes == {-(-size // width) * width for size in wanted}
        assert all(w["K"] % config["width_a"] == 0 for w in shapes) and len({w["K"] for w in shapes}) >= 3


def test_wrong_knobs_are_one_clear_line() -> None:
    for partial, said in (({"blockm": 64}, "blockm.*unknown.*block_m"), ({"block_m": 65}, "block_m=65 is not one of 8, 16")):
        with pytest.raises(InputError, match=said) as error:
            complete(MATMUL, partial)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="write knob=integer"):
        parse_config("block_m=x")


def test_wrong_workloads_are_one_clear_line() -> None:
    assert "matmul" in operators()
    for call in (
        lambda: load_template("matmull"),
        lambda: MATMUL.workload(M=0, N=1, K=1),
        lambda: MATMUL.workload(M=1, N=1),
        lambda: MATMUL.workload("f16", M=1, N=1, K=1),
        lambda: Workload.parse("matmul/f32/M=4;N=4"),
        lambda: Workload.parse("matmul/f32/M=4,N=-4,K=1"),
    ):
        with pytest.raises(InputError) as error:
            call()
        assert "\n" not in str(error.value)


@given(st.tuples(*(st.sampled_from(knob.values) for knob in MATMUL.knobs)), st.tuples(*[st.integers(1, 10**6)] * 3))
def test_texts_read_back(values: tuple[int, ...], extents: tuple[int, int, int]) -> None:
    config = dict(zip(MATMUL.names, values, strict=True))
    assert parse_config(config_text(config)) == config
    assert Workload.parse(str(workload(*extents))) == workload(*extents)
    fixed = canonical_config(MATMUL, config)
    assert canonical_config(MATMUL, fixed) == fixed and complete(MATMUL, config) == fixed


def test_error_bound_passes_rounding_and_refuses_a_dropped_product() -> None:
    w = workload(64, 64, 4096)
    rng = np.random.default_rng(17)
    inputs = {t.name: rng.uniform(t.low, t.high, t.shape).astype(np.float32) for t in MATMUL.tensors(w) if t.role == "in"}
    reference, bound = MATMUL.reference(inputs, w), MATMUL.error_bound(w)
    magnitude = np.abs(inputs["A"]).astype(np.float64) @ np.abs(inputs["B"])
    rounded = np.zeros((64, 64), dtype=np.float32)
    for k in range(4096):
        rounded += np.outer(inputs["A"][:, k], inputs["B"][k])
    assert 0 < np.max(np.abs(rounded - reference) / magnitude) < bound
    dropped = rounded - np.outer(inputs["A"][:, -1], inputs["B"][-1])
    assert np.max(np.abs(dropped - reference) / magnitude) > bound


def test_magnitude_is_the_sum_of_absolute_products() -> None:
    w = workload(13, 21, 37)
    inputs = draw_inputs(MATMUL, w, np.random.default_rng(18))
    (found,) = answers(MATMUL, [(w, inputs)])
    scale = np.abs(inputs["A"]).astype(np.float64) @ np.abs(inputs["B"]).astype(np.float64)
    np.testing.assert_allclose(found.magnitude, scale.ravel(), rtol=1e-13)
