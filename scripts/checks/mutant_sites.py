# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Small faults that can be planted in a source file, for ``mutants.py``.

A mutant changes one piece of a function's body, in the text, so that the rest of the file stays
equal. Left out is what no test should look at (texts of errors, ``raise``, ``repr``, warnings), and
what is equivalent by construction: operands of functions that do not look at their order, and
options such as ``strict=`` and ``encoding=`` that change no result of a correct program. Functions
in TVMScript are left out too, because they are no Python.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import pairwise

COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"),
}  # fmt: skip
EXTREMES = {"min": "max", "max": "min"}

IGNORED_FUNCTIONS = {"__repr__", "__str__", "__hash__", "_repr_html_", "__rich__"}
UNORDERED = {"gcd", "isinstance", "issubclass", "lcm", "max", "min"}
"""Functions whose operands give the same in any order, or have no other order."""

DROPPED_FOR_NOTHING = {"__init__", "collect", "debug", "freeze", "info", "print", "warn", "warning"}
OPTIONS = {
    "check", "daemon", "encoding", "end", "ensure_ascii", "exist_ok", "flush", "indent", "maxsize",
    "missing_ok", "parents", "sep", "sort_keys", "stacklevel", "strict", "timeout",
}  # fmt: skip
SCRIPT = re.compile(r"\b(I\.ir_module|R\.function|T\.prim_func|prim_func)\b")
SEQUENCES = (ast.List, ast.Tuple, ast.ListComp, ast.JoinedStr, ast.Dict)

EMPTY = {"list": "[]", "dict": "{}", "set": "set()", "frozenset": "frozenset()"}
NEIGHBOURS = {"bool": "not ({})", "int": "({}) + 1", "float": "2 * ({})"}


@dataclass(frozen=True)
class Mutant:
    """One change of a source file.

    Parameters
    ----------
    path : str
        The file, below the folder of the package.
    function : str
        Name of the function in the file, with those around it.
    kind : str
        What is changed.
    number : int
        Which of the mutants of this kind in the function it is.
    line : int
        Line of the file, from 1.
    start, end : int
        The bytes of the file that are replaced.
    text : str
        What replaces them.
    """

    path: str
    function: str
    kind: str
    number: int
    line: int
    start: int
    end: int
    text: str

    @property
    def name(self) -> str:
        """What identifies the mutant; it does not change with other functions of the file."""
        return f"{self.path}:{self.function}:{self.kind}:{self.number}"

    def apply(self, source: bytes) -> bytes:
        """Return a source with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def _last_name(node: ast.expr) -> str:
    """Return the name of a called function, without the object that has it."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def is_script(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Return whether a definition is TVMScript."""
    return any(SCRIPT.search(ast.unparse(decorator)) for decorator in node.decorator_list)


class _Sites(ast.NodeVisitor):
    """Collects the mutants of a file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.names: list[str] = []
        self.returns: list[ast.expr | None] = []
        self.counts: dict[tuple[str, str], int] = {}
        self.mutants: list[Mutant] = []

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self.source[start:end].decode()

    def _add(self, kind: str, line: int, span: tuple[int, int], text: str) -> None:
        if not self.returns or self.source[span[0] : span[1]].decode() == text:
            return
        function = ".".join(self.names)
        number = self.counts.get((function, kind), 0)
        self.counts[function, kind] = number + 1
        self.mutants.append(Mutant(self.path, function, kind, number, line, *span, text))

    def _operator(
        self, kind: str, nodes: tuple[ast.expr, ast.expr], signs: tuple[str, str]
    ) -> None:
        """Replace the operator between two nodes."""
        start, end = self._span(nodes[0])[1], self._span(nodes[1])[0]
        words = signs[0].split()
        sign = rb"\s+".join(re.escape(word.encode()) for word in words)
        found = re.search(sign, self.source[start:end])
        if found is not None:
            span = (start + found.start(), start + found.end())
            self._add(kind, nodes[0].end_lineno or 0, span, signs[1])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Visit the body, without its docstring."""
        if node.name in IGNORED_FUNCTIONS or is_script(node):
            return
        self.names.append(node.name)
        self.returns.append(node.returns)
        for statement in node.body[ast.get_docstring(node, clean=False) is not None :]:
            self.visit(statement)
        self.names.pop()
        self.returns.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Visit the methods."""
        if is_script(node):
            return
        self.names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self.names.pop()

    def _leave_out(self, node: ast.AST) -> None:
        """Leave out what errors say, what type checkers are told, and texts.

        Positions in texts are not exact before Python 3.12.
        """

    visit_Raise = visit_Assert = visit_JoinedStr = _leave_out

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Leave out the annotation."""
        if node.value is not None:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        """Negate the condition."""
        if self._text(node.test) != "TYPE_CHECKING":
            self._negate(node.test)
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Negate the condition."""
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Negate the conditions."""
        for condition in node.ifs:
            self._negate(condition)
        self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        self._add("negated", test.lineno, self._span(test), f"not ({self._text(test)})")

    def visit_Compare(self, node: ast.Compare) -> None:
        """Move a limit, or turn the comparison around."""
        for nodes, operator in zip(pairwise([node.left, *node.comparators]), node.ops, strict=True):
            self._operator("comparison", nodes, COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Take the other operator."""
        signs = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for nodes in pairwise(node.values):
            self._operator("logic", nodes, signs)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Take another operator, unless an operand is a text or a sequence."""
        sides = (node.left, node.right)
        texts = [side for side in sides if isinstance(getattr(side, "value", None), str)]
        if type(node.op) in ARITHMETIC and not texts:
            if not any(isinstance(side, SEQUENCES) for side in sides):
                self._operator("arithmetic", sides, ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Take another operator, or drop the statement."""
        if type(node.op) in ARITHMETIC:
            old, new = ARITHMETIC[type(node.op)]
            self._operator("arithmetic", (node.target, node.value), (f"{old}=", f"{new}="))
        self._add("dropped", node.lineno, self._span(node), "pass")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Take the next integer, or the other truth value."""
        if type(node.value) is bool:
            self._add("constant", node.lineno, self._span(node), str(not node.value))
        elif type(node.value) is int:
            self._add("constant", node.lineno, self._span(node), str(node.value + 1))

    def visit_Expr(self, node: ast.Expr) -> None:
        """Drop a call."""
        if isinstance(node.value, ast.Call):
            if _last_name(node.value.func) not in DROPPED_FOR_NOTHING:
                self._add("dropped", node.lineno, self._span(node), "pass")
            self.visit(node.value)
        elif not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Swap two arguments, or take the other extreme; leave out texts of errors."""
        name = _last_name(node.func)
        if name.endswith(("Error", "Warning")) or name in ("warn", "cast"):
            return
        if isinstance(node.func, ast.Name) and name in EXTREMES:
            self._add("extreme", node.lineno, self._span(node.func), EXTREMES[name])
        if name not in UNORDERED:
            for first, second in pairwise(node.args):
                self._swap(first, second)
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg not in OPTIONS:
                self.visit(keyword.value)

    def _swap(self, first: ast.expr, second: ast.expr) -> None:
        if isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
            return
        left, right = self._text(first), self._text(second)
        if left != right:
            (start, end), (begin, stop) = self._span(first), self._span(second)
            between = self.source[end:begin].decode()
            self._add("swapped", first.lineno, (start, stop), right + between + left)

    def visit_Break(self, node: ast.Break) -> None:
        """Go on instead."""
        self._add("jump", node.lineno, self._span(node), "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        """End the loop instead."""
        self._add("jump", node.lineno, self._span(node), "break")

    def visit_Return(self, node: ast.Return) -> None:
        """Return something empty, or a neighbouring value."""
        if node.value is None:
            return
        annotation = self.returns[-1] if self.returns else None
        if annotation is not None:
            text = _other_value(ast.unparse(annotation), self._text(node.value))
            self._add("returned", node.lineno, self._span(node.value), text)
        self.visit(node.value)


def _other_value(annotation: str, text: str) -> str:
    """Return another value of the type of a result; the same text where none is known."""
    base = annotation.partition("[")[0]
    if annotation in NEIGHBOURS:
        return NEIGHBOURS[annotation].format(text)
    if annotation.endswith("| None"):
        return "None"
    if base in EMPTY:
        return text if text in ("[]", "{}") else EMPTY[base]
    return "()" if base == "tuple" and annotation.endswith(", ...]") else text


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return all mutants of a file, in the order of its syntax tree."""
    sites = _Sites(path, source)
    sites.visit(ast.parse(source))
    return sites.mutants
