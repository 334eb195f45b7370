# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Adds the nodes of a problem: parameters, calls, annotations and results."""

from __future__ import annotations

from collections.abc import Callable

from tvm_distir.core.propagation import End, Node, OpStrategy

from .kernel_costs import arithmetic_type, in_place
from .sharding_problem import NO_STATES, Assembly, ShardingProblem


class NodeBuilder:
    """Builder of the nodes of a function.

    Parameters
    ----------
    net : Assembly
    net_of : callable
        Gives the net of a function that is called.
    """

    def __init__(self, net: Assembly, net_of: Callable[[str], ShardingProblem]) -> None:
        self.to, self.g, self.shared, self.net_of = net, net.g, net.shared, net_of

    def run(self) -> None:
        """Add all nodes in order, and record when they begin."""
        build = {
            "param": self._param,
            "op": self._op,
            "ret": self._result,
            "call": self._call,
            "pin": self._annotation,
        }
        net, now = self.to.net, 0
        for k, node in enumerate(self.g.nodes):
            net.begins.append(now)
            net.ends.append(build[node.kind](k, node))
            callee = net.callees.get(k)
            now += 1 if callee is None else callee[0].begins[-1]
        net.begins.append(now)
        net.put_edges(self.shared.store, self.to.costs)

    def _param(self, _: int, node: Node) -> End:
        v = node.results[0]
        partial = self.to.replicated if self.g.public else self.to.partial(v)
        matrix = self.to.layouts_of(v)
        return self.to.variable(self.shared.ends_of(_producer, matrix, partial, node.pin))

    def _result(self, k: int, node: Node) -> End:
        v = node.operands[0]
        if v < 0:
            return NO_STATES, -1
        matrix = self.to.layouts_of(v)
        if self.g.public:
            param = self.shared.updates.get(k - self.g.rets[0])
            if param is not None:
                strategies, variable = self.to.net.ends[self.g.params[param]]
                needs = [tuple(map(_consumer, layout)) for layout in strategies.results[0]]
                return self.shared.strategies.intern(needs), variable
        partial = self.to.replicated if self.g.public else self.to.partial(v)
        return self.to.variable(self.shared.ends_of(_consumer, matrix, partial, None))

    def _annotation(self, _: int, node: Node) -> End:
        v = node.results[0]
        partial = self.to.partial(v)
        matrix = self.to.layouts_of(v)
        return self.to.variable(self.shared.ends_of(_passing, matrix, partial, node.pin))

    def _op(self, _: int, node: Node) -> End:
        g, rule = self.g, node.rule
        if rule is None:
            return NO_STATES, -1
        ends = (*node.operands, *node.results)
        shapes = tuple([self.to.shapes[v] if v >= 0 else () for v in ends])
        partial = [
            sum(1 << i for i, v in enumerate(node.operands) if v >= 0 and pending[v])
            for pending in (self.to.reach.partial[a] for a in self.to.axes)
        ]
        dtype = arithmetic_type(g, node)
        return self.to.variable(
            *self.shared.ops.of(rule, dtype, shapes, tuple(partial), in_place(g, node))
        )

    def _call(self, k: int, node: Node) -> End:
        net, inner = self.to.net, self.net_of(node.callee)
        first = len(net.domains)
        net.domains += inner.domains
        for scope, table in inner.factors.items():
            net.factors[tuple([first + u for u in scope])] = table
        net.constant += inner.constant
        net.feasible = net.feasible and inner.feasible
        net.callees[k] = inner, first
        return NO_STATES, -1


def _producer(label: int) -> OpStrategy:
    """Return the strategy of a node that produces a value: a parameter."""
    return OpStrategy((), (label,), None)


def _consumer(label: int) -> OpStrategy:
    """Return the strategy of a node that consumes a value: a result."""
    return OpStrategy((label,), (), None)


def _passing(label: int) -> OpStrategy:
    """Return the strategy of a node that passes a value on unchanged: an annotation."""
    return OpStrategy((label,), (label,), None)
