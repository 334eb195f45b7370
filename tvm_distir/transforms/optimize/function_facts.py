# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collect facts about a function for the passes, computed on first use."""

from __future__ import annotations

import functools
from typing import Any

from tvm import relax
from tvm.relax import Binding, Expr, Var

from tvm_distir.core.ops import dist_ops
from tvm_distir.core.rewriting import variables
from tvm_distir.core.rewriting.native import CAST, FUNCTION, IF, FunctionView, read_functions

Row = tuple[Binding, Var, Expr, str | None]
"""A binding, its variable, its value, and the name of the ``R.dist`` op that this is, if it is."""


class Scan:
    """Facts about a function that are shared by all passes that leave it unchanged.

    Parameters
    ----------
    fn : relax.Function
    reading : FunctionView
        The view of the function.

    Attributes
    ----------
    straight : bool
        Whether it has no casts or functions inside.
    branches : bool
        Whether it has an ``If``.
    """

    def __init__(self, fn: relax.Function, reading: FunctionView) -> None:
        self.fn, self.reading = fn, reading
        self.straight = not {CAST, FUNCTION}.intersection(reading.kinds)
        self.branches = IF in reading.kinds

    @staticmethod
    def of(fn: relax.Function) -> Scan:
        """Scan a function."""
        return Scan(fn, read_functions([fn])[0])

    @functools.cached_property
    def _names(self) -> list[str | None]:
        """Return, per binding, the name of the ``R.dist`` op that it calls, if any."""
        return dist_ops(self.reading)

    @functools.cached_property
    def kinds(self) -> frozenset[str]:
        """Return the ``R.dist`` ops of the function, without those in branches."""
        return frozenset(name for name in self._names if name is not None)

    @functools.cached_property
    def blocks(self) -> list[list[Row]]:
        """Return the bindings, block by block."""
        reading = self.reading
        bound = reading.variables[reading.params :]
        rows: list[Row] = list(zip(reading.bindings, bound, reading.values, self._names))
        blocks, end = [], 0
        for block in self.fn.body.blocks[:]:
            first, end = end, end + len(block.bindings)
            blocks.append(rows[first:end])
        return blocks

    @functools.cached_property
    def used(self) -> list[list[int]]:
        """Return, per binding, the numbers of the variables that it reads, a number per use.

        Of an ``If`` each once.
        """
        reading = self.reading
        begin, reads = reading.begin, reading.reads
        uses = [
            [used for used in reads[begin[n] : begin[n + 1]] if used >= 0]
            for n in range(len(reading.bindings))
        ]
        if self.branches or not self.straight:
            at = {var: number for number, var in enumerate(reading.variables)}
            for number, kind in enumerate(reading.kinds):
                if kind in (IF, FUNCTION):
                    inside = variables(reading.values[number])
                    uses[number] = [at[var] for var in inside if var in at]
        return uses

    @functools.cached_property
    def readers(self) -> dict[Var, list[Any]]:
        """Return, per variable, its readers, with None for the result of the function.

        One entry per mention.
        """
        reading = self.reading
        readers: list[list[Any]] = [[] for _ in reading.variables]
        for var, some in zip(reading.variables[reading.params :], self.used):
            for used in some:
                readers[used].append(var)
        for used in reading.result:
            if used >= 0:
                readers[used].append(None)
        return {var: some for var, some in zip(reading.variables, readers) if some}

    @functools.cached_property
    def values(self) -> dict[Var, Expr]:
        """Return the value of each variable."""
        reading = self.reading
        return dict(zip(reading.variables[reading.params :], reading.values))
