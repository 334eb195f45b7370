# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Bound sums of tables by message passing in NumPy, as ``passes/solver/dual.cc`` does.

The method is sequential tree-reweighted message passing (V. Kolmogorov, Convergent Tree-Reweighted
Message Passing for Energy Minimization, IEEE TPAMI 28(10), 2006), in integers. A message moves cost
between a table and its variable, so that all bounds hold exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_distir.core.solver.problem import INFINITE, Array

_SUM_BITS = 61
_MOST_SHIFT, _MOST_BITS = 20, 62
_LEAST_SUM = -(1 << 61)


@dataclass
class _Edge:
    """A table over two variables.

    Attributes
    ----------
    ends : pair of int
        The variables, the lower first.
    costs : int64 array (states of the first, states of the second)
    messages, every : list of two int64 arrays
        The messages to each end: of the states that are left, and as of the last pruning of all
        states.
    rest : int
        The bound of the table with what its variables gave to it.
    crossing : int
        What the bound gains while only one end has been passed.
    """

    ends: tuple[int, int]
    costs: Array
    messages: list[Array]
    every: list[Array]
    rest: int = 0
    crossing: int = 0

    def normalize(self) -> None:
        """Set the bound of the table from its messages."""
        first, second = self.messages
        self.rest = int((self.costs - first[:, None] - second).min())


@dataclass
class _Node:
    """A variable with the edges to lower and to higher variables."""

    states: Array
    costs: Array
    excess: Array
    part: Array
    out: Any
    low: int = 0
    share: int = 1
    before: list[_Edge] = field(default_factory=list)
    after: list[_Edge] = field(default_factory=list)


class _Bounds:
    """The bounds of a problem; the methods are those of ``solver.dual_bounds.Dual``."""

    def __init__(
        self, domains: Sequence[int], factors: Sequence[tuple[Array, tuple[int, ...]]], most: int
    ) -> None:
        self._most, self._cap = most, most + 1  # no table has a negative entry
        self._bound, self._best = 0, INFINITE
        self._labels: list[int] = []
        self._nodes = [
            _Node(np.arange(n), zeros, zeros, zeros, np.zeros(n, bool))
            for n, zeros in ((n, np.zeros(n, np.int64)) for n in domains)
        ]
        self._edges: list[_Edge] = []
        for table, scope in factors:
            if len(scope) == 1:
                node = self._nodes[scope[0]]
                node.costs = np.minimum(node.costs + table, self._cap)
            elif len(scope) != 2:
                raise ValueError("a table stands over no pair")
        pairs = [(scope, table) for table, scope in factors if len(scope) == 2]
        for (first, second), table in sorted(pairs, key=lambda pair: pair[0]):
            messages, every = (
                [np.zeros(domains[v], np.int64) for v in (first, second)] for _ in range(2)
            )
            edge = _Edge((first, second), np.minimum(table, self._cap), messages, every)
            self._edges.append(edge)
            self._nodes[first].after.append(edge)
            self._nodes[second].before.append(edge)
        most_edges = 0
        for node in self._nodes:
            node.share = max(1, len(node.before), len(node.after))
            most_edges = max(most_edges, len(node.before) + len(node.after))
        used = self._cap.bit_length() + (most_edges + 2).bit_length()
        self._shift = min(_MOST_SHIFT, max(0, _SUM_BITS - used))
        for node in self._nodes:
            node.costs = node.costs << self._shift
        for edge in self._edges:
            edge.costs = edge.costs << self._shift

    def _gather(self, node: _Node) -> None:
        """Add the messages to the costs of a variable."""
        node.excess = node.costs.copy()
        for edge in node.before:
            node.excess += edge.messages[1]
        for edge in node.after:
            node.excess += edge.messages[0]
        node.low = int(node.excess.min())
        node.excess -= node.low
        node.part = node.excess // node.share

    def _send(self, edge: _Edge, forward: bool) -> None:
        """Hand the share of the nearer variable's excess over to the farther one."""
        near, far = (0, 1) if forward else (1, 0)
        total = self._nodes[edge.ends[near]].part - edge.messages[near]
        costs = edge.costs if forward else edge.costs.T
        message = (total[:, None] + costs).min(axis=0)
        edge.rest = int(message.min())
        message -= edge.rest
        to = self._nodes[edge.ends[far]]
        edge.crossing = int((to.part + message - edge.messages[far]).min())
        edge.messages[far] = message

    def _label(self, node: _Node, forward: bool, picked: list[int]) -> tuple[int, int]:
        """Return the cheapest state with those picked before, and what it adds to the cost."""
        fixed, open_costs = node.costs.copy(), np.zeros_like(node.costs)
        for edge in node.before:
            if forward:
                fixed += edge.costs[picked[edge.ends[0]]]
            else:
                open_costs += edge.messages[1]
        for edge in node.after:
            if forward:
                open_costs += edge.messages[0]
            else:
                fixed += edge.costs[:, picked[edge.ends[1]]]
        best = int((fixed + open_costs).argmin())
        return best, int(fixed[best])

    def _sum(self) -> int:
        return sum(node.low for node in self._nodes) + sum(edge.rest for edge in self._edges)

    def round(self) -> tuple[int, int]:
        """See ``Dual.round``."""
        if self._sweep(True):
            self._sweep(False)
        return -(-self._bound >> self._shift), self._best

    def _sweep(self, forward: bool) -> bool:
        """Pass all variables; return False where nothing costs at most what is allowed."""
        total, picked_cost = self._sum(), 0
        picked = [0] * len(self._nodes)
        limit = min(self._best, self._most) << self._shift
        numbers = range(len(self._nodes))
        for v in numbers if forward else reversed(numbers):
            node = self._nodes[v]
            total -= node.low
            self._gather(node)
            total += node.low
            total -= sum(edge.crossing for edge in (node.before if forward else node.after))
            self._bound = max(self._bound, total)
            if total > limit:
                return False
            node.out |= node.excess > limit - total
            picked[v], cost = self._label(node, forward, picked)
            picked_cost = min(picked_cost + cost, INFINITE)
            for edge in node.after if forward else node.before:
                total -= edge.rest
                self._send(edge, forward)
                total += edge.rest + edge.crossing
        picked_cost >>= self._shift
        if picked_cost <= self._most and picked_cost < self._best:
            self._best = picked_cost
            self._labels = [
                int(node.states[at]) for node, at in zip(self._nodes, picked, strict=True)
            ]
        return True

    def prune(self) -> list[int]:
        """Drop marked states; return per variable the number of states, followed by the states."""
        changed = [bool(node.out.any() and not node.out.all()) for node in self._nodes]
        for edge in self._edges:
            for end, v in enumerate(edge.ends):
                if changed[v]:
                    node = self._nodes[v]
                    edge.every[end][node.states] = edge.messages[end]
                    edge.messages[end] = edge.messages[end][~node.out]
                    edge.costs = edge.costs.compress(~node.out, axis=end)
        for node, is_changed in zip(self._nodes, changed, strict=True):
            if is_changed:
                left = ~node.out
                node.states, node.costs = node.states[left], node.costs[left]
                node.excess, node.part = node.excess[left], node.part[left]
            node.out = np.zeros(len(node.states), bool)
        return [x for node in self._nodes for x in (len(node.states), *node.states.tolist())]

    def excess(self) -> list[int]:
        """Return the reduced costs of all remaining states, variable by variable."""
        return [x for node in self._nodes for x in node.excess.tolist()]

    def labels(self) -> list[int]:
        """See ``Dual.labels``."""
        return self._labels

    def offer(self, cost: int, labels: Array) -> None:
        """See ``Dual.offer``."""
        if cost <= self._most and cost < self._best:
            self._best, self._labels = cost, labels.tolist()

    def resume(self, messages: Array) -> None:
        """See ``Dual.resume``."""
        shift, size = int(messages[0]), 1 + sum(sum(e.costs.shape) for e in self._edges)
        if len(messages) != size or not 0 <= shift <= _MOST_BITS:
            raise ValueError("the messages belong to another problem")
        up, down = max(0, self._shift - shift), max(0, shift - self._shift)
        at, most = 1, self._cap << self._shift >> up
        for edge in self._edges:
            for end in range(2):
                count = len(edge.messages[end])
                some = np.maximum(messages[at : at + count], 0) >> down
                edge.messages[end] = np.minimum(some, most) << up
                at += count
            edge.normalize()
        for node in self._nodes:
            self._gather(node)
        if self._sum() >= _LEAST_SUM:
            return
        for edge in self._edges:  # messages that promise so little are of no use
            edge.messages = [np.zeros_like(message) for message in edge.messages]
            edge.rest = 0
        for node in self._nodes:
            self._gather(node)

    def messages(self, out: Array) -> None:
        """Write the bits of a unit, then the messages of all states, edge by edge."""
        parts = [np.array([self._shift])]
        for edge in self._edges:
            for end, v in enumerate(edge.ends):
                every = edge.every[end].copy()
                every[self._nodes[v].states] = edge.messages[end]
                parts.append(every)
        out[:] = np.concatenate(parts)


def dual_functions(
    domains: Sequence[int], factors: Sequence[tuple[Array, tuple[int, ...]]], most: int
) -> tuple[Callable[..., Any], ...]:
    """Return the functions that ``solver.dual_bounds.Dual`` calls, for tables and their scopes."""
    bounds = _Bounds(domains, factors, most)
    return (
        bounds.round, bounds.prune, bounds.excess, bounds.labels, bounds.offer, bounds.resume,
        bounds.messages,
    )  # fmt: skip
