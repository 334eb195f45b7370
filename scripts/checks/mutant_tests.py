# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Which tests execute which lines, for ``mutants.py``; also the plugin of pytest that finds out.

The source of a copy of the package is changed so that each run of statements notes that it is
reached, which costs much less than tracing does. As a plugin this file writes, per test, its
seconds and the runs of statements that it reached; or it has pytest run chosen tests in an order.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mutant_sites import is_script

CHOSEN = "TVM_DISTIR_CHOSEN_TESTS"
"""Environment variable: a JSON file with the names of the tests to run, in order."""

REACHED = "TVM_DISTIR_REACHED"
"""Environment variable: the JSON file to write what tests reach into."""

COLLECTION = ""
"""The name under which stands what is reached before the first test."""

Tests = dict[str, tuple[float, list[str]]]
"""Seconds of each test, and the runs of statements that it reaches."""

NOTES = f"""
import os

reached = set()
file = os.open(os.environ["{REACHED}"] + ".others", os.O_CREAT | os.O_APPEND | os.O_RDWR)
tested = os.environ.setdefault("{REACHED}_BY", str(os.getpid()))


def note(key):
    if key not in reached:
        reached.add(key)
        if str(os.getpid()) != tested:
            os.write(file, key.encode() + b"\\n")
"""
"""The module ``tvm_distir.reached`` of the changed copy; other processes write what they reach."""

IMPORT = "from __future__ import annotations\n"
COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)


@dataclass(frozen=True)
class Run:
    """Statements of a block that are executed one after the other.

    Parameters
    ----------
    first, last : int
        Lines.
    column : int
        Of the first statement.
    """

    first: int
    last: int
    column: int


def _runs(block: list[ast.stmt]) -> Iterator[Run]:
    """Yield the runs of a block: each compound statement, which may leave the block, ends one."""
    first = 0
    for number, statement in enumerate(block):
        if number == len(block) - 1 or isinstance(statement, COMPOUND):
            start = block[first]
            yield Run(_first_line(start), statement.end_lineno or 0, start.col_offset)
            first = number + 1


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", None)
    return decorators[0].lineno if decorators else statement.lineno


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of all functions in a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)) and is_script(child):
            continue
        if isinstance(child, ast.FunctionDef):
            body = child.body[ast.get_docstring(child, clean=False) is not None :]
            yield from _nested(ast.Module(body, []))
        else:
            yield from _blocks(child)


def _nested(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a node in a function."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield from _blocks(ast.Module([node], []))
        return
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block:
            yield block
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield from _nested(child)


def runs_of(source: str) -> list[Run]:
    """Return the runs of statements of all functions of a file that begin a line."""
    lines = source.splitlines()
    runs = {run for block in _blocks(ast.parse(source)) for run in _runs(block)}

    def begins_line(run: Run) -> bool:
        line = lines[run.first - 1]
        return not line[: run.column].strip() and not line.lstrip().startswith("elif ")

    return [run for run in runs if begins_line(run)]


def noting(path: str, source: str) -> str:
    """Return the source of a file in which each run of statements notes that it is reached."""
    lines, runs = source.splitlines(keepends=True), runs_of(source)
    if not runs:
        return source
    for first in sorted({run.first for run in runs}, reverse=True):
        line = lines[first - 1]
        indent = line[: len(line) - len(line.lstrip())]
        lines.insert(first - 1, f'{indent}_note("{path}:{first}")\n')
    text = "".join(lines)
    assert text.count(IMPORT) == 1, path
    return text.replace(IMPORT, f"{IMPORT}from tvm_distir.reached import note as _note\n")


def run_at(source: str, line: int) -> int:
    """Return the first line of the smallest run that contains a line; 0 outside of all."""
    around = [run for run in runs_of(source) if run.first <= line <= run.last]
    return min(around, key=lambda run: run.last - run.first).first if around else 0


def nearest(tests: Tests, key: str, budget_s: float) -> list[str]:
    """Return the tests that reach a run of statements, quickest first, each file in turn.

    After them come the other tests of their files, which may use what those have cached.

    Parameters
    ----------
    tests : dict
        Seconds and keys of each test.
    key : str
        The run.
    budget_s : float
        The most that the tests may take together.
    """
    always = key in tests.get(COLLECTION, (0.0, []))[1]
    direct = {name for name, (_, keys) in tests.items() if always or key in keys} - {COLLECTION}
    files = {_file(name) for name in direct}
    near = [name for name in tests if _file(name) in files]
    near.sort(key=lambda name: tests[name][0])
    counts: dict[tuple[str, bool], int] = {}
    turns = {}
    for name in near:
        group = (_file(name), name in direct)
        turns[name] = counts[group] = counts.get(group, 0) + 1
    near.sort(key=lambda name: (name not in direct, turns[name], tests[name][0]))
    chosen, total_s = [], 0.0
    for name in near:
        if total_s + tests[name][0] <= budget_s:
            chosen.append(name)
            total_s += tests[name][0]
    return chosen


def _file(name: str) -> str:
    return name.partition("::")[0]


class _Reached:
    """Writes what each test that passes reaches."""

    def __init__(self, file: Path) -> None:
        self.file, self.failed = file, set[str]()
        self.tests: Tests = {}
        module = importlib.import_module("tvm_distir.reached")
        self.reached: set[str] = module.reached
        self.others = os.fdopen(module.file, encoding="utf-8")

    def _keep(self, name: str, seconds: float) -> None:
        self.tests[name] = (seconds, sorted(self.reached.union(self.others.read().split())))
        self.reached.clear()

    def pytest_collection_finish(self) -> None:
        self._keep(COLLECTION, 0.0)

    def pytest_runtest_logstart(self) -> None:
        self.started_s = time.perf_counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._keep(nodeid, time.perf_counter() - self.started_s)

    def pytest_sessionfinish(self) -> None:
        tests = {name: note for name, note in self.tests.items() if name not in self.failed}
        self.file.write_text(json.dumps(tests), encoding="utf-8")


class _Chosen:
    """Runs the chosen tests alone, in their order."""

    def __init__(self, file: Path) -> None:
        names = json.loads(file.read_text(encoding="utf-8"))
        self.order = {name: number for number, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self.order]
        items.sort(key=lambda item: self.order[item.nodeid])


def pytest_configure(config: pytest.Config) -> None:
    """Register what the environment asks for."""
    if REACHED in os.environ:
        config.pluginmanager.register(_Reached(Path(os.environ[REACHED])))
    if CHOSEN in os.environ:
        config.pluginmanager.register(_Chosen(Path(os.environ[CHOSEN])))
