# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Finds how a value gets from its produced placement to all placements that are needed."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tvm_distir.core.ir.placement import P, R

from .cost import Conversions

Layout = tuple[int, ...]


class ReshardPath:
    """Sources of every placement in which a value is needed.

    Along each axis the cheapest supply is a tree rooted at the produced label; a placement over all
    axes comes from the nearest available form whose labels are on its paths to the root.

    Parameters
    ----------
    conversions : sequence of Conversions
        The conversions along each axis of the value's mesh.
    produced : tuple of int
        Labels the producer gives, per axis of the value's mesh.
    targets : sequence of tuple of int
        Placements the consumers want, in program order.
    pending : collection of int
        Positions whose partial sum comes from the producer's reduction.
    sizes : sequence of int
        Bytes of the value whole along each axis, local to the others.
    ranks : sequence of int
        Devices per axis.
    """

    def __init__(
        self,
        conversions: Sequence[Conversions],
        produced: Layout,
        targets: Sequence[Layout],
        pending: Sequence[int],
        sizes: Sequence[int],
        ranks: Sequence[int],
    ) -> None:
        self.settled = False
        self.parents: list[dict[int, int]] = []
        complete = list(produced)
        # Axes that shard a value which was replicated or partial: a sum along another axis is
        # left to a single redistribution then, which reduces fewer bytes.
        cut = {
            i
            for layout in targets
            for i, (have, label) in enumerate(zip(produced, layout))
            if have < 0 <= label
        }
        for i, have in enumerate(produced):
            needs = frozenset(layout[i] for layout in targets)
            _, steps = conversions[i].supply(have, needs, sizes[i], ranks[i])
            parents = {want: source for source, want in steps}
            if have == P and i in pending and all(s != P or w == R for s, w in steps):
                if P not in needs and not cut - {i}:
                    complete[i] = R
                    parents = {w: s for w, s in parents.items() if w != R}
            self.parents.append(parents)
        self.root: Layout = tuple(complete)
        self.layouts = self._with_waypoints(dict.fromkeys([self.root, *targets]))

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def at_home(cls, produced: Layout) -> ReshardPath:
        """Return the route of a value that all consumers take as it is produced."""
        route = cls.__new__(cls)
        route.parents = [{}] * len(produced)
        route.root, route.layouts = produced, [produced]
        route.settled = True
        return route

    def _chain(self, axis: int, label: int) -> list[int]:
        chain, parents = [label], self.parents[axis]
        while label in parents and label != self.root[axis]:
            label = parents[label]
            chain.append(label)
        return chain

    def _with_waypoints(self, layouts: dict[Layout, None]) -> list[Layout]:
        """Add placements through which several needed placements are reached."""
        passed: dict[Layout, int] = {}
        for layout in layouts:
            for i, label in enumerate(layout):
                for middle in self._chain(i, label)[1:-1]:
                    through = (*layout[:i], middle, *layout[i + 1 :])
                    passed[through] = passed.get(through, 0) + 1
        return [*layouts, *[f for f, n in passed.items() if n > 1 and f not in layouts]]

    def source(self, layout: Layout) -> Layout:
        """Return the placement from which ``layout`` is made; itself for the root."""
        if layout == self.root:
            return layout
        chains = [self._chain(i, label) for i, label in enumerate(layout)]
        best, nearest = self.root, None
        for other in self.layouts:
            if other == layout or any(x not in c for x, c in zip(other, chains)):
                continue
            closeness = -sum(c.index(x) for x, c in zip(other, chains))
            if nearest is None or closeness > nearest:
                best, nearest = other, closeness
        return best
