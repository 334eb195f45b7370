# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The assignment problem of all axes at once, written down independently of the solution.

A node has one alternative per axis at a time: the product of its alternatives along each, less
the products that cut a dim into parts that do not come out even. Private functions are expanded
at each call; their parameters and results are nodes that hand on what they get. A value costs,
along each axis, the cheapest way from the form it is made in to all forms that are wanted, at the
size the other axes leave of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.core.propagation.joint_work import work
from tvm_distir.core.ir.placement import R
from tvm_distir.core.propagation.assignment import Propagator
from tvm_distir.core.propagation.decision import Decision, Instance
from tvm_distir.core.propagation.reach import hold_on
from tvm_distir.core.propagation.solve.strategies import fits
from tvm_distir.core.solver.problem import INFINITE

Combination = tuple[Any, ...]
"""One alternative (needs, gives, factor) per axis."""

MOST_COMBINATIONS = 600
MOST_WANTED = 6


class TooLarge(Exception):
    """The joint problem is not small."""


@dataclass
class Node:
    """A node of the expanded module: what it may be, what each choice costs, what was decided."""

    combinations: list[Combination]
    costs: list[int]
    decided: int


@dataclass
class Value:
    """A value: who makes it, who takes it, and what its conversions cost along each axis."""

    node: int
    result: int
    size_bytes: int
    held: list[tuple[bool, bool]]
    uses: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)


class Joint:
    """The joint problem of a one-mesh module, and the decision as one of its assignments.

    Parameters
    ----------
    solver : Propagator
    decision : Decision
        What the solver decided.
    entry : str
        The public function.
    """

    def __init__(self, solver: Propagator, decision: Decision, entry: str = "main") -> None:
        self.assignment, self.axes = solver.assignment, solver.module.axes
        self.cost_tables = self.assignment.cost_tables
        self.ranks = [axis.size for axis in self.axes]
        self.nodes: list[Node] = []
        self.values: list[Value] = []
        self._models: dict[str, list[Any]] = {}
        self._expand(decision.entries[entry], [])
        for value in self.values:
            if len(self._wanted_count(value)) > MOST_WANTED:
                raise TooLarge

    # the expanded graph ----------------------------------------------------------------

    def _undecided(self, key: str) -> Instance:
        g = self.assignment.module.graphs[key]
        kids = {k: self._undecided(g.nodes[k].callee) for k in g.calls}
        return self.assignment.instances.of(g, {}, kids)

    def _alternatives(self, key: str, k: int) -> list[tuple[Any, ...]]:
        """Alternatives of a node along each axis, while no axis is decided."""
        if key not in self._models:
            inst = self._undecided(key)
            self._models[key] = [
                self.assignment.solver((a,)).problem(inst) for a in range(len(self.axes))
            ]
        return [tuple(x for (x,) in model.ends[k][0].items) for model in self._models[key]]

    def _expand(self, inst: Instance, arguments: Sequence[int]) -> list[int]:
        """Add the nodes of an instance; ``arguments`` are values outside (none for an entry)."""
        g = inst.graph
        at: dict[int, int] = {}
        results: list[int] = []
        for k, node in enumerate(g.nodes):
            if node.kind == "call":
                kid = inst.kids[k]
                created = self._expand(kid, [at[v] if v >= 0 else -1 for v in node.operands])
                at.update(zip(node.results, created))
                continue
            operands = list(node.operands)
            inner = node.kind in ("param", "ret") and not g.public
            if node.kind == "param" and inner:
                operands = [arguments[g.params.index(k)]]
            else:
                operands = [at[v] if v >= 0 else -1 for v in operands]
            number = self._add(inst, k, bool(inner))
            places: dict[int, list[int]] = {}
            for i, v in enumerate(operands):
                if v >= 0:
                    places.setdefault(v, []).append(i)
            for v, where in places.items():
                self.values[v].uses.append((number, tuple(where)))
            for j, v in enumerate(node.results):
                at[v] = self._make(inst, k, number, j, v)
            if node.kind == "ret" and inner:
                source = node.operands[0]
                results.append(self._make(inst, k, number, 0, source))
        return results

    def _make(self, inst: Instance, k: int, number: int, result: int, v: int) -> int:
        g = inst.graph
        reach = self.assignment.reach[g.key]
        stored = [(False, False)] * len(self.axes)
        if g.nodes[k].kind != "ret":
            stored = [hold_on(g, reach, axis, a, k) for a, axis in enumerate(self.axes)]
        self.values.append(Value(number, result, g.values[v].size_bytes if v >= 0 else 0, stored))
        return len(self.values) - 1

    def _add(self, inst: Instance, k: int, inner: bool) -> int:
        g = inst.graph
        lists = self._alternatives(g.key, k)
        decided = tuple(inst.choice[a][k] for a in range(len(self.axes)))
        if math.prod(len(x) for x in lists) > MOST_COMBINATIONS:
            raise TooLarge
        free = [len(x) > 1 for x in lists]
        combinations = [c for c in itertools.product(*lists) if self._divides(inst, k, c, free)]
        costs = [self._cost(inst, k, c) for c in combinations]
        position = combinations.index(decided) if decided in combinations else -1
        if inner:  # hands on what it gets
            combinations = [tuple(_identity(x) for x in c) for c in combinations]
        self.nodes.append(Node(combinations, costs, position))
        return len(self.nodes) - 1

    def _divides(
        self, inst: Instance, k: int, combination: Combination, free: Sequence[bool]
    ) -> bool:
        """Whether dims come out even; what only axes without a choice cut may be as it is."""
        node, values = inst.graph.nodes[k], inst.graph.values
        walks: dict[int, list[int]] = {}
        for a, alternative in enumerate(combination):
            if alternative[2] is not None:
                walks.setdefault(alternative[2], []).append(self.ranks[a])
        for factor, parts in walks.items():
            f = node.rule.factors[factor]
            # What reads across shards, as a halo does, is cut by several axes in even parts only.
            if not _even(f.size, parts, f.uneven and (len(parts) == 1 or not f.adjacent)):
                return False
        if node.kind == "op":
            return True
        for side, numbers in ((0, node.operands), (1, node.results)):
            for i, v in enumerate(numbers):
                cuts: dict[int, list[int]] = {}
                for a, alternative in enumerate(combination):
                    if v >= 0 and alternative[side] and alternative[side][i] >= 0:
                        cuts.setdefault(alternative[side][i], []).append(a)
                for d, axes in cuts.items():
                    parts = [self.ranks[a] for a in axes]
                    chosen = any(free[a] for a in axes)
                    if chosen and not _even(values[v].shape[d], parts, True):
                        return False
        return True

    def _cost(self, inst: Instance, k: int, combination: Combination) -> int:
        """Work of an op; what holding a free parameter of an entry costs."""
        node, g, costs = inst.graph.nodes[k], inst.graph, self.cost_tables.costs
        if node.kind == "op" and node.rule is not None:
            return work(costs, node.rule, combination, self.ranks)
        if node.kind != "param" or not g.public:
            return 0
        total, whole = 0, g.values[node.results[0]].size_bytes
        for a, alternatives in enumerate(self._alternatives(g.key, k)):
            if len(alternatives) > 1:
                size = self.local_bytes(whole, [c[1][0] for c in combination], a)
                cut = self.ranks[a] if combination[a][1][0] >= 0 else 1
                total += costs.scaled(costs.hold * size // cut)
        return total

    # conversions -----------------------------------------------------------------------

    def local_bytes(self, size_bytes: int, labels: Sequence[int], a: int) -> int:
        """Bytes whole along axis ``a`` and local to the others."""
        for b, label in enumerate(labels):
            if b != a and label >= 0:
                size_bytes = -(-size_bytes // self.ranks[b])
        return size_bytes

    def conversion(self, value: Value, labels: Sequence[int], a: int, needs: frozenset[int]) -> int:
        """Cheapest way along axis ``a`` to hold all of ``needs`` of a value made as ``labels``."""
        if needs <= {labels[a]}:
            return 0
        pinned, stored = value.held[a]
        size = self.local_bytes(value.size_bytes, labels, a)
        size *= self.cost_tables.costs.move if pinned else 1
        return int(
            self.cost_tables.conversions.supply(labels[a], needs, size, self.ranks[a], stored)[0]
        )

    def _wanted_count(self, value: Value) -> set[int]:
        return {x for a in range(len(self.axes)) for x in self.wanted(value, a)}

    def wanted(self, value: Value, a: int) -> list[int]:
        """All labels that some alternative of a consumer wants along an axis."""
        return sorted(
            {
                c[a][0][i]
                for k, places in value.uses
                for c in self.nodes[k].combinations
                for i in places
            }
        )

    def cost(self, picked: Sequence[int]) -> int:
        """Cost of an assignment: one combination number per node."""
        chosen = [node.combinations[i] for node, i in zip(self.nodes, picked)]
        total = sum(node.costs[i] for node, i in zip(self.nodes, picked))
        for value in self.values:
            if not value.uses:
                continue
            labels = [c[1][value.result] for c in chosen[value.node]]
            for a in range(len(self.axes)):
                needs = frozenset(chosen[k][a][0][i] for k, places in value.uses for i in places)
                total += self.conversion(value, labels, a, needs)
        return min(total, INFINITE)

    def decided(self) -> list[int] | None:
        """The decision as an assignment; None where it is not one of the joint problem."""
        matches = [node.decided for node in self.nodes]
        return None if -1 in matches else matches

    def assignments(self) -> Iterator[tuple[int, ...]]:
        """All assignments, for the tiniest problems."""
        yield from itertools.product(*[range(len(n.combinations)) for n in self.nodes])


def _identity(alternative: Any) -> tuple[tuple[int, ...], tuple[int, ...], None]:
    labels = tuple(alternative[0]) or tuple(alternative[1]) or (R,)
    return labels, labels, None


def _even(size: Any, parts: Sequence[int], uneven: bool) -> bool:
    """Whether every one of the axes may cut what the others leave."""
    return all(fits(size, n, math.prod(parts) // n, uneven) for n in parts)
