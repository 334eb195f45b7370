# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The text of an issue, from its reproducer: prose, source, what it prints, and the test."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import order
from judging import FAULTS, HERE, STATE, TESTS, Found

ISSUES = HERE / "issues"
PAGE = HERE.parents[1] / "docs" / "upstream.md"
MEASURED = re.compile(r"^measured: .*$", re.MULTILINE)


def path_of(name: str) -> Path:
    """Return the file of a fault's issue."""
    return ISSUES / f"{order.number_of(name)}_{name}.md"


def same(first: str, second: str) -> bool:
    """Whether two texts are equal but for what was measured."""
    return MEASURED.sub("", first) == MEASURED.sub("", second)


def table(states: Mapping[str, str]) -> str:
    """Return the Markdown table of faults: what is wrong, and the state of it."""
    rows = ["| number | reproducer | fault | state |", "| --- | --- | --- | --- |"]
    for name in order.in_order(list(states)):
        tree = ast.parse((FAULTS / f"{name}.py").read_text(encoding="utf-8"))
        title = (ast.get_docstring(tree) or "").partition("\n")[0].rpartition("] ")[2]
        state = states[name]
        kind = state.partition(":")[0] if state.startswith("error: ") else state
        rows.append(f"| {order.number_of(name)} | `{name}` | {title} | {kind} |")
    return "\n".join(rows) + "\n"


def in_page(page: str, states: Mapping[str, str]) -> str:
    """Return the text of the documentation's page with both tables, for these states."""
    for slot, text in {"order": order.table(), "faults": table(states)}.items():
        start, end = f"<!-- {slot}:start -->", f"<!-- {slot}:end -->"
        head, _, rest = page.partition(start)
        _, _, tail = rest.partition(end)
        page = f"{head}{start}\n{text}{end}{tail}"
    return page


def text_of(name: str, matches: Found) -> str:
    """Return the issue's text for what its reproducer found."""
    source = (FAULTS / f"{name}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    title, _, prose = (ast.get_docstring(tree) or "").partition("\n")
    actual, _, expected = prose.strip().partition("\n\nExpected: ")
    behind = _without_test(source, tree).split('"""', 2)[2].strip()
    code = re.sub(r"\n{3,}", "\n\n\n", behind)
    crashed = matches.state.startswith("crash: ")
    printed = (
        f"{matches.said}{matches.state}\n" if crashed else f"{matches.said}{STATE}{matches.state}\n"
    )
    how = "It prints this and crashes" if crashed else "It prints"
    parts = [
        f"# {title}",
        actual,
        f"## Expected\n\n{expected[:1].upper()}{expected[1:]}",
        f"## Environment\n\napache-tvm {version('apache-tvm')}, the wheel, on CPU.",
        f"## To reproduce\n\n```python\n{code}\n```",
        f"{how}:\n\n```text\n{printed}```",
    ]
    helpers = [path for word, path in _HELPERS.items() if word in code]
    contribution = order.contribution_of(name)
    if contribution is not None:
        helpers += [f"pieces/{piece.name}" for piece in contribution.pieces]
    if helpers:
        parts.append(f"Attached: {', '.join(f'`{path}`' for path in helpers)}.")
    file, test = named_test(name)
    parts.append(
        "## What should hold\n\n"
        f"Fails today, from `{file}`:\n\n```python\n{_function(file, test)}\n```"
    )
    if contribution is not None:
        change = order.change_as_markdown(contribution.explanation)
        parts.append(
            f"## Change\n\nIn `{contribution.target}`, as the attached piece states.\n\n{change}"
        )
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


_HELPERS = {
    "reporting": "faults/reporting.py",
    "virtual_workers": "tests/virtual_workers.py",
    "chains": "faults/chains.py",
}


def _assignment(tree: ast.Module) -> ast.Assign:
    """Return where a reproducer names its test."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TEST":
            return node
    raise ValueError("the reproducer names no TEST")


def _without_test(source: str, tree: ast.Module) -> str:
    """Return the source without the line that is for the runner."""
    node, lines = _assignment(tree), source.splitlines(keepends=True)
    return "".join(lines[: node.lineno - 1] + lines[node.end_lineno :])


def named_test(name: str) -> tuple[str, str]:
    """Return the file and the name of the test that a reproducer names."""
    tree = ast.parse((FAULTS / f"{name}.py").read_text(encoding="utf-8"))
    file, _, test = str(ast.literal_eval(_assignment(tree).value)).partition("::")
    return file, test


def _function(file: str, name: str) -> str:
    """Return the source of a test with its decorators."""
    source = (TESTS / file).read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            return "\n".join(source.splitlines()[first - 1 : node.end_lineno])
    raise ValueError(f"{file} has no {name}")
