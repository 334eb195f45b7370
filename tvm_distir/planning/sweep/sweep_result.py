# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the result and the progress of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm_distir.support import Column, DataTable, Displayed
from tvm_distir.support.display import units

from .csv_output import csv_text
from .outcome import COLUMNS
from .templates import Difference

MOST_ROWS = 50
"""Rows that text and HTML show; ``to_pandas`` has all."""
_FORMATS = {"time_s": units.duration, "peak_memory_bytes": units.size}


@dataclass
class Progress:
    """Progress of a sweep.

    Attributes
    ----------
    rows, done, impossible : int
        The numbers of all rows; of finished rows; of those of them without a prediction.
    structures, checked : int
        The number of structures, and of predictions by them that were checked.
    notes : list of str
        The reasons why rows have no structure.
    """

    rows: int
    done: int = 0
    impossible: int = 0
    structures: int = 0
    checked: int = 0
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        impossible = f", {self.impossible:,} infeasible" if self.impossible else ""
        structures = f"; {self.structures:,} structures" if self.structures else ""
        return f"{self.done:,} of {self.rows:,} rows{impossible}{structures}"


@dataclass
class SweepResult(Displayed):
    """Predictions of the rows of a table.

    Attributes
    ----------
    header : tuple of str
        Names of columns: the configuration, what else stood in the rows, and
        :data:`.outcome.COLUMNS`.
    rows : list of tuple
        Finished rows, in the order of the table; cells that do not apply are empty texts.
    complete : bool
        Whether all rows are there.
    interrupted : bool
        Whether Ctrl-C ended it.
    checked : tuple of Difference
        Predictions by structures that were taken through the whole pipeline too.
    """

    header: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    complete: bool = True
    interrupted: bool = False
    checked: tuple[Difference, ...] = ()

    def _headline(self) -> str:
        shown = "" if len(self.rows) <= MOST_ROWS else f", {MOST_ROWS} of them shown"
        same = {name: row[0] for name, row in self._columns() if name not in self._varied()}
        words = ", ".join(f"{name}={value}" for name, value in same.items() if value != "")
        words = f"\nall rows: {words}" if words else ""
        early = "" if self.complete else " (stopped early)"
        return f"{len(self.rows)} rows{shown}{early}{words}"

    def _columns(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Return the names and values of all columns of finished rows."""
        return list(zip(self.header, zip(*self.rows, strict=True), strict=True))

    def _varied(self) -> list[str]:
        """Return the columns that are not the same in all rows, and those of the outcome."""
        return [name for name, row in self._columns() if name in COLUMNS or len({*row}) > 1]

    def _tables(self) -> list[DataTable]:
        return [self._table(self._varied(), MOST_ROWS)]

    def _table(self, names: Sequence[str], rows: int | None = None) -> DataTable:
        """Return columns of the first rows; cells that do not apply are None."""
        columns = tuple(Column(name, name, _FORMATS.get(name)) for name in names)
        chosen = [self.header.index(name) for name in names]
        cells = [
            [None if row[number] == "" else row[number] for number in chosen]
            for row in self.rows[:rows]
        ]
        return DataTable("Predictions", columns, cells)

    def _draw(self, axes: Any) -> None:
        """Draw the time of each row by the first column of numbers that varies."""
        rows = [row for row in self.to_dicts() if row["time_s"] != ""]
        varied = [
            name
            for name in self._varied()
            if name not in COLUMNS and all(isinstance(row[name], (int, float)) for row in rows)
        ]
        by = varied[0] if varied else "row"
        x = [row[by] for row in rows] if varied else range(len(rows))
        axes.scatter(x, [row["time_s"] * 1e3 for row in rows])
        axes.set(xlabel=by, ylabel="step (ms)", title=f"{len(rows)} predictions")

    def to_pandas(self) -> Any:
        """Return all rows as a ``pandas.DataFrame`` (DIST0111 without pandas)."""
        return self._table(self.header).to_pandas()

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows by the names of their columns."""
        return [dict(zip(self.header, row, strict=True)) for row in self.rows]

    def to_csv(self) -> str:
        """Return the header and rows as CSV."""
        return csv_text([self.header, *self.rows])
