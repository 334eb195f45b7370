# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The page on notebooks does what it says, and the notebooks of the examples run."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.docs.doc_runner import Reader

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_true(reader: Reader) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("Agg")
    assert reader.read(ROOT / "docs/notebooks.md") >= 3


NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


def _run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return (
        None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    """Every cell runs, and what it ends with is shown as a notebook shows it."""
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    names: dict[str, Any] = {}
    shown = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [] and cell["execution_count"] is None
        value = _run_cell("".join(cell["source"]), names)
        if hasattr(value, "_repr_html_"):
            assert value._repr_html_().startswith("<")
            shown += 1
        elif value is not None and hasattr(value, "figure"):
            value.figure.canvas.draw()
            shown += 1
    pyplot.close("all")
    assert shown >= 3


def test_there_are_three_notebooks() -> None:
    assert len(NOTEBOOKS) == 3
