# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the result and the progress of a sweep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .csv_output import csv_text
from .templates import Difference


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


@dataclass
class SweepResult:
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

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows by the names of their columns."""
        return [dict(zip(self.header, row, strict=True)) for row in self.rows]

    def to_csv(self) -> str:
        """Return the header and rows as CSV."""
        return csv_text([self.header, *self.rows])
