"""Rendered sources: one path, no leftovers, readable; and the template itself is CUDA C++ as it stands."""

import dataclasses
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pipeline.measure.nvcc import BuildFailure, compile_cubin, find_nvcc
from pipeline.measure.settings import BuildSettings
from templates.knob import config_text
from templates.render import holds, render
from templates.space import edits, sample
from templates.template import Limits, Template, load_template
from tests.cpu_run import TESTS, compiler
from tests.test_matmul_cpu import kernels

MATMUL = load_template("matmul")
LARGE = MATMUL.workload(M=4096, N=4096, K=4096)
CONFIGS = kernels(150, np.random.default_rng(5))
SOURCES = [render(MATMUL, config) for config in CONFIGS]
CONSTANT = re.compile(r"\b(?:constexpr|const) int (?P<names>[A-Za-z_]\w* = [^;]*);")


def without_comments(source: str) -> str:
    return re.sub(r"//.*", "", source)


def unused_names(source: str) -> list[str]:
    """Constants and helper functions that are declared and never used again."""
    code = without_comments(source)
    names = {name for match in CONSTANT.finditer(code) for name in re.findall(r"(\w+) = ", match["names"])}
    names |= set(re.findall(r"__forceinline__ void (\w+)\(", code))
    return sorted(name for name in names if len(re.findall(rf"\b{name}\b", code)) < 2)


def test_only_the_chosen_path_is_left() -> None:
    for source in SOURCES:
        assert not re.search(r"^\s*#\s*(if|el|endif|define)", source, re.MULTILINE)


def test_nothing_unused_is_left() -> None:
    for config, source in zip(CONFIGS, SOURCES, strict=True):
        assert unused_names(source) == [], config_text(config)
    assert unused_names("constexpr int A = 1;\nconst int b = A, c = b;\n__forceinline__ void f(int x)\n") == ["c", "f"]


def test_sources_read_well() -> None:
    for source in SOURCES:
        lines = source.splitlines()
        assert max(map(len, lines)) <= 130 and not any(line != line.rstrip() or "\t" in line for line in lines)
        assert "\n\n\n" not in source and source.endswith("}\n") and source == source.strip() + "\n"
        assert not re.search(r"\{\n\n|\n\n\s*\}", source), "a blank line beside a brace"


def test_rendering_depends_on_the_values_alone() -> None:
    for config, source in zip(CONFIGS[:20], SOURCES, strict=False):
        assert render(MATMUL, dict(reversed(config.items()))) == source


def test_two_configs_never_share_a_source() -> None:
    assert len(set(SOURCES)) == len({config_text(config) for config in CONFIGS})


def test_every_edit_changes_the_source() -> None:
    wanted = {(knob.name, value) for knob in MATMUL.knobs for value in knob.values}
    seen: set[tuple[str, int]] = set()
    for config in [*CONFIGS, *sample(MATMUL, LARGE, Limits(), 200, np.random.default_rng(6))]:
        if len(seen) > len(wanted) // 2 and not set(config.items()) - seen:
            continue
        source = render(MATMUL, config)
        for name, value, edited in edits(MATMUL, config, LARGE, Limits()):
            assert render(MATMUL, edited) != source, f"{name}={value} changes nothing in {config_text(config)}"
            seen |= {(name, value), (name, config[name])}
    assert seen == wanted


def template_with(source: str, folder: Path) -> Template:
    (folder / "kernel.cu").write_text(source)

    class Elsewhere(Template):
        source_path = folder / "kernel.cu"

    return Elsewhere(**{field.name: getattr(MATMUL, field.name) for field in dataclasses.fields(MATMUL)})


@pytest.mark.parametrize(
    "wrong", ["#if BLOCKM == 4\n#endif\n", "#if defined(X)\n#endif\n", "#if SHARED\n", "#if SHARED + STAGES\n#endif\n"]
)
def test_template_that_breaks_the_rules_is_refused(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="template"):
        render(template_with("#define SHARED 1  // slot\n" + wrong, tmp_path), MATMUL.naive)


def test_branches_follow_the_values(tmp_path: Path) -> None:
    source = "#define STAGES 2  // slot\n#if STAGES == 1\none\n#elif STAGES >= 3 && !SHARED\nmany\n#else\nSTAGES\n#endif\n"
    template = template_with(source, tmp_path)
    assert render(template, {**MATMUL.naive, "stages": 1}) == "one\n"
    assert render(template, {**MATMUL.naive, "stages": 4, "shared": 0}) == "many\n"
    assert render(template, {**MATMUL.naive, "stages": 4, "shared": 1}).splitlines()[-1] == "STAGES"


def test_conditions_mean_what_they_mean_in_c() -> None:
    values = {"A": 1, "B": 0, "C": 4}
    for condition, truth in {"A": 1, "B": 0, "!B": 1, "A && B": 0, "A || B": 1, "!A || C > 3": 1, "C != 4": 0,
                             "(A || B) && C <= 3": 0, "!(A && B)": 1}.items():  # fmt: skip
        assert holds(condition, values) == bool(truth), condition


def test_template_compiles_as_it_stands_with_nvcc() -> None:
    done = compile_cubin(find_nvcc(BuildSettings()), MATMUL.source_path.read_text(), "sm_90", ["-std=c++17"], 60.0)
    assert not isinstance(done, BuildFailure), done
    assert MATMUL.entry in done.resources


def test_template_compiles_as_it_stands_on_a_cpu() -> None:
    """Without the rewriting of cpu_run, which g++ needs only to put kernels into namespaces."""
    command = [compiler(), "-std=c++20", "-fsyntax-only", "-w", "-D__shared__=thread_local", f"-I{TESTS / 'cuda_stubs'}"]
    command += ["-include", str(TESTS / "cuda_on_cpu.hpp"), "-x", "c++", str(MATMUL.source_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
