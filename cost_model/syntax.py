"""A CUDA source as a plain tree: the one importer of libclang.

No CUDA toolkit is needed: `stub.hpp` declares what kernels use. Only nodes of the source itself are kept; instances of
function templates hang at their calls, with the branches of `if constexpr` that they do not take already gone.
"""

import ctypes
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from clang import cindex
from clang.cindex import CursorKind, TypeKind

HERE = Path(__file__).parent
FLAGS = (
    "-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "-nostdinc", "--cuda-gpu-arch=sm_90",
    "--cuda-path=/nonexistent", "-std=c++17", "-include", str(HERE / "stub.hpp"), f"-I{HERE}",
)  # fmt: skip
EMPTY_HEADERS = (
    "cuda_runtime.h", "cuda_pipeline.h", "cuda_pipeline_primitives.h", "cuda_fp16.h", "cuda_bf16.h", "math.h", "cmath", "float.h",
    "cfloat", "stdint.h", "cstdint",
)  # fmt: skip
"""Headers a kernel may include; the stub stands for them."""

FLOATS = {TypeKind.FLOAT, TypeKind.DOUBLE, TypeKind.HALF}
TYPED = {
    CursorKind.BINARY_OPERATOR, CursorKind.COMPOUND_ASSIGNMENT_OPERATOR, CursorKind.UNARY_OPERATOR, CursorKind.CALL_EXPR,
    CursorKind.ARRAY_SUBSCRIPT_EXPR, CursorKind.VAR_DECL, CursorKind.PARM_DECL,
}  # fmt: skip
NAMED = {
    CursorKind.VAR_DECL, CursorKind.PARM_DECL, CursorKind.FUNCTION_DECL, CursorKind.CALL_EXPR, CursorKind.DECL_REF_EXPR,
    CursorKind.MEMBER_REF_EXPR,
}  # fmt: skip
PLACED = {
    CursorKind.INTEGER_LITERAL, CursorKind.UNARY_OPERATOR, CursorKind.FOR_STMT, CursorKind.IF_STMT, CursorKind.FUNCTION_DECL,
}  # fmt: skip
DECLARED = {CursorKind.VAR_DECL, CursorKind.PARM_DECL, CursorKind.FUNCTION_DECL}
WRAPPERS = {CursorKind.UNEXPOSED_EXPR, CursorKind.PAREN_EXPR, CursorKind.UNEXPOSED_STMT}
"""Implicit conversions, parentheses, attributed statements: with one child they stand for it."""


class SourceError(Exception):
    """The text is not a CUDA source that the parser understands; the message names the line."""


@dataclass(eq=False)
class Node:
    """One node. `kind` is libclang's name; `form` of the type: float, int, pointer, array, record or empty; `size` in bytes.

    `line` and `text` are kept where they are needed: literals, unary operators, loops, branches, functions. `target`: the
    declaration a name refers to, or the function a call calls. `values`: template arguments of a function.
    """

    kind: str
    name: str = ""
    line: int = 0
    form: str = ""
    size: int = 0
    operator: str = ""
    text: str = ""
    shared: bool = False
    constant: bool = False
    target: "Node | None" = None
    values: dict[str, int] = field(default_factory=dict)
    children: "list[Node]" = field(default_factory=list)


def parse(source: str) -> list[Node]:
    """The source's top-level declarations. SourceError where it has an error."""
    kernel = str(HERE / "kernel.cu")  # in memory only, as are the empty headers
    files = [(kernel, source), *((str(HERE / name), "") for name in EMPTY_HEADERS)]
    try:
        unit = _index().parse(kernel, args=FLAGS, unsaved_files=files)
    except cindex.TranslationUnitLoadError as error:
        raise SourceError("the source cannot be parsed at all") from error
    errors = [d for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error]
    if errors:
        raise SourceError(f"line {errors[0].location.line}: {errors[0].spelling}")
    builder = _Builder(source.encode(), unit)
    inside = cindex.conf.lib.clang_Location_isFromMainFile
    return [builder.node(cursor) for cursor in unit.cursor.get_children() if inside(cursor.location)]


@cache
def _index() -> Any:
    """libclang with the one function its Python binding leaves out: which operator a binary operator is."""
    index = cindex.Index.create()
    lib = cindex.conf.lib
    lib.clang_getCursorBinaryOperatorKind.argtypes = [cindex.Cursor]
    lib.clang_getCursorBinaryOperatorKind.restype = ctypes.c_int
    lib.clang_Location_isFromMainFile.argtypes = [cindex.SourceLocation]
    lib.clang_Location_isFromMainFile.restype = ctypes.c_int
    return index


OPERATORS = (
    "", ".*", "->*", "*", "/", "%", "+", "-", "<<", ">>", "<=>", "<", ">", "<=", ">=", "==", "!=", "&", "^", "|", "&&", "||",
    "=", "*=", "/=", "%=", "+=", "-=", "<<=", ">>=", "&=", "^=", "|=", ",",
)  # fmt: skip
"""CXBinaryOperatorKind (clang-c/Index.h) in order; 0 is none."""


class _Builder:
    """Copies cursors into nodes, each declaration once."""

    def __init__(self, text: bytes, unit: Any) -> None:
        self.text = text
        self.unit = unit  # keeps the cursors' memory alive
        self.declarations: dict[Any, Node] = {}
        # One C callback for the whole tree: cindex makes one per node, a third of the time of a walk.
        self.found: list[Any] = []
        self.collect = cindex.callbacks["cursor_visit"](self._collect)

    def _collect(self, child: Any, parent: Any, found: Any) -> int:
        child._tu = self.unit
        self.found.append(child)
        return 1  # go on with the next sibling

    def children(self, cursor: Any) -> list[Any]:
        """The child cursors of a cursor."""
        self.found = []
        cindex.conf.lib.clang_visitChildren(cursor, self.collect, self.found)
        return self.found

    def node(self, cursor: Any) -> Node:
        kind = cursor.kind
        children = self.children(cursor)
        if kind in WRAPPERS and len(children) == 1:
            return self.node(children[0])
        node = Node(kind.name, cursor.spelling if kind in NAMED else "")
        if kind in DECLARED:
            self.declarations[_key(cursor)] = node
        if kind in TYPED:
            self._add_type(node, cursor.type)
        if kind in PLACED:
            extent = cursor.extent
            node.line, node.text = extent.start.line, self.text[extent.start.offset : extent.end.offset].decode()
        node.shared = kind == CursorKind.VAR_DECL and any(child.kind == CursorKind.CUDASHARED_ATTR for child in children)
        node.children = [self.node(child) for child in children]
        self._resolve(node, cursor)
        return node

    def _add_type(self, node: Node, kind: Any) -> None:
        canonical = kind.get_canonical()
        node.constant = canonical.is_const_qualified()
        node.size = max(canonical.get_size(), 0)
        node.form = _form(canonical)

    def _resolve(self, node: Node, cursor: Any) -> None:
        """Operators and what names stand for."""
        if node.kind in ("BINARY_OPERATOR", "COMPOUND_ASSIGNMENT_OPERATOR"):
            node.operator = OPERATORS[cindex.conf.lib.clang_getCursorBinaryOperatorKind(cursor)]
        elif node.kind == "UNARY_OPERATOR":
            node.operator = node.text[:2] if node.text[:2] in ("++", "--") else node.text[:1]
            if node.text.endswith(("++", "--")):
                node.operator = node.text[-2:]
        elif node.kind in ("DECL_REF_EXPR", "CALL_EXPR"):
            node.target = self._declaration(cursor.referenced)

    def _declaration(self, cursor: Any) -> Node | None:
        """The node of a declaration in the source; instances of templates are added when first met."""
        if cursor is None:
            return None
        key = _key(cursor)
        found = self.declarations.get(key)
        if found is None and cursor.kind == CursorKind.FUNCTION_DECL and cursor.is_definition():
            found = self.node(cursor)
            found.values = _template_values(cursor)
        return found


def _key(cursor: Any) -> Any:
    """The same for every cursor of one declaration."""
    return cursor.canonical.hash


def _form(kind: Any) -> str:
    if kind.kind in FLOATS:
        return "float"
    if kind.kind in (TypeKind.POINTER, TypeKind.LVALUEREFERENCE):
        return "pointer"
    if kind.kind in (TypeKind.CONSTANTARRAY, TypeKind.INCOMPLETEARRAY):
        return "array"
    if kind.kind == TypeKind.RECORD:
        return "record"
    return "int" if kind.kind != TypeKind.VOID else ""


def _template_values(cursor: Any) -> dict[str, int]:
    """Non-type template arguments of a function instance by parameter name."""
    count = cursor.get_num_template_arguments()
    if count <= 0:
        return {}
    template = cindex.conf.lib.clang_getSpecializedCursorTemplate(cursor)
    names = [
        child.spelling
        for child in template.get_children()
        if child.kind in (CursorKind.TEMPLATE_NON_TYPE_PARAMETER, CursorKind.TEMPLATE_TYPE_PARAMETER)
    ]
    kinds = [cursor.get_template_argument_kind(i) for i in range(count)]
    integral = cindex.TemplateArgumentKind.INTEGRAL
    return {names[i]: cursor.get_template_argument_value(i) for i in range(count) if kinds[i] == integral}
