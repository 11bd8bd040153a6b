"""Workloads and configs as text: what reads back the same, and what is refused in one line."""

from dataclasses import replace

import pytest

from templates.errors import InputError
from templates.knob import config_text, parse_config
from templates.template import load_template
from templates.workload import Workload

TEXT = "matmul/f32/M=4096,N=1,K=33"


def test_text_reads_back_the_same() -> None:
    assert str(Workload.parse(TEXT)) == TEXT
    assert Workload.parse(TEXT)["K"] == 33


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("matmul/f32/M=0,N=1,K=1", "M=0 is not a size"),
        ("matmul/f32/M=-4,N=1,K=1", "M=-4 is not a size"),
        ("matmul/f32/M=2147483648,N=1,K=1", "is not a size"),
        (f"matmul/f32/M={'9' * 5000},N=1,K=1", "write it as"),
        ("matmul/f32/M=4,M=5,N=1,K=1", "given twice"),
        ("matmul/f32", "write it as"),
        ("matmul/f32/M=٤,N=1,K=1", "write it as"),
    ],
)
def test_bad_workload_is_one_line(text: str, what: str) -> None:
    with pytest.raises(InputError, match=what) as error:
        load_template("matmul").check_workload(Workload.parse(text))
    assert "\n" not in str(error.value)


def test_a_template_says_which_extents_make_sense() -> None:
    template = replace(load_template("matmul"), ranges={"K": (0, 9)}, flaw=lambda w: "M must be N" if w["M"] != w["N"] else "")
    assert template.workload(M=1, N=1, K=0)["K"] == 0
    with pytest.raises(InputError, match="K=10 is not a size; use 0 to 9"):
        template.workload(M=1, N=1, K=10)
    with pytest.raises(InputError, match="M must be N"):
        template.workload(M=1, N=2, K=3)


def test_config_text_reads_back_the_same() -> None:
    assert parse_config(config_text({"b": 2, "a": 1})) == {"a": 1, "b": 2}


@pytest.mark.parametrize(("text", "what"), [("a=1,a=2", "given twice"), ("a=x", "write knob"), ("a", "write knob")])
def test_bad_config_is_one_line(text: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        parse_config(text)
