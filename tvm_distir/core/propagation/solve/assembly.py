# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represents a problem along an axis under construction, and what holds values in place."""

from __future__ import annotations

from tvm_distir.core.propagation.graph.graph import Axis, Graph, Node
from tvm_distir.core.propagation.reach import ReachableAxes

from .alternatives import Alternatives, OpStrategy
from .problem import AxisProblem
from .source import TableSource

AxisEnd = tuple[Alternatives, int]
"""Strategies of an operand or result and their variable (-1: a single strategy)."""


NO_END: AxisEnd = (Alternatives(-1, (OpStrategy((), (), None),)), -1)
"""Of a call of a function, whose ends are those of the function's summary."""


def hold_on(g: Graph, reach: ReachableAxes, axis: Axis, a: int, k: int) -> tuple[bool, bool]:
    """Return (pinned, stationary) along axis ``a`` for the value that node k produces.

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
    """A problem under construction, with the state that its builders share.

    Parameters
    ----------
    prices : TableSource
    g : Graph
    a : int
        The axis.
    reach : ReachableAxes
        Of the graph.
    sizes : (list of int, dict)
        Bytes of each value local to the other axes, and how its dims are sharded by them.

    Attributes
    ----------
    model : AxisProblem
    given : list of (int or None)
        Per value the only label that it is given in; None where there are several, and at the
        end, for constants (:data:`~tvm_distir.core.propagation.graph.graph.CONST`).
    """

    def __init__(
        self,
        prices: TableSource,
        g: Graph,
        a: int,
        reach: ReachableAxes,
        sizes: tuple[list[int], dict[int, dict[int, int]]],
    ) -> None:
        self.prices, self.g, self.a, self.reach = prices, g, a, reach
        self.axis = prices.axes[a]
        self.mesh = self.axis.mesh
        self.bytes, self.cut = sizes
        self.model = AxisProblem()
        self.given: list[int | None] = [None] * (len(g.values) + 1)

    def add(self, alternatives: Alternatives, node: Node) -> int:
        """Add a node; return its variable, -1 where it has a single strategy."""
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
        """Return whether a node runs on a mesh other than that of the axis."""
        return node.mesh != self.mesh

    def trivial(self, node: Node) -> None:
        """Add a node that is replicated along the axis."""
        self.add(self.prices.forms.whole(len(node.operands), len(node.results)), node)
