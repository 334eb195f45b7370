# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Protocol through which the builder of a problem requests its tables."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any, Protocol, TypeAlias

from tvm_distir.core.ops.factor import Rule
from tvm_distir.core.propagation.graph.graph import Axis
from tvm_distir.core.solver.problem import Array

from .alternatives import Alternatives, StrategyTable
from .cost import Costs

Interned: TypeAlias = tuple[int, int]
"""Number of a table, and the minimum taken out of it."""

Reader: TypeAlias = tuple[Alternatives, tuple[int, ...]]
"""A consumer of a value: its alternatives, and which of its operands the value is."""


class TableSource(Protocol):
    """Source of a builder's tables: :class:`.tables.PriceTables`, or a recorder."""

    @property
    def axes(self) -> Sequence[Axis]:
        """Return all axes."""

    @property
    def costs(self) -> Costs:
        """Return the weights of bytes and operations."""

    @property
    def forms(self) -> StrategyTable:
        """Return the interned strategies."""

    @property
    def ops(self) -> MutableMapping[Any, tuple[Alternatives, Interned | None]]:
        """Return strategies and table of ops, by all that they depend on."""

    def edge(
        self, producer: Alternatives, result: int, consumer: Alternatives,
        operands: tuple[int, ...], size_bytes: int, ranks: int, held: bool, /,
    ) -> Interned:  # fmt: skip
        """Return the table of :meth:`.tables.PriceTables.edge`."""

    def share(
        self, producer: Alternatives, result: int, consumers: tuple[Reader, ...],
        size_bytes: int, ranks: int, held: bool, /,
    ) -> tuple[int, Interned, list[Interned]]:  # fmt: skip
        """Return the tables of :meth:`.tables.PriceTables.share`."""

    def work(
        self, rule: Rule, alternatives: Alternatives, ranks: int, others: tuple[Any, ...], /
    ) -> Interned:
        """Return the table of :meth:`.tables.PriceTables.work`."""

    def table(self, rows: Sequence[Sequence[int]], /) -> Interned:
        """Return a table of these rows."""

    def add(self, first: int, second: int, /) -> Interned:
        """Return the sum of two tables over the same variables."""

    def times(self, table: Interned, count: int, /) -> Interned:
        """Return a multiple of a table."""

    def array(self, number: int, /) -> Array:
        """Return the entries of a table."""

    def flipped(self, number: int, /) -> Interned:
        """Return a table of two dims, transposed."""

    def diagonal(self, number: int, /) -> Interned:
        """Return the diagonal of a table of two dims."""
