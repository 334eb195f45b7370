# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Interns specialisations of functions, and computes the local sizes of their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from tvm_distir.core.propagation.graph.graph import Axis, Graph
from tvm_distir.core.propagation.solve.strategies import OpStrategy
from tvm_distir.support import memoized, reachable

from .decision import Instance
from .reach import ReachableAxes

LocalSizes = tuple[list[int], dict[int, dict[int, int]]]
"""Bytes of each value local to the other axes of its mesh, and how its dims are sharded by them."""


class Instances:
    """Instances of a sharding assignment, numbered in order of appearance.

    Parameters
    ----------
    axes : sequence of Axis
    reach : mapping of str to ReachableAxes
        The reachable axes of each graph.
    """

    def __init__(self, axes: Sequence[Axis], reach: Mapping[str, ReachableAxes]) -> None:
        self.axes, self.reach = axes, reach
        self._cache: dict[object, Instance] = {}
        self._columns: dict[tuple[OpStrategy, ...], int] = {}
        self._given_placements: dict[tuple[str, int], list[int]] = {}  # by graph and column

    def of(
        self,
        g: Graph,
        choice: dict[int, tuple[OpStrategy, ...]],
        kids: dict[int, Instance],
        columns: Mapping[int, int] = MappingProxyType({}),
    ) -> Instance:
        """Return the instance of a graph with these alternatives per axis and these callees.

        ``columns`` has the numbers of those of some axes (:attr:`.Instance.columns`).
        """
        numbers = {
            a: columns[a] if a in columns else self._columns.setdefault(c, len(self._columns))
            for a, c in sorted(choice.items())
        }
        key = (
            g.key,
            tuple(numbers.items()),
            tuple([(k, kid.number) for k, kid in sorted(kids.items())]),
        )
        instance = self._cache.get(key)
        if instance is None:
            labels = {a: self._given_by(g, c, numbers[a]) for a, c in choice.items()}
            instance = Instance(len(self._cache), g, choice, kids, numbers, labels)
            self._cache[key] = instance
        return instance

    def _given_by(self, g: Graph, column: Sequence[OpStrategy], number: int) -> list[int]:
        """Return :attr:`.Instance.given`, memoised."""
        labels = self._given_placements.get((g.key, number))
        if labels is None:
            labels = self._given_placements[g.key, number] = [
                column[k].gives[j] for k, j in g.producer
            ]
        return labels

    @memoized
    def without(self, inst: Instance, a: int) -> Instance:
        """Return an instance with axis ``a`` undecided again, in its callees too."""
        if a not in inst.choice:
            return inst
        choice = {b: c for b, c in inst.choice.items() if b != a}
        columns = {b: c for b, c in inst.columns.items() if b != a}
        kids = {k: self.without(kid, a) for k, kid in inst.kids.items()}
        return self.of(inst.graph, choice, kids, columns)

    def sizes(self, inst: Instance, axes: tuple[int, ...]) -> LocalSizes:
        """Return local bytes of each value over the mesh's other axes, and how its dims are split.

        An axis not decided yet is taken to shard whatever it can reach.
        """
        local = inst.local.get(axes)
        if local is not None:
            return local
        g = inst.graph
        sizes = [v.size_bytes for v in g.values]
        cut: dict[int, dict[int, int]] = {}
        for b, axis in enumerate(self.axes):
            if b in axes or axis.mesh != self.axes[axes[0]].mesh:
                continue
            labels, n = inst.given.get(b), axis.size
            if labels is None:  # what lies on another mesh, the axis does not reach
                reach = self.reach[g.key]
                sizes = [size // n if live else size for size, live in zip(sizes, reach.live[b])]
                continue
            for v, label in enumerate(labels):
                if label >= 0 and g.values[v].mesh == axis.mesh:
                    sizes[v] = -(-sizes[v] // n)
                    dims = cut.setdefault(v, {})
                    dims[label] = dims.get(label, 1) * n
        inst.local[axes] = (sizes, cut)
        return inst.local[axes]

    def value_bytes(self, inst: Instance, a: int) -> list[int]:
        """Return the bytes of each value, unsharded along axis ``a``, local to the others."""
        return self.sizes(inst, (a,))[0]

    def same_sizes(self, first: Instance, second: Instance, a: int) -> bool:
        """Return whether an axis has the same sizes in two instances, callees included."""

        def callees(pair: tuple[Instance, Instance]) -> Iterable[tuple[Instance, Instance]]:
            left, right = pair
            return [(kid, right.kids[k]) for k, kid in left.kids.items()] if left != right else ()

        pairs = reachable([(first, second)], callees)
        return all(self.sizes(left, (a,)) == self.sizes(right, (a,)) for left, right in pairs)


def called(kid: Instance, a: int) -> OpStrategy:
    """Return a call's labels along an axis, as given by the boundary of its function."""
    g, choice = kid.graph, kid.choice[a]
    needs = tuple([choice[p].gives[0] for p in g.params])
    return OpStrategy(needs, tuple([choice[r].needs[0] for r in g.rets]), None)
