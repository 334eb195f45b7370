# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Extract from a row the symbols of formulas, and the features that decide on its ops."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_distir.performance import ALIGNED, Profile

from .configuration import DIM
from .pipeline import ProgramPipeline
from .table import Table

Ints = npt.NDArray[np.int64]

MICRO_BATCHES = "micro_batches"
_STRUCTURAL = ("tp", "pp", "dp", "micro_batch", "chunks", "zero", "sequence_parallel")
"""The columns that decide which communication is cheapest, and so which collectives there are."""
_HEADS, _CLASSES = "heads", "vocab"


@dataclass
class Symbols:
    """Symbols of the rows of a table.

    Attributes
    ----------
    names : tuple of str
        The names of the symbols: sizes of the model, parts of sizes along axes that do not divide
        them, rounded up, and micro-batches.
    values : int64 array (symbols, rows)
        The values, all positive.
    hints : int64 array (hints, rows)
        The further features that may decide which ops there are: which sizes are not divisible.
    keys : list
        The features of each row that certainly decide it.
    undivided : dict of str to (int64 array, int64 array)
        Sizes and parts of what some rows do not divide, by the name of the hint.
    """

    names: tuple[str, ...]
    values: Ints
    hints: Ints
    keys: list[Hashable]
    undivided: dict[str, tuple[Ints, Ints]]

    @staticmethod
    def of(pipeline: ProgramPipeline, table: Table) -> Symbols:
        """Read a table."""
        sizes, words = _sizes(pipeline, table)
        numbers = table.numbers
        symbols = {name: column for name, column in sizes.items() if len(np.unique(column)) > 1}
        hints: dict[str, Ints] = {}
        undivided: dict[str, tuple[Ints, Ints]] = {}
        for axis, parts in (
            ("tp", numbers["tp"]),
            ("dp", np.where(numbers["zero"] > 0, numbers["dp"], 1)),
        ):
            for name, column in sizes.items():
                rest = column % parts != 0
                if rest.any():
                    symbols[f"{name}/{axis}"] = -(-column // parts)
                    hints[f"{name}%{axis}"] = rest.astype(np.int64)
                    undivided[f"{name}%{axis}"] = column, parts
        for rule in Profile.resolve(pipeline.system.kernels).rules:
            if rule.batch_multiple > 1 and _HEADS in sizes:
                count = numbers["micro_batch"] * sizes[_HEADS] // numbers["tp"]
                hints[f"multiple of {rule.batch_multiple}"] = count % rule.batch_multiple
        if _CLASSES in sizes:
            hints["aligned"] = np.asarray(
                -(-sizes[_CLASSES] // numbers["tp"]) % ALIGNED == 0, np.int64
            )
        symbols[MICRO_BATCHES] = numbers[MICRO_BATCHES]
        columns = [*(numbers[name].tolist() for name in _STRUCTURAL)]
        columns += [table.words[name] for name in table.words]
        columns += [words[name] for name in words]
        keys: list[Hashable] = list(zip(*columns, strict=True))
        return Symbols(
            tuple(symbols),
            np.array(list(symbols.values()), np.int64).reshape(len(symbols), table.size),
            np.array(list(hints.values()), np.int64).reshape(len(hints), table.size),
            keys,
            undivided,
        )

    def some(self, rows: Ints) -> Symbols:
        """Return the symbols of some rows, which are the same for these."""
        undivided = {
            name: (sizes[rows], parts[rows]) for name, (sizes, parts) in self.undivided.items()
        }
        return Symbols(
            self.names, self.values[:, rows], self.hints[:, rows],
            [self.keys[row] for row in rows], undivided,
        )  # fmt: skip

    def culprits(self, row: int) -> Hashable:
        """Return the sizes of a row that its axes do not divide."""
        return tuple(
            (name, int(column[row]), int(parts[row]))
            for name, (column, parts) in self.undivided.items()
            if column[row] % parts[row]
        )


def _sizes(
    pipeline: ProgramPipeline, table: Table
) -> tuple[dict[str, Ints], dict[str, Sequence[str]]]:
    """Return the columns of sizes that are numbers, and the other columns of the model's keys."""
    sizes: dict[str, Ints] = {}
    words: dict[str, Sequence[str]] = {}
    counted = pipeline.counted
    for name, column in table.sizes.items():
        numbers = _positive_integers(column) if name in counted or name.startswith(DIM) else None
        if numbers is None:
            words[name] = column
        else:
            sizes[name] = numbers
    if "size" not in words:
        for name, value in counted.items():
            if value > 0 and name not in sizes and name not in words:
                sizes[name] = np.full(table.size, value, np.int64)
        if {"seq", "positions"} <= set(sizes) and not pipeline.given("positions", table.sizes):
            sizes["positions"] = np.maximum(sizes["positions"], sizes["seq"])
    return sizes, words


def _positive_integers(column: Sequence[str]) -> Ints | None:
    """Return positive integers; None where a cell is no such number."""
    known: dict[str, int] = {}
    for text in column:
        if text not in known:
            if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 40):
                return None
            known[text] = int(text)
    return np.array([known[text] for text in column], np.int64)
