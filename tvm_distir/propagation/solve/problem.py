# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The labelling problem of one function along one axis, as variables and cost tables.

A call with several alternatives is a variable, its work a table over it. A value with one
consumer gives a table over producer and consumer: the cheapest conversion. A value with several
consumers gets a variable of its own, the set of forms it is held in, so that one collective
serves all of them. A call of a private function splices that function's summary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ...native import INFINITE, Elimination, Scope
from ..graph import Axis, Graph, Node
from ..reach import Reach
from .alternatives import Alternative, Alternatives
from .source import TableSource

End = tuple[Alternatives, int]
"""Alternatives of an operand or result and the variable that picks one (-1: only one)."""


NO_END: End = (Alternatives(-1, (Alternative((), (), None),)), -1)
"""Of a call of a function, whose ends are those of the function's summary."""


class Spliced(NamedTuple):
    """The summary of a function in the problem of its caller: variables, and ends."""

    variables: range
    params: tuple[End, ...]
    rets: tuple[End, ...]


@dataclass
class AxisProblem:
    """Variables (``domains``), tables (``factors``), constant, and the end of every node.

    The calls of functions have theirs in ``spliced``.
    """

    domains: list[int] = field(default_factory=list)
    factors: dict[Scope, int] = field(default_factory=dict)
    constant: int = 0
    feasible: bool = True
    ends: list[End] = field(default_factory=list)
    spliced: dict[int, Spliced] = field(default_factory=dict)


@dataclass
class Summary:
    """A function along an axis with its inner variables minimised out."""

    model: AxisProblem
    done: Elimination
    domains: list[int]
    factors: list[tuple[Scope, int]]
    constant: int
    feasible: bool
    params: tuple[End, ...]
    rets: tuple[End, ...]


def hold_on(g: Graph, reach: Reach, axis: Axis, a: int, k: int) -> tuple[bool, bool]:
    """(pinned by the user, stationary) along axis ``a``, for the value that node k produces.

    A layout op hands on what its operand is: a transposed weight is the weight.
    """
    k = g.origin[k]
    node = g.nodes[k]
    if node.kind == "param":
        pinned = node.pin_on(axis) or reach.fixed[a].get(k) is not None
        held = reach.held[a].get(k, False)
        return pinned, held or (g.public and pinned and node.stationary)
    if node.kind == "pin":
        pinned = node.pin_on(axis)
        return pinned, pinned and node.stationary
    return False, False


class Assembly:
    """A problem that is being put together: what its parts know, and add to.

    Parameters
    ----------
    prices : TableSource
    g : Graph
    a : int
        The axis.
    reach : Reach
        Of the graph.
    sizes : (list of int, dict)
        Bytes of each value local to the other axes, and how its dims are cut by them.

    Attributes
    ----------
    model : AxisProblem
    given : list of (int or None)
        Per value the only label that it is given in; None where there are several, and at the
        end, for constants (:data:`~tvm_distir.propagation.graph.CONST`).
    """

    def __init__(
        self,
        prices: TableSource,
        g: Graph,
        a: int,
        reach: Reach,
        sizes: tuple[list[int], dict[int, dict[int, int]]],
    ) -> None:
        self.prices, self.g, self.a, self.reach = prices, g, a, reach
        self.axis = prices.axes[a]
        self.mesh = self.axis.mesh
        self.bytes, self.cut = sizes
        self.model = AxisProblem()
        self.given: list[int | None] = [None] * (len(g.values) + 1)

    def put(self, scope: Scope, table: tuple[int, int]) -> None:
        """Put a table, and the minimum taken out of it, over variables."""
        number, low = table
        m = self.model
        m.constant += low
        if scope:
            other = m.factors.get(scope)
            if other is not None:
                number, low = self.prices.add(other, number)
                m.constant += low
            m.factors[scope] = number
        elif self.prices.array(number) >= INFINITE:
            m.feasible = False

    def put_edge(self, table: tuple[int, int], first: int, second: int) -> None:
        """A table laid out (first, second), put over sorted variables."""
        if 0 <= first < second:
            self.put((first, second), table)
        elif first < 0:
            self.put((second,) if second >= 0 else (), table)
        elif second < 0:
            self.put((first,), table)
        else:
            self._put_turned(table, first, second)

    def _put_turned(self, table: tuple[int, int], first: int, second: int) -> None:
        """As above where the second variable is the lower one, or the first itself."""
        number, low = table
        if first > second:
            number, more = self.prices.flipped(number)
            self.put((second, first), (number, low + more))
            return
        number, more = self.prices.diagonal(number)
        self.put((first,), (number, low + more))

    def add(self, alternatives: Alternatives, node: Node) -> int:
        """Add a node; returns its variable, -1 where it has one alternative only."""
        m, variable, count = self.model, -1, len(alternatives.items)
        if count > 1:
            variable = len(m.domains)
            m.domains.append(count)
        else:
            for v, label in zip(node.results, alternatives.gives[0]):
                self.given[v] = label
        m.ends.append((alternatives, variable))
        return variable

    def off_mesh(self, node: Node) -> bool:
        """Whether a node runs on another mesh than the axis'."""
        return node.mesh != self.mesh

    def trivial(self, node: Node) -> None:
        """Add a node that is whole along the axis."""
        self.add(self.prices.forms.whole(len(node.operands), len(node.results)), node)
