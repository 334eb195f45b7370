# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Hold the configurations of a sweep by column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .configuration import GLOBAL_BATCH, INTEGERS, WORDS, Configuration

Ints = npt.NDArray[np.int64]
MODEL, SYSTEM = "model", "system"
"""The columns of results with what all rows have in common, which rows may repeat."""
DEVICES = "devices"
"""The column of results with the devices of a step, which rows may repeat."""


@dataclass
class Table:
    """Table of configurations, with columns of the same length.

    Attributes
    ----------
    size : int
        Rows.
    numbers : dict of str to int64 array (rows,)
        The columns of :data:`.configuration.INTEGERS`.
    words : dict of str to list of str
        The columns of :data:`.configuration.WORDS`.
    sizes : dict of str to list of str
        Keys of the zoo's model, symbolic dims.
    others : dict of str to list of str
        Any further columns, which are passed on unchanged.
    faults : dict of int to str
        Rows that are no configurations, and why.
    common : dict of str to str
        The model and the system.
    """

    size: int
    numbers: dict[str, Ints]
    words: dict[str, list[str]]
    sizes: dict[str, list[str]] = field(default_factory=dict)
    others: dict[str, list[str]] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    common: dict[str, str] = field(default_factory=dict)

    def row(self, number: int) -> Configuration:
        """Return the configuration of a row."""
        values: dict[str, Any] = {name: int(c[number]) for name, c in self.numbers.items()}
        values |= {name: column[number] for name, column in self.words.items()}
        sizes = tuple((name, column[number]) for name, column in self.sizes.items())
        return Configuration(sizes, **values)

    def some(self, rows: Ints) -> Table:
        """Return the configurations of some rows, without other columns."""
        numbers = {name: column[rows] for name, column in self.numbers.items()}
        words = {name: [column[row] for row in rows] for name, column in self.words.items()}
        sizes = {name: [column[row] for row in rows] for name, column in self.sizes.items()}
        return Table(rows.size, numbers, words, sizes)

    @property
    def global_batch(self) -> Ints:
        """Samples of each step."""
        numbers = self.numbers
        return numbers["micro_batch"] * numbers["micro_batches"] * numbers["dp"]

    @property
    def devices(self) -> Ints:
        """Return the number of devices of each step."""
        return self.numbers["tp"] * self.numbers["pp"] * self.numbers["dp"]

    def show(self, sizes: Mapping[str, str]) -> None:
        """Give sizes of the model to all rows, where no column has them."""
        if "size" not in self.sizes:
            columns = {name: [size] * self.size for name, size in sizes.items()}
            self.sizes = {**columns, **self.sizes}

    def name(self, model: str, system: str) -> None:
        """Name the model and the system of all rows; a row that names another one has a fault."""
        self.common = {MODEL: model, SYSTEM: system}
        for name, value in self.common.items():
            for row, cell in enumerate(self.others.pop(name, ())):
                if cell not in ("", value):
                    self.faults.setdefault(row, f"{name}={cell}, and the sweep is of {value}")

    def columns(self) -> dict[str, list[object]]:
        """Return all columns by name, in the order of results."""
        columns: dict[str, list[object]] = {n: [x] * self.size for n, x in self.common.items()}
        columns |= {name: list(c) for name, c in self.sizes.items()}
        columns |= {name: self.numbers[name].tolist() for name in INTEGERS}
        columns |= {name: list(self.words[name]) for name in WORDS}
        columns[GLOBAL_BATCH] = self.global_batch.tolist()
        columns[DEVICES] = self.devices.tolist()
        return columns | {name: list(c) for name, c in self.others.items()}
