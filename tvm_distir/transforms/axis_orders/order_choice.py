# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose the orders of axes with which the moves of a module send the fewest bytes.

From each order of the mesh axes that all dims may share, one dim after another (and all that is
tied to it) takes the order that costs least, until none changes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tvm_distir.core.ir import Labels, static_shape
from tvm_distir.core.ir.views import (
    MOST_ORDERED_AXES,
    Axes,
    Tiling,
    View,
    labels_on,
    ordered_axes,
)
from tvm_distir.core.ops import nominal
from tvm_distir.core.redistribution import Planner, ViewTransition
from tvm_distir.support import LoweringError

from .order_problem import Move, OrderProblem
from .ordered_dims import NONE, PlacedTensor

Orders = Mapping[int, Axes]
"""The axes of each root, from major to minor, where they differ from the module's."""

_PLANNER = Planner()
"""Its cache serves all modules, as the candidates of a search have most moves in common."""


class _Kind(NamedTuple):
    """Moves that cost the same where their dims have the same orders."""

    shape: tuple[int, ...]
    dtype: str
    base: View
    before: Tiling
    after: Tiling


class _Edge(NamedTuple):
    """Moves that cost the same whatever the orders are, with the roots of the dims of both ends."""

    kind: int
    before: tuple[int, ...]
    after: tuple[int, ...]


def tiles_of(tiles: Tiling, roots: tuple[int, ...], orders: Orders) -> Tiling:
    """Return tiles whose dims have the chosen orders."""
    dims = []
    for root, axes in zip(roots, tiles.dims, strict=True):
        chosen = orders.get(root, ())
        dims.append((*chosen, *(a for a in axes if a not in chosen)))  # those of one device last
    return Tiling(tuple(dims), tiles.partial)


class OrderChoice:
    """The choice of the orders of a module.

    Parameters
    ----------
    problem : OrderProblem
    """

    def __init__(self, problem: OrderProblem) -> None:
        self.problem = problem
        self._kinds: dict[_Kind, int] = {}
        self._edges: dict[_Edge, int] = {}
        self._counts: Counter[int] = Counter()
        self._known: dict[tuple[int, tuple[Axes | None, ...]], float] = {}
        self._planned_costs: dict[tuple[int, Tiling, Tiling], float] = {}
        for move in problem.moves:
            number = self._edges.setdefault(self._edge(move), len(self._edges))
            self._counts[number] += problem.runs[move.function]
        self._kind_list, self._edge_list = list(self._kinds), list(self._edges)
        self._of_root: dict[int, list[int]] = {}
        for edge, number in self._edges.items():
            for root in {*edge.before, *edge.after} - {NONE}:
                self._of_root.setdefault(root, []).append(number)

    def roots(self, leaf: PlacedTensor) -> tuple[int, ...]:
        """Return the root of each dim of a tensor, :data:`NONE` where it has no order."""
        return tuple(NONE if n == NONE else self.problem.dims.root(n) for n in leaf.dims)

    def run(self) -> dict[int, Axes]:
        """Return the chosen orders of the roots that differ from the module's."""
        stated, known = self.problem.dims.stated(), self.problem.dims.axes
        best = dict(stated)
        moved = [root for root in self.problem.dims.free() if root in self._of_root]
        free = {root: known[root] for root in moved if root not in stated}
        if free:
            widest = max(free.values(), key=len)
            starts = {tuple(sorted(axes)) for axes in free.values() if len(axes) == len(widest)}
            others = [p for axes in sorted(starts) for p in itertools.permutations(axes)]
            descents = [self._descend(free, x, stated) for x in dict.fromkeys((widest, *others))]
            best = min((best, *descents), key=self._total)
        return {root: axes for root, axes in best.items() if axes != known[root]}

    def _descend(self, free: Mapping[int, Axes], start: Axes, stated: Orders) -> dict[int, Axes]:
        """Return orders that no change of a single root improves."""
        rank = {axis: number for number, axis in enumerate(start)}
        orders = {
            root: tuple(sorted(axes, key=lambda a: rank.get(a, len(rank))))
            for root, axes in free.items()
        } | dict(stated)
        changed = True
        while changed:
            changed = False
            for root, axes in free.items():
                lowest, keep = self._around(root, orders), orders[root]
                for orders[root] in (axes, *itertools.permutations(axes)):
                    cost = self._around(root, orders)
                    if cost < lowest or (cost == lowest and orders[root] == axes != keep):
                        changed = changed or cost < lowest
                        lowest, keep = cost, orders[root]
                orders[root] = keep
        return orders

    def _around(self, root: int, orders: Orders) -> float:
        return sum(self._counts[n] * self._cost(n, orders) for n in self._of_root[root])

    def _total(self, orders: Orders) -> float:
        return sum(count * self._cost(n, orders) for n, count in self._counts.items())

    def _edge(self, move: Move) -> _Edge:
        source, target = move.source, move.target
        devices = math.prod(source.view.family[0])
        shape = static_shape(source.ty) or ()
        sample = tuple(n if isinstance(n, int) else nominal(n) * devices for n in shape)
        before = Tiling(source.tiles.dims, move.partial)
        kind = _Kind(sample, str(source.ty.tensor_ty.dtype), source.view, before, target.tiles)
        number = self._kinds.setdefault(kind, len(self._kinds))
        return _Edge(number, self.roots(source), self.roots(target))

    def _cost(self, number: int, orders: Orders) -> float:
        edge = self._edge_list[number]
        key = number, tuple([orders.get(root) for root in (*edge.before, *edge.after)])
        if key not in self._known:
            kind = self._kind_list[edge.kind]
            before = tiles_of(kind.before, edge.before, orders)
            after = tiles_of(kind.after, edge.after, orders)
            costs, ends = self._planned_costs, (edge.kind, before, after)
            if ends not in costs:
                costs[ends] = self._planned(kind, before, after)
            self._known[key] = costs[ends]
        return self._known[key]

    def _planned(self, kind: _Kind, before: Tiling, after: Tiling) -> float:
        """Return the cost of a move in bytes; infinite where only messages can make it."""
        base = kind.base.family
        common = ordered_axes(base, (before, after))
        if common is None:
            return math.inf
        ends = [ordered_axes(base, (tiles,)) for tiles in (before, after)]
        views = [kind.base.axes, *ends, common]
        if len(base[0]) <= MOST_ORDERED_AXES:
            views += itertools.permutations(range(len(base[0])))
        known = tuple(dict.fromkeys(view for view in views if view is not None))
        request = ViewTransition(kind.shape, kind.dtype, before, after, base, known)
        try:
            return _PLANNER.plan_views(request).cost
        except LoweringError:  # no steps within the memory of both ends
            return math.inf


def stated_view(leaf: PlacedTensor, tiles: Tiling) -> tuple[View, Labels]:
    """Return a view on which the tiles of a tensor can be stated, its own where that can.

    Returns
    -------
    view : View
    labels : tuple of int
        The labels of the tiles along its axes.
    """
    base = leaf.view.family
    views = [leaf.view, *(View(base, axes) for axes in [ordered_axes(base, (tiles,))] if axes)]
    stated = ((view, labels_on(view, tiles)) for view in views)
    return next((view, labels) for view, labels in stated if labels is not None)
