# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Computes which dims an axis may shard, and which values may be partial sums.

Dims that rules tie form a class (:mod:`.unify`). Callers pass the axes of their classes to their
callees, callers first; partial sums flow to a fixpoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tvm_distir.core.ir.placement import P, R
from tvm_distir.core.propagation.graph.graph import Axis, Graph, Node, PinLabels
from tvm_distir.support import memoized

from .placed_module import PlacedModule
from .unify import DimClasses

Given = Mapping[str, Mapping[int, tuple[int | None, bool]]]
"""A label known beforehand (None: any), and whether it is held, per graph and parameter node."""


LayoutFacts = tuple[tuple[int | None, bool], ...]
"""A pinned label (None: not known) and whether it is held, per axis."""


@dataclass
class ReachableAxes:
    """Facts about the dims and partial sums that the axes reach in a graph.

    Attributes
    ----------
    root : sequence of int
        Class of each (value, dim).
    seeds : dict of int to set of int
        Axes annotated per class.
    live : list of list of bool
        ``live[a][v]``: axis a may shard value v.
    active : list of bytearray
        ``active[a][x]``: axis a may shard (value, dim) number x.
    mask : list of list of int
        ``mask[a][k]``: bit i when axis a reaches factor i of node k.
    partial : list of bytearray
        ``partial[a][v]``: v may be a partial sum along a.
    fixed : list of dict
        ``fixed[a][k]``: label of parameter node k when every call agrees on it, else None.
    held : list of dict
        ``held[a][k]``: parameter node k may not be communicated along a.
    """

    root: Sequence[int]
    seeds: dict[int, set[int]]
    live: list[list[bool]] = field(default_factory=list)
    active: list[bytearray] = field(default_factory=list)
    mask: list[list[int]] = field(default_factory=list)
    partial: list[bytearray] = field(default_factory=list)
    fixed: list[dict[int, int | None]] = field(default_factory=list)
    held: list[dict[int, bool]] = field(default_factory=list)

    @memoized
    def param_labels(self, g: Graph, axis: Axis, a: int) -> list[int | None]:
        """Return labels of the graph's parameters along axis ``a``; None where they are free."""
        fixed, labels = self.fixed[a], list[int | None]()
        for k, v in zip(g.params, g.param_values):
            pin = g.nodes[k].pin if g.public else None
            if g.values[v].mesh != axis.mesh:
                labels.append(R)
            else:
                labels.append(fixed.get(k) if pin is None else pin[axis.index])
        return labels


def hold_on(g: Graph, reach: ReachableAxes, axis: Axis, a: int, k: int) -> tuple[bool, bool]:
    """Return (pinned, stationary) along axis ``a`` for the value that node k produces.

    A layout op passes on the role of its operand: a transposed weight is the weight.
    """
    k = g.origin[k]
    node = g.nodes[k]
    if node.kind == "param":
        pinned = node.pin_on(axis) or reach.fixed[a].get(k) is not None
        return pinned, reach.held[a].get(k, False) or (g.public and pinned and node.stationary)
    if node.kind == "pin":
        pinned = node.pin_on(axis)
        return pinned, pinned and node.stationary
    return False, False


class ReachabilityWalk:
    """Computes :class:`ReachableAxes` for all graphs of a module.

    Parameters
    ----------
    module : PlacedModule
    unified : DimClasses
        The classes of the dims of the module; their seeds are taken over and extended.
    given_params : Given, optional
        Labels of parameters of functions that are not called.
    """

    def __init__(
        self, module: PlacedModule, unified: DimClasses, given_params: Given | None = None
    ) -> None:
        self.graphs, self.axes = module.graphs, module.axes
        self.callers_first = [module.graphs[key] for key in reversed(module.order)]
        self.given: Given = given_params or {}
        self._across = unified.across
        self._callers: dict[str, set[str]] = {key: set() for key in module.order}
        for g in self.callers_first:
            for k in g.calls:
                self._callers[g.nodes[k].callee].add(g.key)
        self._known_partial: dict[
            tuple[str, int], bytes
        ] = {}  # which results callers know to be partial
        self.result = {
            key: ReachableAxes(unified.root[key], unified.seeds[key]) for key in module.order
        }

    def run(self) -> dict[str, ReachableAxes]:
        """Pass axes down, partial sums to a fixpoint, and pinned parameters down."""
        for g in self.callers_first:
            self._hand_down(g)
        for key, params in self.given.items():
            reach = self.result[key]
            for fixed, stationary in zip(reach.fixed, reach.held):
                for k, (label, stays) in params.items():
                    stationary[k] = stays
                    if label is not None:
                        fixed[k] = label
        for a in range(len(self.axes)):
            pending = set(self.graphs)
            while pending:
                for g in self.callers_first:
                    if g.key in pending:
                        pending.discard(g.key)
                        pending |= self._flow_partial(g, a)
        for g in self.callers_first:
            self._fix_params(g)
        return self.result

    def _hand_down(self, g: Graph) -> None:
        reach = self.result[g.key]
        for k in g.calls:
            inner = self.result[g.nodes[k].callee]
            for x, inside in self._across[g.key, k]:
                axes = reach.seeds.get(reach.root[x])
                if axes:
                    inner.seeds.setdefault(inside, set()).update(axes)
        bits = {root: sum(1 << a for a in axes) for root, axes in reach.seeds.items()}
        reached = [bits.get(root, 0) for root in reach.root]
        mesh, foreign = -1, list[int]()
        for a, axis in enumerate(self.axes):
            active = bytearray([x >> a & 1 for x in reached])
            if axis.mesh != mesh:
                mesh = axis.mesh
                foreign = [v for v, value in enumerate(g.values) if value.mesh != mesh]
            for v in foreign:
                active[g.offset[v] : g.offset[v + 1]] = bytes(len(g.values[v].shape))
            reach.active.append(active)
            find = active.find
            reach.live.append([find(1, i, j) >= 0 for i, j in itertools.pairwise(g.offset)])
            reach.mask.append([0] * len(g.nodes))
            reach.partial.append(bytearray(len(g.values)))
            reach.fixed.append({})
            reach.held.append({})
        self._mask_factors(g, reach, reached)

    def _mask_factors(self, g: Graph, reach: ReachableAxes, reached: Sequence[int]) -> None:
        """Record per axis the factors of nodes that it reaches, by the first dim of each factor.

        ``reached`` has a bit per axis for each dim, those of other meshes too.
        """
        off, masks, count = g.offset, reach.mask, len(self.axes)
        axes_of = {bits: [a for a in range(count) if bits >> a & 1] for bits in set(reached)}
        for k, node in enumerate(g.nodes):
            if node.rule is None:
                continue
            slots = node.operands + node.results
            for i, tie in enumerate(node.rule.ties):
                for slot, d in tie:
                    v = slots[slot]
                    if v < 0:
                        continue
                    x = off[v] + d
                    for a in axes_of[reached[x]]:
                        if reach.active[a][x]:
                            masks[a][k] |= 1 << i
                    break

    def _flow_partial(self, g: Graph, a: int) -> set[str]:
        """Mark values that may be partial along axis a; return the graphs that this affects."""
        reach, axis, onward = self.result[g.key], self.axes[a], set[str]()
        partial, mask, first = reach.partial[a], reach.mask[a], len(g.params)
        for k, node in enumerate(g.nodes[first:], first):
            if node.kind == "op" and node.rule is not None and node.mesh == axis.mesh:
                begins = mask[k] & node.rule.summing
                for i in node.rule.carrying:
                    v = node.operands[i]
                    begins |= v >= 0 and partial[v]
                if begins:
                    for v in node.results:
                        partial[v] = 1
            elif node.kind == "pin" and (
                node.mesh != axis.mesh
                or (node.pin is not None and node.pin[axis.index] in (None, P))
            ):
                v = node.operands[0]
                if v >= 0 and partial[v]:
                    partial[node.results[0]] = 1
            elif node.kind == "call":
                onward |= self._flow_through(node, partial, a)
        gives = bytes([partial[w] for w in g.result_values if w >= 0])
        if gives != self._known_partial.get((g.key, a), bytes(len(gives))):
            self._known_partial[g.key, a] = gives
            onward |= self._callers[g.key]
        return onward

    def _flow_through(self, node: Node, partial: bytearray, a: int) -> set[str]:
        """Mark values at a call; return the graph of its function where that has new ones."""
        callee, inner = self.graphs[node.callee], self.result[node.callee].partial[a]
        onward: set[str] = set()
        for v, w in zip(node.operands, callee.param_values):
            if v >= 0 and partial[v] and not inner[w]:
                inner[w] = 1
                onward.add(callee.key)
        for v, w in zip(node.results, callee.result_values):
            if w >= 0 and inner[w]:
                partial[v] = 1
        return onward

    def _fix_params(self, g: Graph) -> None:
        """Fix a parameter's label where every call passes the same pinned label."""
        of_pins: dict[tuple[int, PinLabels, bool], LayoutFacts] = {}
        layouts: dict[tuple[str, int], set[LayoutFacts]] = {}
        for k in g.calls:
            node = g.nodes[k]
            for p, v in zip(self.graphs[node.callee].params, node.operands):
                layouts.setdefault((node.callee, p), set()).add(self._given(g, v, of_pins))
        for (callee, p), variants in layouts.items():
            inner = self.result[callee]
            for variant in variants:
                for (label, stationary), fixed, holds in zip(variant, inner.fixed, inner.held):
                    if fixed.setdefault(p, label) != label:
                        fixed[p] = None
                    holds[p] = holds.get(p, True) and stationary

    def _given(
        self, g: Graph, v: int, of_pins: dict[tuple[int, PinLabels, bool], LayoutFacts]
    ) -> LayoutFacts:
        """Return per axis the pinned label of a value (None: unknown) and whether it is held.

        ``of_pins`` has those of annotated parameters, and of stationary values: weights that may
        move along some axes are annotated twice.
        """
        if v < 0:
            return ((R, False),) * len(self.axes)
        maker = g.producer[v][0]
        origin = g.origin[maker]
        source = g.nodes[origin]
        if source.kind != "param" and not (source.kind == "pin" and source.stationary):
            return ((None, False),) * len(self.axes)
        if source.pin is None:
            reach = self.result[g.key]
            pairs = zip(reach.fixed, reach.held)
            result = tuple(
                [(fixed.get(origin), stays.get(origin, False)) for fixed, stays in pairs]
            )
        else:
            key = (source.mesh, source.pin, source.stationary)
            if key not in of_pins:
                labels = [source.pin[x.index] if source.mesh == x.mesh else R for x in self.axes]
                of_pins[key] = tuple([(x, key[2] and x is not None) for x in labels])
            result = of_pins[key]
        if origin != maker:  # the label is known only once the layout op is decided
            return tuple([(None, is_stationary) for _, is_stationary in result])
        return result
