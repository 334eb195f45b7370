# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Groups dims that rules tie into classes, with the axes annotated on each class.

Dims that a rule's factor ties form a class (the smallest number is the root, so no order
matters). A private function's classes are joined at its calls, callees first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm_distir.core.propagation.graph.graph import Graph, Node, PinLabels, has_size
from tvm_distir.core.rewriting.native.union_find import union_find
from tvm_distir.support import memoized

from .decision import Signature
from .placed_module import PlacedModule

Tie = Sequence[tuple[int, int]]
"""(Slot, dim) pairs of a class."""


@dataclass(frozen=True)
class DimClasses:
    """Classes of the dims of all graphs of a module.

    Attributes
    ----------
    root : mapping of str to sequence of int
        The class of each (value, dim), per graph.
    seeds : mapping of str to dict of int to set of int
        The axes annotated on each class, per graph.
    across : mapping of (str, int) to list of (int, int)
        The classes of the callee that a call ties, per graph and call node: a dim number in the
        caller, and the class.
    """

    root: Mapping[str, Sequence[int]]
    seeds: Mapping[str, dict[int, set[int]]]
    across: Mapping[tuple[str, int], list[tuple[int, int]]]


def _tied(g: Graph, slots: Sequence[int], tie: Tie) -> list[int]:
    """Return the dim numbers in a graph that a node on values (``slots``) ties."""
    off = g.offset
    dims = [(slots[i], d) for i, d in tie]
    return [off[v] + d for v, d in dims if v >= 0 and off[v] + d < off[v + 1]]


def _sized_dims(g: Graph, v: int) -> list[int]:
    """Return the dim numbers of a value that have sizes."""
    return [g.offset[v] + d for d, n in enumerate(g.values[v].shape) if has_size(n)]


class DimUnifier:
    """Computes :class:`DimClasses`.

    Parameters
    ----------
    module : PlacedModule
    forced : mapping of str to Signature, optional
        The signature that all calls of a graph must share; it counts as annotations at the calls.
    free : bool
        Whether every dim of a public function's parameters may be sharded where its annotation
        does not say otherwise.
    complete : bool
        Whether every dim of every value may be sharded.
    """

    def __init__(
        self,
        module: PlacedModule,
        forced: Mapping[str, Signature] | None = None,
        free: bool = False,
        complete: bool = False,
    ) -> None:
        self.module, self.axes, self.free, self.complete = module, module.axes, free, complete
        self.forced: Mapping[str, Signature] = forced or {}
        self._root: dict[str, Sequence[int]] = {}
        self._seeds: dict[str, dict[int, set[int]]] = {}
        self._ties: dict[str, list[tuple[int, Tie]]] = {}
        self._across: dict[tuple[str, int], list[tuple[int, int]]] = {}

    def run(self) -> DimClasses:
        """Compute classes and seeds of every graph, callees first."""
        for key in self.module.order:
            self._unify(self.module.graphs[key])
        return DimClasses(self._root, self._seeds, self._across)

    def _tied_outside(self, g: Graph) -> list[tuple[int, Tie]]:
        """Return the classes that parameters and results have dims of, with these dims.

        Slots are the parameters, then the results.
        """
        root, groups = self._root[g.key], dict[int, list[tuple[int, int]]]()
        for slot, v in enumerate((*g.param_values, *g.result_values)):
            if v >= 0:
                for d, dim_class in enumerate(root[g.offset[v] : g.offset[v + 1]]):
                    groups.setdefault(dim_class, []).append((slot, d))
        return list(groups.items())

    @memoized
    def _marked(self, pin: PinLabels, mesh: int) -> list[tuple[int, int]]:
        """Return the (dim, axis) pairs that an annotation asks for."""
        labels = [(pin[axis.index], a) for a, axis in enumerate(self.axes) if axis.mesh == mesh]
        return [(x, a) for x, a in labels if x is not None and x >= 0]

    def _unify(self, g: Graph) -> None:
        groups, seeds = list[int](), list[tuple[int, int]]()
        off = g.offset
        for k, node in enumerate(g.nodes):
            if node.pin is not None:
                first = off[node.results[0]]
                seeds += [(first + label, a) for label, a in self._marked(node.pin, node.mesh)]
            if node.kind == "op" and node.rule is not None:
                slots = node.operands + node.results
                for tie in node.rule.ties:
                    tied = [off[slots[i]] + d for i, d in tie if slots[i] >= 0]
                    if len(tied) > 1:
                        groups += (len(tied), *tied)
            elif node.kind in ("pin", "move") and node.operands[0] >= 0:
                v, w = node.operands[0], node.results[0]
                for d in range(len(g.values[w].shape)):
                    groups += (2, off[v] + d, off[w] + d)
            elif node.kind == "call":
                self._unify_call(g, k, groups, seeds)
        if self.complete:
            seeds += self._all_seeds(g)
        elif self.free and g.public:
            seeds += self._free_seeds(g)
        roots = self._root[g.key] = union_find(g.offset[-1], groups)
        axes_of_root: dict[int, set[int]] = {}
        for x, a in seeds:
            axes_of_root.setdefault(roots[x], set()).add(a)
        self._seeds[g.key] = axes_of_root
        if not g.public:
            self._ties[g.key] = self._tied_outside(g)

    def _unify_call(
        self, g: Graph, k: int, groups: list[int], seeds: list[tuple[int, int]]
    ) -> None:
        """Add the groups and seeds of a call, and note the dims that it ties to its function's."""
        node = g.nodes[k]
        slots, inside = node.operands + node.results, self._seeds[node.callee]
        across = self._across[g.key, k] = []
        for root, outside in self._ties[node.callee]:
            tied = _tied(g, slots, outside)
            if tied:
                groups += (len(tied), *tied)
                across.append((tied[0], root))
                seeds += [(tied[0], a) for a in inside.get(root, ())]
        seeds += self._forced_seeds(g, node)

    def _free_seeds(self, g: Graph) -> list[tuple[int, int]]:
        seeds: list[tuple[int, int]] = []
        for node in (g.nodes[k] for k in g.params):
            v = node.results[0]
            for a, axis in enumerate(self.axes):
                if axis.mesh == g.values[v].mesh and not node.pin_on(axis):
                    seeds += [(x, a) for x in _sized_dims(g, v)]
        return seeds

    def _all_seeds(self, g: Graph) -> list[tuple[int, int]]:
        """Seed every axis on every dim of the values on its mesh."""
        seeds: list[tuple[int, int]] = []
        for v, value in enumerate(g.values):
            axes = [a for a, axis in enumerate(self.axes) if axis.mesh == value.mesh]
            seeds += [(x, a) for x in _sized_dims(g, v) for a in axes]
        return seeds

    def _forced_seeds(self, g: Graph, node: Node) -> list[tuple[int, int]]:
        """Seed a signature that all calls must share, as annotations at the calls."""
        signature = self.forced.get(node.callee)
        seeds: list[tuple[int, int]] = []
        for a, (params, results) in enumerate(signature or ()):
            ends = (*zip(node.operands, params), *zip(node.results, results))
            seeds += [(g.offset[v] + x, a) for v, x in ends if v >= 0 and x >= 0]
        return seeds
