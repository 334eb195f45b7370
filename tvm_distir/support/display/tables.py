# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define tables of values, and write them as text, HTML and data frames."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm_distir.support.errors.user_input import printable
from tvm_distir.support.plugins.extras import optional_module

if TYPE_CHECKING:
    import pandas as pd

_CELL = "padding:2px 10px;text-align:"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    name : str
        The name in data frames, with the unit: ``time_s``.
    title : str
        The head in text and HTML.
    text : callable, optional
        Formats a value. With it, the column is aligned to the right.
    """

    name: str
    title: str
    text: Callable[[Any], str] | None = None

    def cell(self, value: object) -> str:
        """Format a value; None is ``-``."""
        return "-" if value is None else str(value) if self.text is None else self.text(value)


@dataclass(frozen=True)
class DataTable:
    """A table of values.

    Parameters
    ----------
    title : str
    columns : tuple of Column
    rows : sequence of sequences
        A value per column; None where there is none.
    """

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[object]]

    def to_lines(self) -> list[str]:
        """Return the title and the aligned rows."""
        kinds = "".join("l" if column.text is None else "r" for column in self.columns)
        return [self.title, *align([column.title for column in self.columns], self._cells(), kinds)]

    def to_html(self) -> str:
        """Return an HTML table with the title as its caption; every value is escaped."""
        sides = ["left" if column.text is None else "right" for column in self.columns]

        def row(tag: str, cells: Sequence[str]) -> str:
            parts = (
                f'<{tag} style="{_CELL}{side}">{html.escape(cell)}</{tag}>'
                for side, cell in zip(sides, cells, strict=True)
            )
            return f"<tr>{''.join(parts)}</tr>"

        head = row("th", [column.title for column in self.columns])
        body = "".join(row("td", cells) for cells in self._cells())
        caption = f'<caption style="text-align:left">{html.escape(self.title)}</caption>'
        return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table>"

    def to_pandas(self) -> pd.DataFrame:
        """Return the values as a ``pandas.DataFrame``.

        Raises
        ------
        DependencyError
            DIST0111 without pandas.
        """
        pandas = optional_module("pandas", "to_pandas", "notebook")
        return pandas.DataFrame(
            [list(row) for row in self.rows], columns=[column.name for column in self.columns]
        )

    def _cells(self) -> list[list[str]]:
        return [
            [column.cell(value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]


def align(head: Sequence[str], rows: Sequence[Sequence[str]], right: str) -> list[str]:
    """Align columns of text.

    Parameters
    ----------
    head : sequence of str
    rows : sequence of sequences of str, each as long as ``head``
    right : str
        One letter per column: ``r`` aligns right, ``l`` left.

    Returns
    -------
    lines : list of str
        The head and one line per row, indented by two.
    """
    body = [[printable(cell) for cell in row] for row in (head, *rows)]
    wide = [max(len(row[i]) for row in body) for i in range(len(head))]
    lines = []
    for row in body:
        cells = [
            cell.rjust(wide[i]) if right[i] == "r" else cell.ljust(wide[i])
            for i, cell in enumerate(row)
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines
