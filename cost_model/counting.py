"""One walk over a source's syntax tree, as a GPU thread would take it, counting on the way."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import log2, prod

from cost_model.constants import integer, trips
from cost_model.counts import CALLS, COUNTS, LOADS, NOT_OPERATIONS, STORES, WHOLES
from cost_model.expressions import base, fused, kernels, names, operation, size, words
from cost_model.syntax import Node, parse

_PRAGMA = re.compile(r"\s*#pragma unroll(?:\s+\(?(\w+)\)?)?")
_BOUNDS = re.compile(r"__launch_bounds__\((\w+)(?:,\s*(\w+))?\)")


@dataclass(frozen=True)
class _Scope:
    """Where the walk is: how often this code runs and stands in the machine code, the loops around it with their trips, and
    what template arguments and pointer parameters (by their declaration's id) stand for."""

    weight: float = 1.0
    copies: float = 1.0
    loops: tuple[tuple[int, float], ...] = ()
    values: Mapping[str, int] = field(default_factory=dict)
    spaces: Mapping[int, str] = field(default_factory=dict)


class Counting:
    """Visits return the dependency depth of what they visit: operations in a chain before its value is there."""

    def __init__(self, source: str) -> None:
        self.roots = parse(source)
        self.constants = {node.name: node for node in self.roots if node.kind == "VAR_DECL"}
        self.source = source
        lines = source.splitlines()
        pragmas = {i + 2: match for i, line in enumerate(lines) if (match := _PRAGMA.match(line))}
        self.unroll = {line: match[1] for line, match in pragmas.items()}
        self.static: dict[str, float] = defaultdict(float)
        self.weighted: dict[str, float] = defaultdict(float)
        self.whole: dict[str, float] = defaultdict(float)
        self.depths: dict[int, float] = {}
        self.visitors: dict[str, Callable[[Node, _Scope, str], float]] = {
            "FOR_STMT": self._loop, "WHILE_STMT": self._endless, "DO_STMT": self._endless, "IF_STMT": self._branch,
            "BINARY_OPERATOR": self._binary, "COMPOUND_ASSIGNMENT_OPERATOR": self._compound, "UNARY_OPERATOR": self._unary,
            "ARRAY_SUBSCRIPT_EXPR": self._access, "CALL_EXPR": self._call, "VAR_DECL": self._variable,
            "CONDITIONAL_OPERATOR": self._select, "DECL_REF_EXPR": self._name,
        }  # fmt: skip

    def features(self) -> dict[str, float]:
        """Every count by name."""
        self.whole["nodes"] = sum(map(size, self.roots))
        for kernel in kernels(self.roots):
            pointers = {id(node): "global" for node in kernel.children if node.kind == "PARM_DECL" and node.form == "pointer"}
            self.visit(kernel.children[-1], _Scope(spaces=pointers))
        if bounds := _BOUNDS.search(self.source):
            self.whole["block_threads"] = self._constant(bounds[1]) or 0
            self.whole["min_blocks"] = self._constant(bounds[2]) or 0
        static = {name: self.static[name] for name in COUNTS}
        weighted = {f"w_{name}": self.weighted[name] for name in COUNTS}
        return static | weighted | {name: self.whole[name] for name in WHOLES}

    def visit(self, node: Node, scope: _Scope, role: str = "load") -> float:
        """`role`: what is done with the value: load, store, both or address."""
        visitor = self.visitors.get(node.kind)
        if visitor is not None:
            return visitor(node, scope, role)
        kept = role if node.kind in ("MEMBER_REF_EXPR", "PAREN_EXPR", "UNEXPOSED_EXPR") else "load"
        return max((self.visit(child, scope, kept) for child in node.children), default=0.0)

    def _count(self, name: str, scope: _Scope, amount: float = 1.0) -> None:
        self.static[name] += amount
        self.weighted[name] += amount * scope.weight
        if name not in NOT_OPERATIONS:
            self.whole["code_size"] += scope.copies

    def _deepen(self, depth: float) -> float:
        self.whole["depth"] = max(self.whole["depth"], depth)
        return depth

    def _constant(self, text: str | None) -> int | None:
        """A number in the source's text: digits or the name of a constant."""
        if text is None or text.isdigit():
            return None if text is None else int(text)
        node = self.constants.get(text)
        return integer(node.children[-1], {}) if node is not None and node.children else None

    # Statements

    def _loop(self, node: Node, scope: _Scope, role: str) -> float:
        count = trips(node, scope.values)
        copies = self._copies(node, scope, count)
        variable = id(node.children[0].children[0]) if count is not None else id(node)
        inside = replace(
            scope,
            weight=scope.weight * (1 if count is None else count),
            copies=scope.copies * copies,
            loops=(*scope.loops, (variable, 1.0 if count is None else count)),
        )
        self.whole["loops"] += 1
        self.whole["loops_runtime"] += count is None
        self.whole["loop_nesting"] = max(self.whole["loop_nesting"], len(inside.loops))
        *header, body = node.children
        if count is None or copies < count:  # what a fully unrolled loop no longer does
            for part in header:
                self.visit(part, inside if part is not header[0] else scope)
        loops, operations = self.whole["loops"], self._operations()
        self.visit(body, inside)
        if self.whole["loops"] == loops:
            for name, extent in (("nodes", size(body)), ("operations", self._operations() - operations)):
                self.whole[f"loop_body_{name}"] = max(self.whole[f"loop_body_{name}"], extent)
        return 0.0

    def _copies(self, node: Node, scope: _Scope, count: int | None) -> float:
        """How often unrolling repeats a loop's body in the machine code."""
        if node.line not in self.unroll:
            return 1.0
        text = self.unroll[node.line]
        factor = self._constant(text)
        self.whole["unroll_pragmas"] += 1
        if factor is not None:
            self.whole["unroll_limit"] += log2(max(factor, 1))
        limit = factor if factor is not None else count
        return float(min(x for x in (limit, count, limit or 1) if x is not None))

    def _operations(self) -> float:
        return sum(self.static[name] for name in COUNTS if name not in NOT_OPERATIONS)

    def _endless(self, node: Node, scope: _Scope, role: str) -> float:
        self.whole["loops"] += 1
        self.whole["loops_runtime"] += 1
        inside = replace(scope, loops=(*scope.loops, (id(node), 1.0)))
        self.whole["loop_nesting"] = max(self.whole["loop_nesting"], len(inside.loops))
        for child in node.children:
            self.visit(child, inside)
        return 0.0

    def _branch(self, node: Node, scope: _Scope, role: str) -> float:
        condition, *ways = node.children
        value = integer(condition, scope.values)
        if value is None:
            self._count("branch", scope)
            self.visit(condition, scope)
        elif len(ways) == 2:
            ways = [ways[0 if value else 1]]
        elif not value and not scope.values:  # in an instance of a template only the way taken is left
            ways = []
        for way in ways:
            self.visit(way, scope)
        return 0.0

    def _variable(self, node: Node, scope: _Scope, role: str) -> float:
        if node.form in ("array", "record"):
            self.whole["shared_bytes" if node.shared else "local_bytes"] += node.size
        depth = max((self.visit(child, scope) for child in node.children), default=0.0)
        self.depths[id(node)] = depth
        return depth

    # Expressions

    def _name(self, node: Node, scope: _Scope, role: str) -> float:
        return self.depths.get(id(node.target), 0.0)

    def _binary(self, node: Node, scope: _Scope, role: str) -> float:
        left, right = node.children
        if node.operator == "=":
            return self._assign(left, right, scope)
        known = [integer(child, scope.values) for child in node.children]
        if None not in known:
            return 0.0
        if (parts := fused(node)) is not None:
            factors, addend = parts
            self._count("fma", scope)
            return self._deepen(1 + max(self.visit(part, scope) for part in (*factors.children, addend)))
        self._count(operation(node), scope)
        if node.form == "int" and node.operator in "*/%":
            self.whole["index_strides"] += sum(log2(1 + abs(c)) for c in known if c is not None)
        return self._deepen(1 + max(self.visit(child, scope) for child in node.children))

    def _assign(self, left: Node, right: Node, scope: _Scope) -> float:
        depth = self.visit(right, scope)
        self.visit(left, scope, "store")
        self._count("assign", scope)
        target = base(left)
        if target is not None:
            self.depths[id(target)] = max(depth, self.depths.get(id(target), 0.0)) if left.kind != "DECL_REF_EXPR" else depth
            if any(name is target for name in names(right)):
                self._carry(left, scope)
        return depth

    def _compound(self, node: Node, scope: _Scope, role: str) -> float:
        left, right = node.children
        if node.operator == "+=" and node.form == "float" and right.kind == "BINARY_OPERATOR" and right.operator == "*":
            self._count("fma", scope)
            depth = max(self.visit(part, scope) for part in right.children)
        else:
            self._count(operation(node), scope)
            depth = self.visit(right, scope)
        self.visit(left, scope, "both")
        target = base(left)
        before = self.depths.get(id(target), 0.0)
        self._carry(left, scope)
        self.depths[id(target)] = self._deepen(1 + max(depth, before))
        return self.depths[id(target)]

    def _carry(self, left: Node, scope: _Scope) -> None:
        """A value that the loops hand on: a chain as long as the trips of those whose variable does not choose the element."""
        used = {id(name) for name in names(left)}
        chain = prod(count for variable, count in scope.loops if variable not in used)
        self.whole["w_depth"] = max(self.whole["w_depth"], chain)

    def _unary(self, node: Node, scope: _Scope, role: str) -> float:
        (inner,) = node.children
        if node.operator == "*":
            return self._access(node, scope, role)
        if node.operator == "&":
            return self.visit(inner, scope, "address")
        if integer(node, scope.values) is not None:
            return 0.0
        step = node.operator in ("++", "--")
        self._count(operation(node), scope)
        return self.visit(inner, scope, "both" if step else "load") + 1

    def _select(self, node: Node, scope: _Scope, role: str) -> float:
        value = integer(node.children[0], scope.values)
        if value is not None:
            return self.visit(node.children[1 if value else 2], scope)
        self._count("select", scope)
        return self._deepen(1 + max(self.visit(child, scope) for child in node.children))

    def _access(self, node: Node, scope: _Scope, role: str) -> float:
        """A subscript or `*pointer`: an access unless it only forms an address."""
        depth = max(self.visit(child, scope, "address") for child in node.children)
        if role == "address" or node.form == "array":
            return depth
        space = self._space(node.children[0], scope) or "local"
        for action in ("load", "store") if role == "both" else (role,):
            self._count("local_access" if space == "local" else f"{action}_{space}_{words(node.size)}", scope)
        target = base(node)
        return self._deepen(depth + 1) if space != "local" else max(depth, self.depths.get(id(target), 0.0))

    def _space(self, node: Node, scope: _Scope) -> str | None:
        """The memory a pointer points into: global, shared or local; None where the tree does not say."""
        target = node.target
        if node.kind == "DECL_REF_EXPR" and target is not None:
            if id(target) in scope.spaces:
                return scope.spaces[id(target)]
            if target.kind == "VAR_DECL" and target.shared:
                return "shared"
            if target.kind == "VAR_DECL" and target.form == "pointer" and target.children:
                return self._space(target.children[-1], scope)
            return "local" if target.form in ("array", "record") else None
        return next((space for child in node.children if (space := self._space(child, scope))), None)

    def _call(self, node: Node, scope: _Scope, role: str) -> float:
        named = [child for child in node.children if child.kind == "DECL_REF_EXPR" and child.name == node.name]
        arguments = [child for child in node.children if child not in named[:1]]
        if node.name == "operator=" and len(arguments) == 2:
            return self._assign(arguments[0], arguments[1], scope)
        if node.name == "__builtin_assume":
            return 0.0  # no code: what it says is for the compiler
        depths = [self.visit(argument, scope) for argument in arguments]
        function = node.target
        if function is not None and function.kind == "FUNCTION_DECL" and function.children[-1:]:
            self._enter(function, arguments, depths, scope)
        else:
            self._count_call(node, arguments, scope)
        return self._deepen(max(depths, default=0.0) + 1)

    def _enter(self, function: Node, arguments: list[Node], depths: list[float], scope: _Scope) -> None:
        """Follow a call of a function in the source, its parameters bound to what is passed."""
        parameters = [child for child in function.children if child.kind == "PARM_DECL"]
        spaces = dict(scope.spaces)
        for parameter, argument, depth in zip(parameters, arguments, depths, strict=False):
            self.depths[id(parameter)] = depth
            if parameter.form == "pointer":
                spaces[id(parameter)] = self._space(argument, scope) or "local"
        self.visit(function.children[-1], replace(scope, values=function.values, spaces=spaces))

    def _count_call(self, node: Node, arguments: list[Node], scope: _Scope) -> None:
        """A function of CUDA's own, by its name."""
        name = node.name
        if name in LOADS:
            self._count(f"load_global_{words(node.size)}", scope)
            if name == "__ldg":
                self._count("load_read_only", scope)
        elif name in STORES:
            self._count(f"store_global_{words(node.size)}", scope)
        elif name == "__pipeline_memcpy_async":
            self._count("async_copy", scope)
            self._count("async_copy_bytes", scope, integer(arguments[2], scope.values) or 0)
        elif name.startswith("atomic"):
            self._count("atomic", scope)
        elif name.startswith("__shfl"):
            self._count("shuffle", scope)
        elif name in ("min", "max") and node.form == "float":
            self._count("add", scope)
        elif name in CALLS:
            self._count(CALLS[name], scope)
