"""Properties that every operator's spec has, and the space that it spans."""

from dataclasses import replace

import numpy as np
import pytest

from cost_model.features import matrix, names
from datasets import split
from datasets.device import H200
from templates.errors import InputError
from templates.knob import CATEGORIES, columns_of, config_text, configs_of, parse_config
from templates.space import canonical, canonical_config, complete, edits, legal, sample, violations
from templates.template import ELEMENT_BYTES, Template, load_template
from templates.workload import Workload
from tests.operator_cases import CASES, IDS, LIMITS, configs, edges, first_with_value, legal_values, listed

each_case = pytest.mark.parametrize(("op", "dtype"), CASES, ids=IDS)
each_operator = pytest.mark.parametrize("op", sorted({op for op, _ in CASES}))
DERIVED = {"threads", "smem_bytes", "registers", "blocks"}


def random_columns(template: Template, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {knob.name: rng.choice(np.array(knob.values), size=n) for knob in template.knobs}


def some(template: Template, dtype: str, n: int, rng: np.random.Generator) -> list[Workload]:
    """A few of the listed workloads."""
    every = listed(template, dtype)
    return [every[i] for i in rng.permutation(len(every))[:n]]


@each_operator
def test_knobs_have_a_reason_and_every_category_has_some(op: str) -> None:
    template = load_template(op)
    assert all(knob.reason for knob in template.knobs) and {knob.category for knob in template.knobs} == set(CATEGORIES)
    assert set(template.naive) == set(template.names) == {knob.name for knob in template.knobs}
    assert all(constraint.reason for constraint in template.constraints)
    assert canonical_config(template, template.naive) == template.naive
    assert set(template.fixed) | set(template.ranges) <= set(template.dims)


@each_case
def test_naive_and_expert_are_legal_everywhere(op: str, dtype: str) -> None:
    """On every listed workload, and on the perturbed ones that fine-tuning measures."""
    template, rng = load_template(op), np.random.default_rng(0)
    shapes = listed(template, dtype)
    for w in [*shapes, *(split.perturbed(w, rng) for w in shapes)]:
        for config in (template.naive, template.expert(w)):
            assert violations(template, config, w, LIMITS) == [], f"{w} {config_text(config)}"


@each_case
def test_samples_are_distinct_canonical_legal_and_many(op: str, dtype: str) -> None:
    """2000 of the largest listed workload, a hundred of others."""
    template, rng = load_template(op), np.random.default_rng(1)
    largest = max(listed(template, dtype), key=template.flops)
    for w, n in [(largest, 2000), *((w, 100) for w in some(template, dtype, 3, rng))]:
        found = sample(template, w, LIMITS, n, rng)
        assert len({config_text(config) for config in found}) == len(found) == n, w
        for config in found[:100]:
            assert canonical_config(template, config) == config and violations(template, config, w, LIMITS) == []
            assert all(config[knob.name] in knob.values for knob in template.knobs)


@each_operator
def test_sampling_follows_its_seed(op: str) -> None:
    template = load_template(op)
    w = listed(template, template.dtypes[0])[0]
    once, again, other = (sample(template, w, LIMITS, 20, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert once == again and once != other


@each_operator
def test_every_value_of_every_knob_is_legal_somewhere(op: str) -> None:
    """On a listed workload, or at least on an edge shape of a config that has it."""
    template, rng = load_template(op), np.random.default_rng(2)
    known = {pair for dtype in template.dtypes for pair in legal_values(op, dtype)}
    expert = template.expert(max(listed(template, template.dtypes[0]), key=template.flops))
    for name, value in {(knob.name, value) for knob in template.knobs for value in knob.values} - known:
        near = template.edge_shapes(complete(template, {name: value}, expert))
        assert first_with_value(template, near, name, value, rng), f"{name}={value} is legal nowhere"


@each_case
def test_canonical_form_is_reached_in_one_step(op: str, dtype: str) -> None:
    template = load_template(op)
    once = canonical(template, random_columns(template, 2000, np.random.default_rng(3)))
    again = canonical(template, once)
    assert all(np.array_equal(once[name], again[name]) for name in template.names)
    for config in configs_of(once)[:50]:
        assert canonical_config(template, config) == complete(template, config) == config
        assert parse_config(config_text(config)) == config


@each_case
def test_violations_agree_with_legal(op: str, dtype: str) -> None:
    template, rng = load_template(op), np.random.default_rng(4)
    raw = random_columns(template, 40, rng)
    for w in some(template, dtype, 2, rng):
        good = columns_of(sample(template, w, LIMITS, 20, rng), template.names)
        columns = {name: np.concatenate([raw[name], canonical(template, raw)[name], good[name]]) for name in template.names}
        keep = legal(template, columns, w, LIMITS)
        assert keep[-20:].all() and not keep.all()
        for config, ok in zip(configs_of(columns), keep, strict=True):
            assert (violations(template, config, w, LIMITS) == []) == ok, config_text(config)


@each_case
def test_edits_are_legal_and_touch_one_knob_and_its_dependents(op: str, dtype: str) -> None:
    template, rng = load_template(op), np.random.default_rng(5)
    (w,) = some(template, dtype, 1, rng)
    for config in sample(template, w, LIMITS, 8, rng):
        for name, value, edited in edits(template, config, w, LIMITS):
            assert edited[name] == value != config[name] and violations(template, edited, w, LIMITS) == []
            for other in set(template.names) - {name}:
                if edited[other] != config[other]:
                    knob = template.knob[other]
                    assert knob.active is not None and not knob.active(edited) and edited[other] == knob.default


@each_case
def test_no_legal_edit_is_missing(op: str, dtype: str) -> None:
    template, rng = load_template(op), np.random.default_rng(6)
    (w,) = some(template, dtype, 1, rng)
    for config in sample(template, w, LIMITS, 2, rng):
        found = {(name, value) for name, value, _ in edits(template, config, w, LIMITS)}
        for knob in template.knobs:
            for value in knob.values:
                edited = canonical_config(template, {**config, knob.name: value})
                possible = edited[knob.name] == value != config[knob.name] and not violations(template, edited, w, LIMITS)
                assert possible == ((knob.name, value) in found), (knob.name, value, config)


@each_case
def test_launches_fit_the_limits(op: str, dtype: str) -> None:
    template, rng = load_template(op), np.random.default_rng(7)
    for w in [*some(template, dtype, 4, rng), max(listed(template, dtype), key=template.flops)]:
        for config in [template.naive, template.expert(w), *sample(template, w, LIMITS, 40, rng)]:
            launch, derived = template.launch(config, w), template.derived(config, w)
            said = f"{w} {config_text(config)}"
            assert int(np.prod(launch.block)) == derived["threads"] <= LIMITS.threads_per_block, said
            assert derived["threads"] % 32 == 0, f"{said}: a last warp that is not full"
            assert int(np.prod(launch.grid)) == derived["blocks"] and min(launch.grid) >= 1, said
            assert launch.grid[0] <= LIMITS.grid_x and max(launch.grid[1:]) <= LIMITS.grid_yz, said
            assert 0 <= launch.dynamic_smem_bytes <= derived["smem_bytes"] <= LIMITS.smem_block_bytes, said
            assert launch.dynamic_smem_bytes > 0 or derived["smem_bytes"] <= LIMITS.smem_static_bytes, said
            assert launch.workspace_bytes >= 0
            assert 1 <= derived["registers"] <= LIMITS.registers_per_thread, said
            assert derived["registers"] * derived["threads"] <= LIMITS.registers_per_sm, said


@each_case
def test_derived_of_columns_is_derived_of_each_config(op: str, dtype: str) -> None:
    template, rng = load_template(op), np.random.default_rng(8)
    for w in some(template, dtype, 2, rng):
        found = sample(template, w, LIMITS, 40, rng)
        assert len(found) == 40
        columns = template.derived(columns_of(found, template.names), w)
        assert set(columns) >= DERIVED
        for name, column in columns.items():
            alone = [float(template.derived(config, w)[name]) for config in found]
            np.testing.assert_allclose(np.broadcast_to(column, (40,)), alone, err_msg=name)
            assert np.isfinite(alone).all() and min(alone) >= 0, name


@each_case
def test_features_of_any_legal_config_are_finite_and_the_same_ones(op: str, dtype: str) -> None:
    template, rng = load_template(op), np.random.default_rng(9)
    for w in some(template, dtype, 3, rng):
        found = matrix(template, w, sample(template, w, LIMITS, 200, rng), H200)
        assert found.shape == (200, len(names(template))) and np.isfinite(found).all()


@each_case
def test_edge_shapes_are_several_workloads_of_the_operator(op: str, dtype: str) -> None:
    template, rng = load_template(op), np.random.default_rng(10)
    for config in configs(template, dtype, 16, rng):
        found = edges(template, dtype, config)
        assert len(found) >= 3 and len(set(found)) == len(found), config_text(config)
        for w in found:
            assert template.check_workload(w) == w


@each_case
def test_tensors_and_scalars_fit_the_kernel(op: str, dtype: str) -> None:
    template = load_template(op)
    every = listed(template, dtype)
    for w in every:
        tensors, scalars = template.tensors(w), template.scalars(w)
        assert len(scalars) == len(template.scalars(every[0])) and all(-(2**31) <= value < 2**31 for value in scalars)
        assert [t.name for t in tensors] == [t.name for t in template.tensors(every[0])]
        assert {"in", "out"} == {t.role for t in tensors} and all(t.low < t.high and min(t.shape) >= 1 for t in tensors)
        moved = sum(ELEMENT_BYTES[t.dtype] * float(np.prod(t.shape, dtype=float)) for t in tensors)
        assert 0 < template.bytes(w) <= 1.001 * moved, f"{w}: more bytes than the tensors have"
        assert template.flops(w) > 0 and 0 < template.error_bound(w) < 0.05, w


@each_case
def test_texts_of_workloads_read_back(op: str, dtype: str) -> None:
    template = load_template(op)
    for w in listed(template, dtype):
        assert Workload.parse(str(w)) == w == template.check_workload(w)


@each_operator
def test_wrong_knobs_and_workloads_are_one_clear_line(op: str) -> None:
    template = load_template(op)
    w = listed(template, template.dtypes[0])[0]
    name, extents = template.names[0], dict(w.dims)
    wrong = {
        "unknown": lambda: complete(template, {f"{name}x": 1}),
        "is not one of": lambda: complete(template, {name: 12345}),
        "not supported": lambda: template.workload("f8", **extents),
        "needed are": lambda: template.workload(w.dtype, **dict(list(extents.items())[1:])),
        "is not a size": lambda: template.workload(w.dtype, **{**extents, template.dims[0]: 2**31}),
        "belongs to": lambda: template.check_workload(replace(w, op="another")),
    }
    for said, call in wrong.items():
        with pytest.raises(InputError, match=said) as error:
            call()
        assert "\n" not in str(error.value)
