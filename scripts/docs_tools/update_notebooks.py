#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run the notebooks of the examples, and store what their cells show.

::

    .venv/bin/python scripts/docs_tools/update_notebooks.py           # run them anew
    .venv/bin/python scripts/docs_tools/update_notebooks.py --check   # exit 1: out of date

It needs the extra ``notebook``. Texts are compared; pictures and tables of HTML, which depend on
the versions of matplotlib and pandas, are not.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

from slots import rewrite_pages

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
IMAGE = "image/svg+xml"
TIMINGS = re.compile(r"\n+Time of this (?:run|analysis)\n(?:  .*\n?)+")
"""The table of wall-clock times that an analysis ends with."""


def run(source: str, names: dict[str, Any]) -> tuple[Any, str]:
    """Run a cell; return the value of its last expression, and what it printed."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return value, printed.getvalue()


def shown(value: Any, printed: str, count: int) -> list[dict[str, Any]]:
    """Return the outputs of a cell as a notebook stores them."""
    outputs: list[dict[str, Any]] = []
    if printed:
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed)})
    if value is None:
        return outputs
    figure = getattr(value, "figure", None)
    if figure is not None and hasattr(figure, "savefig"):
        picture = io.StringIO()
        figure.savefig(picture, format="svg", metadata={"Date": None})
        data = {IMAGE: _lines(picture.getvalue()), "text/plain": ["<Axes>"]}
    else:
        data = {"text/plain": _lines(TIMINGS.sub("", str(value)))}
        table = value._repr_html_() if hasattr(value, "_repr_html_") else None
        if table is not None and not table.startswith("<iframe"):  # a report is a page by itself
            data["text/html"] = _lines(table)
    return [*outputs, {"data": data, "execution_count": count, "metadata": {},
                       "output_type": "execute_result"}]  # fmt: skip


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def regenerate(text: str) -> str:
    """Return a notebook with the outputs of a run."""
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "tvm_distir"
    notebook, names = json.loads(text), dict[str, Any]()
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(cells, 1):
        value, printed = run("".join(cell["source"]), names)
        cell.update(execution_count=count, outputs=shown(value, printed, count))
        pyplot.close("all")
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def texts(text: str) -> str:
    """Return what is compared of a notebook: all but its pictures and tables of HTML."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            for kind in (IMAGE, "text/html"):
                output.get("data", {}).pop(kind, None)
    return json.dumps(notebook)


if __name__ == "__main__":
    files = [str(path.relative_to(ROOT)) for path in NOTEBOOKS]
    raise SystemExit(rewrite_pages(str(__doc__), ROOT, files, regenerate, texts))
