"""Small questions to the syntax tree."""

from cost_model.syntax import Node


def kernels(nodes: list[Node]) -> list[Node]:
    """Functions marked __global__ that have a body."""
    found = []
    for node in nodes:
        if node.kind == "LINKAGE_SPEC":
            found += kernels(node.children)
        elif node.kind == "FUNCTION_DECL" and any(child.kind == "CUDAGLOBAL_ATTR" for child in node.children):
            found += [node] if node.children[-1].kind == "COMPOUND_STMT" else []
    return found


def size(node: Node) -> int:
    """Nodes in a subtree."""
    return 1 + sum(map(size, node.children))


def words(size_bytes: int) -> int:
    """The width of an access in 4-byte words: 1, 2 or 4."""
    return 1 if size_bytes <= 4 else 2 if size_bytes <= 8 else 4


def operation(node: Node) -> str:
    """The count that an arithmetic operator belongs to; addresses are integers."""
    operator = node.operator.removesuffix("=") if node.kind == "COMPOUND_ASSIGNMENT_OPERATOR" else node.operator
    if operator in ("<", "<=", ">", ">=", "==", "!=", "&&", "||", "!"):
        return "compare"
    if node.form == "float":
        return {"*": "mul", "/": "special"}.get(operator, "add")
    return "int_div" if operator in ("/", "%") else "int_op"


def fused(node: Node) -> tuple[Node, Node] | None:
    """The product and the addend of a float `a * b + c`, which the compiler fuses."""
    if node.form != "float" or node.operator not in ("+", "-"):
        return None
    for product, addend in (node.children, node.children[::-1]):
        if product.kind == "BINARY_OPERATOR" and product.operator == "*":
            return product, addend
    return None


def names(node: Node) -> list[Node]:
    """Declarations named in an expression."""
    own = [node.target] if node.kind == "DECL_REF_EXPR" and node.target is not None else []
    return own + [name for child in node.children for name in names(child)]


def base(node: Node) -> Node | None:
    """The variable an assigned expression belongs to: `sum` of `sum[m][n]`."""
    return next(iter(names(node)), None)
