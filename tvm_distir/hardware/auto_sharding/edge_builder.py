# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Adds the tables between the nodes of a problem: costs of resharding values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_distir.core.ir import Labels, P, R
from tvm_distir.core.propagation import Interned, Uses
from tvm_distir.core.redistribution import CostMatrix
from tvm_distir.core.solver import INFINITE

from .liveness import Liveness
from .overlap import Flags
from .sharding_problem import Assembly, Bytes, Side, once


class EdgeBuilder:
    """Adds the cost of passing each value to its readers, and records its live ranges.

    Parameters
    ----------
    net : Assembly
        The problem, with all nodes.
    """

    def __init__(self, net: Assembly) -> None:
        self.to, self.g, self.shared, self.net = net, net.g, net.shared, net.net
        self.liveness, self.times = Liveness(net), net.g.passes
        self.edges: list[tuple[Interned, int, int, int]] = []
        self.counted = self.shared.overlap_discount.counted(self.g.key)

    def run(self) -> None:
        """Add all values that have a reader."""
        for v, uses in enumerate(self.g.uses):
            if uses:
                self._value(v, uses)
        self.net.put_edges(self.shared.store, self.edges)
        self.net.lasts = [self.liveness.last(v) for v in self.g.param_values]

    def _value(self, v: int, uses: Uses) -> None:
        """Add the cost of passing a value to its readers."""
        g = self.g
        k, j = g.producer[v]
        if k in self.net.callees:
            states, variable = self.to.inner(k, j, result=True)
            if not states.items:  # a constant: at hand in every form
                return
            produced = states.operands[0]
        else:
            states, variable = self.net.ends[k]
            produced = states.results[j]
        readers: list[Side] = []
        for reader, positions in uses:
            if reader in self.net.callees:
                for i in positions:
                    reader_end, other = self.to.inner(reader, i, result=False)
                    readers.append((reader_end.results[0], other))
                continue
            reader_end, other = self.net.ends[reader]
            readers += [(reader_end.operands[i], other) for i in dict.fromkeys(positions)]
        matrix, stationary = self.to.layouts_of(v), self._stationary(k)
        if len(readers) > 1:
            read = self._several(v, matrix, stationary, (produced, variable), readers)
        else:
            (read,) = readers
            needs, other = read
            key = ("edge", id(matrix), stationary, produced, needs, self._counted(v))
            table = self.shared.table(key, lambda: self._moves(v, produced, needs))
            self._put(v, variable, other, table)
        self.liveness.keep(v, matrix, (produced, variable), read, readers)

    def _several(
        self,
        v: int,
        matrix: CostMatrix,
        stationary: Flags,
        producer: Side,
        readers: Sequence[Side],
    ) -> Side:
        """Add a variable for the placement in which a value with several readers is stored."""
        produced, variable = producer
        needs = tuple([n for n, _ in readers])
        key = (id(matrix), stationary, produced, needs, self._counted(v))
        layouts, first, rest = once(self.shared.held, key, lambda: self._held(v, produced, needs))
        shared = -1
        if len(layouts) > 1:
            shared = len(self.net.domains)
            self.net.domains.append(len(layouts))
        self._put(v, variable, shared, first)
        for (_, other), table in zip(readers, rest, strict=True):
            self._put(v, other, shared, table)
        return layouts, shared

    def _put(self, v: int, first: int, second: int, table: Interned) -> None:
        """Add a table about a value, as often as the value is passed on."""
        self.edges.append((table, first, second, self.times[v]))

    def _held(
        self, v: int, produced: tuple[Labels, ...], needs: Sequence[tuple[Labels, ...]]
    ) -> tuple[tuple[Labels, ...], Interned, list[Interned]]:
        """Return stored placements, table (given x held), and per reader (needed x held)."""
        matrix = self.to.layouts_of(v)
        targets = sorted({row for each in needs for row in matrix.rows(each)})
        layouts = sorted({*targets, *(i for i, f in enumerate(matrix.placements) if P not in f)})
        cost = self._cost(v)
        give = sorted(set(matrix.rows(produced)))
        rows = np.concatenate(
            [cost[np.ix_(give, layouts)].T, matrix.local[np.ix_(layouts, targets)]], 1
        )
        layouts = [layouts[i] for i in _undominated(rows)]
        intern = self.shared.store.intern
        first = intern(cost[np.ix_(matrix.rows(produced), layouts)])
        rest = [intern(matrix.local[np.ix_(layouts, matrix.rows(each))].T) for each in needs]
        return tuple([matrix.placements[i] for i in layouts]), first, rest

    def _cost(self, v: int) -> Bytes:
        """Return the costs of all reshardings of a value; INFINITE where it may not move."""
        matrix, maker = self.to.layouts_of(v), self.g.producer[v][0]
        stationary = self._stationary(maker)
        if self.g.values[v].ty is None:
            count = len(matrix.placements)
            return np.where(np.eye(count, dtype=bool), 0, INFINITE).astype(np.int64)
        counted = self._counted(v)
        if not any(stationary) and counted == 1.0:
            return matrix.cost
        cost, layouts = matrix.cost.copy(), np.array(matrix.placements)
        if counted != 1.0:
            possible = cost < INFINITE
            cost[possible] = (cost[possible] * counted).astype(np.int64)
        for axis, stays in enumerate(stationary):
            if stays:
                before, after = layouts[:, None, axis], layouts[None, :, axis]
                cost[(before != after) & (before != R)] = INFINITE
        return cost

    def _counted(self, v: int) -> float:
        """Return the share of a value's communication time that counts."""
        return self.counted[v] if self.counted else 1.0

    def _stationary(self, k: int) -> tuple[bool, ...]:
        """Return along which axes the value of a node may not be communicated."""
        k = self.g.origin[k]
        node = self.g.nodes[k]
        if node.kind == "param":
            inherited = [self.to.reach.held[a].get(k, False) for a in self.to.axes]
        elif node.kind == "pin":
            inherited = [False] * len(self.to.axes)
        else:
            return self.to.replicated
        pin = node.pin or (None,) * len(self.to.axes)
        public = self.g.public or node.kind == "pin"
        fixed = [public and node.stationary and label is not None for label in pin]
        return tuple([bool(stays or is_fixed) for stays, is_fixed in zip(inherited, fixed)])

    def _moves(self, v: int, produced: tuple[Labels, ...], needs: tuple[Labels, ...]) -> Bytes:
        matrix = self.to.layouts_of(v)
        return self._cost(v)[np.ix_(matrix.rows(produced), matrix.rows(needs))]


def _undominated(rows: Bytes) -> list[int]:
    """Return the rows that no other row dominates; of equal rows the first stays."""
    order = np.argsort(np.minimum(rows, 1 << 50).sum(1), kind="stable")
    chosen: list[int] = []
    for i in order.tolist():
        if not chosen or not (rows[chosen] <= rows[i]).all(1).any():
            chosen.append(i)
    return sorted(chosen)
