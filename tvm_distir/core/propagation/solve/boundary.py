# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Adds the boundary nodes of a problem: parameters, results, annotations and moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm_distir.core.ir.placement import P, R
from tvm_distir.core.propagation.decision import Signature
from tvm_distir.core.propagation.graph.graph import Graph, Node
from tvm_distir.core.propagation.reach import ReachableAxes

from .alternatives import OpStrategy, fits
from .assembly import Assembly, AxisEnd


def labels_on(
    g: Graph, reach: ReachableAxes, v: int, a: int, ranks: int, cut: Mapping[int, int]
) -> list[int]:
    """Return the labels of a value along axis ``a``: reachable dims, then replicated.

    ``cut`` has in how many parts other axes cut its dims.
    """
    active, off = reach.active[a], g.offset[v]
    shape = g.values[v].shape
    return [
        d for d, n in enumerate(shape) if active[off + d] and fits(n, ranks, cut.get(d, 1), True)
    ] + [R]


class Boundary:
    """Builder of the boundary nodes of a problem.

    Parameters
    ----------
    problem : Assembly
    forced : Signature, optional
        What all calls of the function must share.
    """

    def __init__(self, problem: Assembly, forced: Signature | None) -> None:
        self.problem = problem
        self._forced = None if forced is None else forced[problem.a]

    def annotation(self, _: int, node: Node) -> None:
        """Add an annotation, fixed or free."""
        problem = self.problem
        if problem.off_mesh(node):
            problem.trivial(node)
            return
        label = node.pin[problem.axis.index] if node.pin is not None else None
        v = node.results[0]
        labels = [label] if label is not None else self._labels(v, self._may_be_partial(v))
        problem.add(
            problem.prices.forms.intern([OpStrategy((x,), (x,), None) for x in labels]), node
        )

    def move(self, _: int, node: Node) -> None:
        """Add a move to another mesh: it accepts any label, and each stored byte crosses once."""
        problem = self.problem
        source, target = node.operands[0], node.results[0]
        if problem.g.values[source].mesh == problem.mesh:
            items = [OpStrategy((x,), (R,), None) for x in self._labels(source, False)]
            problem.add(problem.prices.forms.intern(items), node)
        elif problem.g.values[target].mesh == problem.mesh:
            labels = self._labels(target, False)
            alternatives = problem.prices.forms.intern(
                [OpStrategy((R,), (x,), None) for x in labels]
            )
            variable = problem.add(alternatives, node)
            if variable >= 0:
                n, b, costs = problem.axis.size, problem.bytes[target], problem.prices.costs
                rows = [costs.scaled(costs.wire * (b // n if x >= 0 else b)) for x in labels]
                problem.model.put(problem.prices, (variable,), problem.prices.table([rows]))
        else:
            problem.trivial(node)

    def _may_be_partial(self, v: int) -> bool:
        return bool(self.problem.reach.partial[self.problem.a][v])

    def _labels(self, v: int, partial: bool) -> list[int]:
        """Return the labels of a boundary value: reachable dims, replicated, partial."""
        problem = self.problem
        g, cut = problem.g, problem.cut.get(v, {})
        return labels_on(g, problem.reach, v, problem.a, problem.axis.size, cut) + [P] * partial

    def params(self) -> None:
        """Add all parameters.

        Most have a single label: they are many, and cost a few lookups each.
        """
        problem = self.problem
        g, m, ends = problem.g, problem.model, dict[int, AxisEnd]()
        labels: Sequence[int | None] = problem.reach.param_labels(g, problem.axis, problem.a)
        if self._forced is not None:
            on_mesh = [g.values[v].mesh == problem.mesh for v in g.param_values]
            labels = [x if here else R for x, here in zip(self._forced[0], on_mesh)]
        for label in set(labels):
            if label is not None:
                ends[label] = (problem.prices.forms.ends([label], needs=False), -1)
        for v, label in zip(g.param_values, labels):
            problem.given[v] = label
        if None not in labels:
            m.ends += [ends[x] for x in labels if x is not None]
            return
        for k, label in zip(g.params, labels):
            if label is None:
                self._free_param(g.nodes[k])
            else:
                m.ends.append(ends[label])

    def _free_param(self, node: Node) -> None:
        problem = self.problem
        v = node.results[0]
        labels = self._labels(v, self._may_be_partial(v) and not problem.g.public)
        alternatives = problem.prices.forms.ends(labels, needs=False)
        variable = problem.add(alternatives, node)
        if variable >= 0 and problem.g.public:
            costs, n, b = problem.prices.costs, problem.axis.size, problem.bytes[v]
            rows = [costs.scaled(costs.hold * b // (n if x >= 0 else 1)) for x in labels]
            problem.model.put(problem.prices, (variable,), problem.prices.table([rows]))

    def result(self, k: int, node: Node) -> None:
        """Add a result of the function."""
        problem = self.problem
        v = node.operands[0]
        if v < 0 or problem.g.values[v].mesh != problem.mesh:
            labels = [R]
        elif self._forced is not None:
            labels = [self._forced[1][k - problem.g.rets[0]]]
        else:
            labels = self._labels(v, self._may_be_partial(v) and not problem.g.public)
        problem.add(problem.prices.forms.ends(labels, needs=True), node)
