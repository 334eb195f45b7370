# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Builds the sharding problem of a function along an axis: nodes, then edges between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm_distir.core.ops.factor import Rule
from tvm_distir.core.propagation.decision import Instance, Signature
from tvm_distir.core.propagation.graph.graph import Node
from tvm_distir.core.propagation.reach import ReachableAxes

from .alternatives import Alternatives, OpStrategy
from .assembly import NO_END, Assembly
from .boundary import Boundary
from .edges import Edges
from .problem import AxisProblem, AxisSummary
from .source import TableSource


class Builder:
    """Builder of the problem of an instance along an axis.

    Parameters
    ----------
    prices : TableSource
    inst : Instance
    a : int
        The axis.
    reach : ReachableAxes
        Of the instance's graph.
    sizes : (list of int, dict)
        Bytes of each value local to the other axes, and how its dims are sharded by them.
    summary_of : callable
        Gives the summary of the function that a call node calls.
    forced : Signature, optional
        What all calls of the function must share.
    """

    def __init__(
        self,
        prices: TableSource,
        inst: Instance,
        a: int,
        reach: ReachableAxes,
        sizes: tuple[list[int], dict[int, dict[int, int]]],
        summary_of: Callable[[int], AxisSummary],
        forced: Signature | None = None,
    ) -> None:
        self.problem = Assembly(prices, inst.graph, a, reach, sizes)
        self.boundary = Boundary(self.problem, forced)
        self.edges = Edges(self.problem)
        self.summary_of = summary_of
        mesh = self.problem.mesh
        siblings = [b for b, axis in enumerate(prices.axes) if axis.mesh == mesh and b != a]
        self.decided = [(prices.axes[b].size, inst.choice[b]) for b in siblings if b in inst.choice]
        self.known = tuple([b in inst.choice for b in siblings])
        count = len(inst.graph.nodes)
        columns = [choice for _, choice in self.decided]
        self._chosen = list(zip(*columns)) if columns else [()] * count  # per node
        self._open: list[tuple[int, ...]] = [()] * count
        for b in siblings:
            if b not in inst.choice:
                size, mask = prices.axes[b].size, reach.mask[b]
                self._open = [(*x, size) if m else x for x, m in zip(self._open, mask)]
        self._mask, self._pending = reach.mask[a], reach.partial[a]

    def run(self) -> AxisProblem:
        """Add nodes, parameters before all others, then the edges between them."""
        problem, boundary = self.problem, self.boundary
        g, first = problem.g, len(problem.g.params)
        build = {
            "ret": boundary.result,
            "call": self._call,
            "pin": boundary.annotation,
            "move": boundary.move,
        }
        boundary.params()
        rows = zip(g.nodes[first:], self._mask[first:], self._chosen[first:], self._open[first:])
        for k, (node, mask, decided, undecided) in enumerate(rows, first):
            if node.kind == "op":
                self._op(node, mask, decided, undecided)
            else:
                build[node.kind](k, node)
        self.edges.run()
        return problem.model

    def _op(
        self, node: Node, mask: int, decided: tuple[OpStrategy, ...], undecided: tuple[int, ...]
    ) -> None:
        """Add an op, of which the axis reaches the factors of a mask."""
        problem, rule, partial = self.problem, node.rule, 0
        if rule is None or node.mesh != problem.mesh:
            problem.trivial(node)
            return
        if rule.carrying:
            pending, operands = self._pending, node.operands
            for i in rule.carrying:
                v = operands[i]
                if v >= 0 and pending[v]:
                    partial |= 1 << i
        if not mask and not partial:
            problem.trivial(node)
            return
        key = (problem.a, self.known, id(rule), mask, partial, decided, undecided)
        op_tables = problem.prices.ops.get(key)
        if op_tables is None:
            op_tables = problem.prices.ops[key] = self._op_tables(
                rule, mask, partial, decided, undecided
            )
        alternatives, table = op_tables
        if table is None:
            problem.add(alternatives, node)
            return
        m, times = problem.model, problem.g.repeat
        variable = len(m.domains)
        m.domains.append(len(alternatives.items))
        m.ends.append((alternatives, variable))
        m.factors[variable,], low = table if times == 1 else problem.prices.times(table, times)
        m.constant += low

    def _op_tables(
        self,
        rule: Rule,
        mask: int,
        partial: int,
        decided: Sequence[OpStrategy],
        undecided: Sequence[int],
    ) -> tuple[Alternatives, tuple[int, int] | None]:
        """Return the strategies of an op and, where there are several, the table of its work."""
        problem = self.problem
        sizes = [n for n, _ in self.decided]
        taken: dict[int, int] = {}
        for n, chosen in zip(sizes, decided):
            if mask and chosen.factor is not None:
                taken[chosen.factor] = taken.get(chosen.factor, 1) * n
        alternatives = problem.prices.forms.of_rule(rule, problem.axis.size, mask, partial, taken)
        if len(alternatives) == 1:
            return alternatives, None
        others = (
            *[(n, x.needs + x.gives, x.factor is not None) for n, x in zip(sizes, decided)],
            *[(n, None, True) for n in undecided],
        )
        return alternatives, problem.prices.work(rule, alternatives, problem.axis.size, others)

    def _call(self, k: int, node: Node) -> None:
        problem, summary = self.problem, self.summary_of(k)
        problem.model.splice(problem.prices, k, summary)
        for v, (alts, u) in zip(node.results, summary.rets):
            if u < 0:
                problem.given[v] = alts.gives[0][0]
        problem.model.ends.append(NO_END)
