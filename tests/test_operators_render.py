"""Rendered sources of every operator and dtype: one path, no leftovers, readable; and the template itself is CUDA C++ as it
stands, and so is its reference.
"""

import re
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from templates.knob import config_text
from templates.render import render, render_reference
from templates.space import canonical_config
from templates.template import load_template
from tests.cpu_run import TESTS, compiler
from tests.operator_cases import CASES, IDS, configs, legal_values

each_case = pytest.mark.parametrize(("op", "dtype"), CASES, ids=IDS)
CONSTANT = re.compile(r"\b(?:constexpr|const) int (?P<names>[A-Za-z_]\w* = [^;]*);")
FUNCTION = re.compile(r"__forceinline__ [\w ]+?[*&]? ?(\w+)\(")
HEADERS = {"f32": set(), "f16": {"cuda_fp16.h"}, "bf16": {"cuda_bf16.h"}}
"""Which headers of 16-bit floats a source includes: parsing them costs nvcc a good part of a compile."""


@cache
def rendered(op: str, dtype: str) -> list[tuple[dict[str, int], str]]:
    """Configs that cover every knob's values, with their sources."""
    template = load_template(op)
    return [(c, render(template, c, dtype)) for c in configs(template, dtype, 80, np.random.default_rng(5))]


def without_comments(source: str) -> str:
    return re.sub(r"//.*", "", source)


def unused_names(source: str) -> list[str]:
    """Constants and helper functions that are declared and never used again."""
    code = without_comments(source)
    names = {name for match in CONSTANT.finditer(code) for name in re.findall(r"(\w+) = ", match["names"])}
    names |= set(FUNCTION.findall(code))
    return sorted(name for name in names if len(re.findall(rf"\b{name}\b", code)) < 2)


@each_case
def test_only_the_chosen_path_is_left(op: str, dtype: str) -> None:
    for _, source in rendered(op, dtype):
        assert not re.search(r"^\s*#\s*(if|el|endif|define)", source, re.MULTILINE)
        code = without_comments(source)
        assert "DTYPE" not in code and "asm" not in code


@each_case
def test_headers_of_16_bit_floats_are_included_where_they_are_needed(op: str, dtype: str) -> None:
    for config, source in rendered(op, dtype):
        included = set(re.findall(r"#include <(cuda_\w+16\.h)>", source))
        assert included == HEADERS[dtype], config_text(config)


@each_case
def test_nothing_unused_is_left(op: str, dtype: str) -> None:
    for config, source in rendered(op, dtype):
        assert unused_names(source) == [], config_text(config)


def test_unused_names_are_found() -> None:
    constants, functions = "constexpr int A = 1;\nconst int b = A, c = b;\n", "__forceinline__ void f(int x)\n"
    assert unused_names(constants + functions + "__forceinline__ const float *g(int x)\n") == ["c", "f", "g"]


@each_case
def test_sources_read_well(op: str, dtype: str) -> None:
    for config, source in rendered(op, dtype):
        lines, said = source.splitlines(), config_text(config)
        assert max(map(len, lines)) <= 130 and not any(line != line.rstrip() or "\t" in line for line in lines), said
        assert "\n\n\n" not in source and source.endswith("}\n") and source == source.strip() + "\n", said
        assert not re.search(r"\{\n\n|\n\n\s*\}", source), f"{said}: a blank line beside a brace"
        assert source.startswith("//"), f"{said}: no word on what the kernel computes"


@each_case
def test_rendering_depends_on_the_values_alone(op: str, dtype: str) -> None:
    for config, source in rendered(op, dtype)[:20]:
        assert render(load_template(op), dict(reversed(config.items())), dtype) == source


@each_case
def test_two_configs_never_share_a_source(op: str, dtype: str) -> None:
    sources = [source for _, source in rendered(op, dtype)]
    assert len(set(sources)) == len(sources)


@pytest.mark.parametrize("op", sorted({op for op, _ in CASES}))
def test_dtypes_have_sources_of_their_own(op: str) -> None:
    template = load_template(op)
    assert len({render(template, template.naive, dtype) for dtype in template.dtypes}) == len(template.dtypes)
    assert len({render_reference(template, dtype) for dtype in template.dtypes}) == len(template.dtypes)


@each_case
def test_every_edit_changes_the_source(op: str, dtype: str) -> None:
    """From and to every value of every knob that is legal on a listed workload, and some of all other edits."""
    template, rng = load_template(op), np.random.default_rng(6)
    seen: set[tuple[str, int]] = set()
    for config, source in rendered(op, dtype):
        for name, value in ((knob.name, value) for knob in template.knobs for value in knob.values):
            if {(name, value), (name, config[name])} <= seen and rng.random() > 0.05:
                continue
            edited = canonical_config(template, {**config, name: value})
            if edited[name] == value != config[name]:
                assert render(template, edited, dtype) != source, f"{name}={value} changes nothing in {config_text(config)}"
                seen |= {(name, value), (name, config[name])}
    assert seen >= legal_values(op, dtype), legal_values(op, dtype) - seen


@each_case
def test_template_and_reference_compile_as_they_stand_on_a_cpu(op: str, dtype: str, tmp_path: Path) -> None:
    """Without the rewriting of cpu_run, which g++ needs only to put kernels into namespaces."""
    template = load_template(op)
    kernel = re.sub(r"#define DTYPE \d+", f"#define DTYPE {template.dtypes.index(dtype)}", template.source_path.read_text())
    for name, text in (("kernel.cu", kernel), ("reference.cu", render_reference(template, dtype))):
        (tmp_path / name).write_text(text)
        command = [compiler(), "-std=c++20", "-fsyntax-only", "-w", "-D__shared__=thread_local", f"-I{TESTS / 'cuda_stubs'}"]
        command += ["-include", str(TESTS / "cuda_on_cpu.hpp"), "-x", "c++", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]


@each_case
def test_slots_are_the_knobs(op: str, dtype: str) -> None:
    """Every knob has its slot, with a comment, and no slot is without a knob; the defaults in the file are the knobs'."""
    template = load_template(op)
    slots = dict(re.findall(r"^#define ([A-Z]\w*) +(-?\d+) *//.+$", template.source_path.read_text(), re.MULTILINE))
    defaults = {knob.name.upper(): str(knob.default) for knob in template.knobs}
    assert slots == defaults | ({"DTYPE": "0"} if len(template.dtypes) > 1 else {})

