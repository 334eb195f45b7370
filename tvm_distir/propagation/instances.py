# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Specialisations of functions, each once, and how large their values are on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .decision import Instance
from .graph import Axis, Graph
from .reach import Reach
from .solve import Alternative

LocalSizes = tuple[list[int], dict[int, dict[int, int]]]
"""Bytes of each value local to the other axes of its mesh, and how its dims are cut by them."""


class Instances:
    """The instances of one labelling, numbered as they are met.

    Parameters
    ----------
    axes : sequence of Axis
    reach : mapping of str to Reach
        Per graph.
    """

    def __init__(self, axes: Sequence[Axis], reach: Mapping[str, Reach]) -> None:
        self.axes, self.reach = axes, reach
        self._known: dict[object, Instance] = {}

    def of(
        self, g: Graph, choice: dict[int, tuple[Alternative, ...]], kids: dict[int, Instance]
    ) -> Instance:
        """The instance of a graph with these alternatives per axis, and these callees."""
        key = (
            g.key,
            tuple(sorted(choice.items())),
            tuple((k, kid.number) for k, kid in sorted(kids.items())),
        )
        if key not in self._known:
            self._known[key] = Instance(len(self._known), g, choice, kids)
        return self._known[key]

    def without(self, inst: Instance, a: int) -> Instance:
        """An instance with axis ``a`` open again, in its callees too."""
        if a not in inst.choice:
            return inst
        choice = {b: c for b, c in inst.choice.items() if b != a}
        kids = {k: self.without(kid, a) for k, kid in inst.kids.items()}
        return self.of(inst.graph, choice, kids)

    def sizes(self, inst: Instance, a: int) -> LocalSizes:
        """Bytes of each value local to the other axes of its mesh, and how its dims are cut.

        An axis not decided yet is taken to shard whatever it can reach.
        """
        if a in inst.local:
            return inst.local[a]
        g, reach = inst.graph, self.reach[inst.graph.key]
        sizes = [v.size_bytes for v in g.values]
        cut: dict[int, dict[int, int]] = {}
        for b, axis in enumerate(self.axes):
            if b == a or axis.mesh != self.axes[a].mesh:
                continue
            choice = inst.choice.get(b)
            for v, value in enumerate(g.values):
                if value.mesh != axis.mesh:
                    continue
                if choice is None:
                    if reach.live[b][v]:
                        sizes[v] //= axis.size
                    continue
                k, j = g.producer[v]
                label = choice[k].gives[j]
                if label >= 0:
                    sizes[v] = -(-sizes[v] // axis.size)
                    dims = cut.setdefault(v, {})
                    dims[label] = dims.get(label, 1) * axis.size
        inst.local[a] = (sizes, cut)
        return inst.local[a]

    def value_bytes(self, inst: Instance, a: int) -> list[int]:
        """Bytes of each value, whole along axis ``a``, local to the others."""
        return self.sizes(inst, a)[0]

    def same_sizes(self, one: Instance, two: Instance, a: int) -> bool:
        """Whether an axis finds the same sizes in two instances, callees included."""
        if one is two:
            return True
        return self.sizes(one, a) == self.sizes(two, a) and all(
            self.same_sizes(one.kids[k], two.kids[k], a) for k in one.kids
        )
