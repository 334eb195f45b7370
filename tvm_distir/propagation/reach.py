# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What annotations reach: which dims an axis may shard, which values may be partial sums.

Dims that a rule's factor ties are one class (union-find, the smallest number is the root, so
no order matters). A private function's classes are joined at its calls, callees first; then
callers hand their axes down, callers first.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..ir import R
from ..ops import Rule
from .decision import Signature
from .graph import Axis, Graph, Node


@dataclass
class Reach:
    """Facts about one graph.

    Attributes
    ----------
    root : list of int
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

    root: list[int] = field(default_factory=list)
    seeds: dict[int, set[int]] = field(default_factory=dict)
    live: list[list[bool]] = field(default_factory=list)
    active: list[bytearray] = field(default_factory=list)
    mask: list[list[int]] = field(default_factory=list)
    partial: list[bytearray] = field(default_factory=list)
    fixed: list[dict[int, int | None]] = field(default_factory=list)
    held: list[dict[int, bool]] = field(default_factory=list)


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


class Reacher:
    """Computes :class:`Reach` for all graphs of a module.

    ``free``: every dim of a public function's parameters may be sharded where its annotation
    does not say otherwise.
    """

    def __init__(
        self,
        graphs: dict[str, Graph],
        order: Sequence[str],
        axes: Sequence[Axis],
        forced: Mapping[str, Signature] | None = None,
        free: bool = False,
    ) -> None:
        self.graphs, self.order, self.axes = graphs, order, axes
        self.free = free
        self._boundaries: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.forced: Mapping[str, Signature] = forced or {}
        self.result = {key: Reach() for key in order}

    def run(self) -> dict[str, Reach]:
        """Classes up, axes down, partial sums to a fixpoint, pinned parameters down."""
        for key in self.order:
            self._unify(self.graphs[key])
        for key in reversed(self.order):
            self._hand_down(self.graphs[key])
        for a in range(len(self.axes)):
            while any([self._flow_partial(self.graphs[k], a) for k in reversed(self.order)]):
                pass
        for key in reversed(self.order):
            self._fix_params(self.graphs[key])
        return self.result

    def _boundary(self, g: Graph, k: int) -> list[tuple[int, int]]:
        """(dim number in the caller, dim number in the callee) across call k."""
        found = self._boundaries.get((g.key, k))
        if found is None:
            node = g.nodes[k]
            h = self.graphs[node.callee]
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
                inner = self.result[node.callee]
                groups: dict[int, list[int]] = {}
                for x, y in self._boundary(g, k):
                    groups.setdefault(inner.root[y], []).append(x)
                for root, members in groups.items():
                    classes.join(members)
                    seeds += [(members[0], a) for a in sorted(inner.seeds.get(root, ()))]
                seeds += self._forced_seeds(g, node)
            if node.pin is not None:
                for a, axis in enumerate(self.axes):
                    label = node.pin[axis.index] if axis.mesh == node.mesh else None
                    if label is not None and label >= 0:
                        seeds.append((off[node.results[0]] + label, a))
        if self.free and g.public:
            seeds += self._free_seeds(g)
        reach = self.result[g.key]
        reach.root = [classes.find(x) for x in range(g.offset[-1])]
        for x, a in seeds:
            reach.seeds.setdefault(reach.root[x], set()).add(a)

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

    def _hand_down(self, g: Graph) -> None:
        reach = self.result[g.key]
        for k in g.calls:
            inner = self.result[g.nodes[k].callee]
            for x, y in self._boundary(g, k):
                axes = reach.seeds.get(reach.root[x], ())
                inner.seeds.setdefault(inner.root[y], set()).update(axes)
        bits = {root: sum(1 << a for a in axes) for root, axes in reach.seeds.items()}
        reached = [bits.get(root, 0) for root in reach.root]
        ruled = [(k, n, n.rule) for k, n in enumerate(g.nodes) if n.rule is not None]
        for a, axis in enumerate(self.axes):
            active = bytearray([x >> a & 1 for x in reached])
            for v, value in enumerate(g.values):
                if value.mesh != axis.mesh:
                    active[g.offset[v] : g.offset[v + 1]] = bytes(len(value.shape))
            reach.active.append(active)
            reach.live.append([1 in active[i:j] for i, j in itertools.pairwise(g.offset)])
            mask = [0] * len(g.nodes)
            for k, node, rule in ruled:
                mask[k] = self._factor_mask(g, node, rule, active)
            reach.mask.append(mask)
            reach.partial.append(bytearray(len(g.values)))
            reach.fixed.append({})
            reach.held.append({})

    @staticmethod
    def _factor_mask(g: Graph, node: Node, rule: Rule, active: bytearray) -> int:
        mask, off, slots = 0, g.offset, node.operands + node.results
        for i, tie in enumerate(rule.ties):
            for slot, d in tie:
                if slots[slot] >= 0:
                    mask |= active[off[slots[slot]] + d] << i
                    break
        return mask

    def _flow_partial(self, g: Graph, a: int) -> bool:
        """Mark what may be partial along axis a; True if a function boundary changed."""
        reach, axis, changed = self.result[g.key], self.axes[a], False
        partial, mask = reach.partial[a], reach.mask[a]
        for k, node in enumerate(g.nodes):
            if node.kind == "op" and node.rule is not None and node.mesh == axis.mesh:
                begins = mask[k] & node.rule.summing
                if not begins:
                    for i in node.rule.carrying:
                        v = node.operands[i]
                        if v >= 0 and partial[v]:
                            begins = 1
                            break
                if begins:
                    for v in node.results:
                        changed |= not partial[v] and not g.public
                        partial[v] = 1
            elif node.kind == "pin" and (
                node.mesh != axis.mesh or (node.pin is not None and node.pin[axis.index] is None)
            ):
                v = node.operands[0]
                if v >= 0 and partial[v]:
                    changed |= not partial[node.results[0]] and not g.public
                    partial[node.results[0]] = 1
            elif node.kind == "call":
                h = self.graphs[node.callee]
                inner = self.result[node.callee].partial[a]
                for v, w in zip(node.operands, h.param_values):
                    if v >= 0 and partial[v] and not inner[w]:
                        inner[w] = 1
                        changed = True
                for v, w in zip(node.results, h.result_values):
                    if w >= 0 and inner[w] and not partial[v]:
                        partial[v] = 1
                        changed = True
        return changed

    def _fix_params(self, g: Graph) -> None:
        """A parameter that every call gives in one pinned form has that form inside."""
        for k in g.calls:
            node = g.nodes[k]
            h, inner = self.graphs[node.callee], self.result[node.callee]
            for p, v in zip(h.params, node.operands):
                given = [(R, False)] * len(self.axes) if v < 0 else self._given(g, v)
                for (label, held), fixed, holds in zip(given, inner.fixed, inner.held):
                    if fixed.setdefault(p, label) != label:
                        fixed[p] = None
                    holds[p] = holds.get(p, True) and held

    def _given(self, g: Graph, v: int) -> list[tuple[int | None, bool]]:
        """Per axis, the pinned label of a value (None: not known) and whether it is held."""
        maker = g.producer[v][0]
        origin = g.origin[maker]
        source, reach = g.nodes[origin], self.result[g.key]
        if source.kind != "param":
            return [(None, False)] * len(self.axes)
        found: list[tuple[int | None, bool]] = []
        if source.pin is None:
            pairs = zip(reach.fixed, reach.held)
            found += [(fixed.get(origin), held.get(origin, False)) for fixed, held in pairs]
        else:
            for axis in self.axes:
                label = source.pin[axis.index] if source.mesh == axis.mesh else R
                found.append((label, source.stationary and label is not None))
        if origin != maker:  # the label is known only once the layout op is decided
            found = [(None, held) for _, held in found]
        return found
