# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the memory that assignments need."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_distir.core.analysis import live_bytes
from tvm_distir.core.solver import INFINITE, Factors, Tables

from .sharding_problem import LiveRange, ShardingProblem


class MemoryBound:
    """Live bytes of an assignment over time, callees included.

    Parameters
    ----------
    net : ShardingProblem
    """

    def __init__(self, net: ShardingProblem) -> None:
        self.net = net
        self.holdings = list(_all(net))
        self.spans = np.array([holding[2:4] for holding in self.holdings], np.int64).reshape(-1, 2)
        self.end = net.begins[-1]

    def profile(self, values: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the bytes that a device stores while each node runs, at the largest shard."""
        return self._live(
            [int(size[tuple([values[u] for u in scope])]) for scope, size, *_ in self.holdings]
        )

    def _live(self, sizes: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the bytes that live while each node runs, of the sizes of all values."""
        return live_bytes(self.spans[:, 0], self.spans[:, 1], sizes, self.end)

    @functools.cached_property
    def least_bytes(self) -> int:
        """Return a lower bound on the peak memory: every value in its smallest form."""
        return int(self._live([int(span.bytes.min()) for span in self.holdings]).max())

    @functools.cached_property
    def mesh_bytes(self) -> int:
        """Return the bytes of all values at the worst moment, undivided.

        Together, the devices of a mesh of any shape store at least as many.
        """
        sizes = [int(span.bytes.max()) if span.is_single else 0 for span in self.holdings]
        return int(self._live(sizes).max())

    def priced(
        self, tables: Tables, weights: Mapping[int, float], work: bool = True
    ) -> tuple[Factors, int]:
        """Return tables and constant of the problem with memory costs added.

        Parameters
        ----------
        tables : Tables
        weights : mapping of int to float
            Price per byte at moments.
        work : bool
            Whether time counts too.
        """
        net = self.net
        factors: Factors = dict(net.factors)
        if not work:
            factors = {scope: _allowed(tables, table) for scope, table in net.factors.items()}
        constant = net.constant if work else 0
        moments = np.array(sorted(weights))
        sums = np.concatenate(([0.0], np.cumsum([weights[t] for t in moments.tolist()])))
        known: dict[tuple[int, float], tuple[int, int]] = {}
        begins = np.searchsorted(moments, self.spans[:, 0])
        shares = sums[np.searchsorted(moments, self.spans[:, 1] + 1)] - sums[begins]
        for i in np.flatnonzero(shares).tolist():
            (scope, size, *_), weight = self.holdings[i], float(shares[i])
            key = (id(size), weight)
            if key not in known:
                known[key] = tables.intern(np.rint(weight * size).astype(np.int64))
            number, least = known[key]
            constant += least
            if not scope:
                continue
            if len(scope) == 2 and scope[0] > scope[1]:
                scope = (scope[1], scope[0])
                number, _ = tables.intern(tables.array(number).T.copy())
            old = factors.get(scope)
            if old is not None:
                number, least = tables.add(old, number)
                constant += least
            factors[scope] = number
        return factors, constant


def _all(net: ShardingProblem) -> Iterator[LiveRange]:
    """Yield live ranges of a problem and its callees, in the caller's variables and moments."""
    pending = [(net, 0, 0)]
    while pending:
        net, variables, moments = pending.pop()
        for scope, size, first, last, is_single in net.holdings:
            moved = tuple([variables + u for u in scope])
            yield LiveRange(moved, size, moments + first, moments + last, is_single)
        pending += [
            (inner, variables + start, moments + net.begins[k])
            for k, (inner, start) in reversed(net.callees.items())
        ]


def _allowed(tables: Tables, number: int) -> int:
    """Return a table of zero costs that forbids assignments that do not fit."""
    return tables.intern(np.where(tables.array(number) < INFINITE, 0, INFINITE))[0]


class Evaluated(NamedTuple):
    """An assignment with its cost without memory, its live bytes over time, and the peak."""

    values: Sequence[int]
    cost: int
    profile: npt.NDArray[np.int64]
    moment: int

    @property
    def peak(self) -> int:
        """Return the live bytes at the peak."""
        return int(self.profile[self.moment])
