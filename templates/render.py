"""Fill a template's slots: one complete CUDA source per config, with the chosen path alone in it.

The template is itself CUDA C++: a slot is a line `#define KNOB value  // what it is`, and `#if`, `#elif`, `#else`, `#endif`
choose among paths by knobs only. Rendering evaluates those conditions, turns each slot still in use into a `constexpr int`,
and drops constants that nothing uses any more. Where an operator has several dtypes, the slot DTYPE is their place in
`Template.dtypes`.
"""

import ast
import operator
import re
from collections.abc import Iterator

from templates.knob import Config
from templates.template import Template

_SLOT = re.compile(r"#define (?P<name>[A-Z]\w*) +-?\d+ *(?P<comment>//.*)?")
_CONSTANT = re.compile(r"\s*(?:constexpr|const) int (?P<name>\w+) = [^,;]*;(\s*//.*)?")
_NOT_CODE = r'(?m:^[ \t]*#.*$)|//.*|/\*[\s\S]*?\*/|"(?:[^"\\\n]|\\.)*"|'
_BINARY = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def render(template: Template, config: Config, dtype: str | None = None) -> str:
    """The CUDA source of one config for tensors of a dtype, the template's first unless given. AssertionError when the
    template breaks the rules above (a fault of ours).
    """
    if template.wrapper:
        return _with_macros(template, config)
    place = template.dtypes.index(dtype) if dtype else 0
    values = {name.upper(): value for name, value in config.items()} | {"DTYPE": place}
    chosen = list(_chosen_lines(template.source_path.read_text().splitlines(), values))
    lines = _drop_unused_constants(_fill_slots(chosen, values))
    return _squeeze_blank_lines("\n".join(lines)) + "\n"


def _with_macros(template: Template, config: Config) -> str:
    """A kernel of another style: itself made a device function, and the entry that calls it.

    Its knobs are macros, for `#if` and the like; in the code they are filled in, as the compiler would, so that the features of
    the source see numbers.
    """
    macros = "".join(f"#define {name} {value}\n" for name, value in config.items())
    hidden = ('"__global__"', '"__launch_bounds__"')
    push = "".join(f"#pragma push_macro({name})\n" for name in hidden)
    pop = "".join(f"#pragma pop_macro({name})\n" for name in hidden)
    as_function = "#undef __global__\n#undef __launch_bounds__\n#define __global__ __device__\n#define __launch_bounds__(...)\n"
    words = re.compile(_NOT_CODE + "|".join(rf"\b{name}\b" for name in config))

    def fill(match: re.Match[str]) -> str:
        return str(config[match[0]]) if match[0] in config else match[0]

    source = words.sub(fill, template.source_path.read_text().strip())
    return f"{macros}\n{push}{as_function}\n{source}\n\n{pop}\n{words.sub(fill, template.wrapper)}"


def render_reference(template: Template, dtype: str) -> str:
    """The CUDA source of the reference for tensors of a dtype: its slot DTYPE, where it has one, filled."""
    place = template.dtypes.index(dtype)
    return re.sub(r"#define DTYPE \d+", f"#define DTYPE {place}", template.reference_path.read_text(), count=1)


def holds(condition: str, values: dict[str, int]) -> bool:
    """Whether a preprocessor condition over knobs is true: names, integers, ! && || and comparisons."""
    python = re.sub(r"!(?!=)", " not ", condition).replace("&&", " and ").replace("||", " or ")
    return bool(_evaluate(ast.parse(python.strip(), mode="eval").body, values))


def _evaluate(node: ast.expr, values: dict[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, values)
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_evaluate(part, values) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(_evaluate(part, values) for part in parts)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _BINARY:
            return bool(_BINARY[type(op)](_evaluate(left, values), _evaluate(right, values)))
    raise AssertionError(f"template condition {ast.unparse(node)!r}: only knobs, integers, ! && || and comparisons")


def _chosen_lines(lines: list[str], values: dict[str, int]) -> Iterator[str]:
    """Lines outside every false branch, directives left out."""
    taken: list[tuple[bool, bool]] = []  # of each open #if: this branch is on, some branch was on
    for line in lines:
        directive, _, condition = line.strip().partition(" ")
        if directive == "#if":
            on = holds(condition, values)
            taken.append((on, on))
        elif directive == "#elif":
            done = taken[-1][1]
            on = not done and holds(condition, values)
            taken[-1] = (on, done or on)
        elif directive == "#else":
            taken[-1] = (not taken[-1][1], True)
        elif directive == "#endif":
            taken.pop()
        elif all(on for on, _ in taken):
            yield line
    if taken:
        raise AssertionError("template: an #if without its #endif")


def _fill_slots(lines: list[str], values: dict[str, int]) -> list[str]:
    """Slots as constants; the comment block above the first one belongs to the template and goes."""
    first = next(i for i, line in enumerate(lines) if _SLOT.match(line))
    above = first
    while lines[above - 1].startswith("//"):
        above -= 1
    filled = []
    for line in lines[:above] + lines[first:]:
        slot = _SLOT.match(line)
        if slot is not None:
            constant = f"constexpr int {slot['name']} = {values[slot['name']]};"
            line = f"{constant:<40}{slot['comment'] or ''}".rstrip()
        filled.append(line)
    return filled


def _drop_unused_constants(lines: list[str]) -> list[str]:
    """Remove one-line integer constants whose name occurs nowhere else, until none is left."""
    while True:
        words: dict[str, int] = {}
        for line in lines:
            for word in re.findall(r"\w+", line.partition("//")[0]):
                words[word] = words.get(word, 0) + 1
        kept = [line for line in lines if not ((m := _CONSTANT.fullmatch(line)) and words[m["name"]] == 1)]
        if len(kept) == len(lines):
            return kept
        lines = kept


def _squeeze_blank_lines(text: str) -> str:
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")
