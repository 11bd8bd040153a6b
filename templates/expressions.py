"""Arithmetic that stands in a file: `block_size_x * tile <= 1024`, over integers or over columns of thousands of configs.

Python's notation, of which names, numbers, + - * / // %, comparisons, and, or, not, min and max are understood; nothing is run.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from templates.errors import InputError

BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
CALLS: dict[str, Callable[[Any, Any], Any]] = {"min": np.minimum, "max": np.maximum}


class Expression:
    """A parsed expression; InputError where it is none, or has a name that is not among `names`."""

    def __init__(self, text: str | int | float, names: tuple[str, ...], where: str) -> None:
        self.text, self.where = str(text), where
        try:
            self.root = ast.parse(self.text.strip(), mode="eval").body
        except (SyntaxError, ValueError):
            raise InputError(f"{where}: {self.text!r} is no expression") from None
        for node in ast.walk(self.root):
            if isinstance(node, ast.Name) and node.id not in (*names, *CALLS):
                raise InputError(f"{where}: {self.text!r} names {node.id}; known: {', '.join(names)}")
        self(dict.fromkeys(names, 1))

    @property
    def names(self) -> set[str]:
        """The names it depends on."""
        return {node.id for node in ast.walk(self.root) if isinstance(node, ast.Name)} - set(CALLS)

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Its value for numbers or arrays by name."""
        with np.errstate(divide="ignore", invalid="ignore"):
            try:
                return self._value(self.root, values)
            except ZeroDivisionError:
                return 0

    def _value(self, node: ast.expr, values: Mapping[str, Any]) -> Any:
        def of(part: ast.expr) -> Any:
            return self._value(part, values)

        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name) if name in values:
                return values[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
                return BINARY[type(op)](of(left), of(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -of(operand)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return np.logical_not(of(operand))
            case ast.BoolOp(op=op, values=parts):
                join = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return join.reduce(np.broadcast_arrays(*map(of, parts)))
            case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(op) in COMPARE for op in ops):
                sides = [of(left), *map(of, rights)]
                pairs = zip(ops, sides, sides[1:], strict=False)
                return np.logical_and.reduce(np.broadcast_arrays(*(COMPARE[type(op)](a, b) for op, a, b in pairs)))
            case ast.Call(func=ast.Name(id=name), args=[one, other], keywords=[]) if name in CALLS:
                return CALLS[name](of(one), of(other))
        known = "+ - * / // %, comparisons, and, or, not, min, max"
        raise InputError(f"{self.where}: {ast.unparse(node)!r} is not understood; use {known}")
