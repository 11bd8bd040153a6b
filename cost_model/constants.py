"""Integers that a source's text fixes: constants, template arguments, trip counts of loops."""

from collections.abc import Mapping

from cost_model.syntax import Node

CASTS = ("CSTYLE_CAST_EXPR", "CXX_STATIC_CAST_EXPR", "CXX_FUNCTIONAL_CAST_EXPR", "UNEXPOSED_EXPR", "PAREN_EXPR")


def integer(node: Node, values: Mapping[str, int]) -> int | None:
    """The value of an expression, or None where it is known at run time only. `values`: template arguments in force."""
    match node.kind:
        case "INTEGER_LITERAL":
            return int(node.text.rstrip("uUlL"), 0) if node.text[:1].isdigit() else values.get(node.text)
        case "DECL_REF_EXPR":
            if node.name in values:
                return values[node.name]
            declared = node.target
            if declared is None or declared.kind != "VAR_DECL" or not declared.constant or not declared.children:
                return None
            return integer(declared.children[-1], {})
        case "BINARY_OPERATOR":
            return _binary(node.operator, *(integer(child, values) for child in node.children))
        case "UNARY_OPERATOR":
            value = integer(node.children[0], values)
            return None if value is None else {"-": -value, "+": value, "!": int(not value), "~": ~value}.get(node.operator)
        case "CONDITIONAL_OPERATOR":
            chosen = integer(node.children[0], values)
            return None if chosen is None else integer(node.children[1 if chosen else 2], values)
        case "CALL_EXPR" if node.name in ("min", "max"):
            parts = [integer(child, values) for child in node.children[1:]]
            known = [part for part in parts if part is not None]
            return None if len(known) < len(parts) else (min if node.name == "min" else max)(known)
        case kind if kind in CASTS and node.children:
            return integer(node.children[-1], values)
    return None


def _binary(operator: str, left: int | None, right: int | None) -> int | None:
    """C's arithmetic on two ints; None where either is unknown or the division is by zero."""
    if left is None or right is None or (operator in ("/", "%") and right == 0):
        return None
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return int(left / right)
        case "%":
            return left - right * int(left / right)
        case "<<":
            return left << right
        case ">>":
            return left >> right
        case "&":
            return left & right
        case "|":
            return left | right
        case "<" | "<=" | ">" | ">=" | "==" | "!=" | "&&" | "||":
            return _compare(operator, left, right)
    return None


def _compare(operator: str, left: int, right: int) -> int:
    results = {
        "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right, "==": left == right,
        "!=": left != right, "&&": bool(left and right), "||": bool(left or right),
    }  # fmt: skip
    return int(results[operator])


def trips(loop: Node, values: Mapping[str, int]) -> int | None:
    """How often the body of `for (int i = a; i < b; i += c)` runs; None where a bound is known at run time only."""
    if len(loop.children) != 4 or loop.children[0].kind != "DECL_STMT" or loop.children[1].kind != "BINARY_OPERATOR":
        return None
    start_node, condition, advance, _ = loop.children
    variable = start_node.children[0]
    start = integer(variable.children[-1], values) if variable.children else None
    end = integer(condition.children[1], values)
    step = 1 if advance.operator == "++" else -1 if advance.operator == "--" else _step(advance, values)
    if start is None or end is None or not step:
        return None
    last = {"<": end - 1, "<=": end, ">": end + 1, ">=": end}.get(condition.operator)
    return None if last is None else max(0, (last - start) // step + 1)


def _step(advance: Node, values: Mapping[str, int]) -> int | None:
    size = integer(advance.children[1], values) if advance.kind == "COMPOUND_ASSIGNMENT_OPERATOR" else None
    return None if size is None else {"+=": size, "-=": -size}.get(advance.operator)
