# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Which dims rules tie: one class of dims per union, and the axes annotated on each.

Dims that a rule's factor ties are one class (union-find, the smallest number is the root, so
no order matters). A private function's classes are joined at its calls, callees first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .decision import Signature
from .graph import Graph, Node
from .module import PlacedModule


@dataclass(frozen=True)
class Unified:
    """Classes of the dims of all graphs of a module.

    Attributes
    ----------
    root : mapping of str to list of int
        Per graph, the class of each (value, dim).
    seeds : mapping of str to dict of int to set of int
        Per graph, the axes annotated per class.
    boundaries : mapping of (str, int) to list of (int, int)
        Per graph and call node: (dim number in the caller, dim number in the callee).
    """

    root: Mapping[str, list[int]]
    seeds: Mapping[str, dict[int, set[int]]]
    boundaries: Mapping[tuple[str, int], list[tuple[int, int]]]


class _UnionFind:
    """Union-find whose roots are the smallest members."""

    def __init__(self, count: int) -> None:
        self.parent = list(range(count))

    def find(self, x: int) -> int:
        parent = self.parent
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    def join(self, members: Sequence[int]) -> None:
        roots = [self.find(x) for x in members]
        low = min(roots)
        for x in roots:
            self.parent[x] = low


class Unifier:
    """Computes :class:`Unified`.

    Parameters
    ----------
    module : PlacedModule
    forced : mapping of str to Signature, optional
        What all calls of a graph must share; it counts as annotations at the calls.
    free : bool
        Whether every dim of a public function's parameters may be sharded where its annotation
        does not say otherwise.
    """

    def __init__(
        self,
        module: PlacedModule,
        forced: Mapping[str, Signature] | None = None,
        free: bool = False,
    ) -> None:
        self.module, self.axes, self.free = module, module.axes, free
        self.forced: Mapping[str, Signature] = forced or {}
        self._root: dict[str, list[int]] = {}
        self._seeds: dict[str, dict[int, set[int]]] = {}
        self._boundaries: dict[tuple[str, int], list[tuple[int, int]]] = {}

    def run(self) -> Unified:
        """Classes and seeds of every graph, callees first."""
        for key in self.module.order:
            self._unify(self.module.graphs[key])
        return Unified(self._root, self._seeds, self._boundaries)

    def _boundary(self, g: Graph, k: int) -> list[tuple[int, int]]:
        """(dim number in the caller, dim number in the callee) across call k."""
        node = g.nodes[k]
        h = self.module.graphs[node.callee]
        pairs = [*zip(node.operands, h.param_values), *zip(node.results, h.result_values)]
        found = self._boundaries[g.key, k] = [
            (g.offset[v] + d, h.offset[w] + d)
            for v, w in pairs
            if v >= 0 and w >= 0
            for d in range(len(g.values[v].shape))
        ]
        return found

    def _unify(self, g: Graph) -> None:
        classes, seeds = _UnionFind(g.offset[-1]), []
        off = g.offset
        for k, node in enumerate(g.nodes):
            if node.kind == "op" and node.rule is not None:
                slots = node.operands + node.results
                for tie in node.rule.ties:
                    tied = [off[slots[i]] + d for i, d in tie if slots[i] >= 0]
                    if len(tied) > 1:
                        classes.join(tied)
            elif node.kind in ("pin", "move"):
                v, w = node.operands[0], node.results[0]
                if v >= 0:
                    for d in range(len(g.values[w].shape)):
                        classes.join([off[v] + d, off[w] + d])
            elif node.kind == "call":
                inner, inside = self._root[node.callee], self._seeds[node.callee]
                groups: dict[int, list[int]] = {}
                for x, y in self._boundary(g, k):
                    groups.setdefault(inner[y], []).append(x)
                for root, members in groups.items():
                    classes.join(members)
                    seeds += [(members[0], a) for a in sorted(inside.get(root, ()))]
                seeds += self._forced_seeds(g, node)
            if node.pin is not None:
                for a, axis in enumerate(self.axes):
                    label = node.pin[axis.index] if axis.mesh == node.mesh else None
                    if label is not None and label >= 0:
                        seeds.append((off[node.results[0]] + label, a))
        if self.free and g.public:
            seeds += self._free_seeds(g)
        own = self._root[g.key] = [classes.find(x) for x in range(g.offset[-1])]
        found: dict[int, set[int]] = {}
        for x, a in seeds:
            found.setdefault(own[x], set()).add(a)
        self._seeds[g.key] = found

    def _free_seeds(self, g: Graph) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for node in (g.nodes[k] for k in g.params):
            v = node.results[0]
            for a, axis in enumerate(self.axes):
                if axis.mesh == g.values[v].mesh and not node.pin_on(axis):
                    found += [(x, a) for x in range(g.offset[v], g.offset[v + 1])]
        return found

    def _forced_seeds(self, g: Graph, node: Node) -> list[tuple[int, int]]:
        """A signature that all calls must share counts as annotations at the calls."""
        signature = self.forced.get(node.callee)
        found: list[tuple[int, int]] = []
        for a, (params, results) in enumerate(signature or ()):
            ends = (*zip(node.operands, params), *zip(node.results, results))
            found += [(g.offset[v] + x, a) for v, x in ends if v >= 0 and x >= 0]
        return found
