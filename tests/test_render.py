"""The renderer: what it does with conditions, and what it refuses. What it makes of the operators: test_operators_render.py."""

import dataclasses
from pathlib import Path

import pytest

from templates.render import holds, render
from templates.template import Template, load_template

MATMUL = load_template("matmul")


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
