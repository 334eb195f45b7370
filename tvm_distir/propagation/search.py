# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Propagation along one axis again and again: of the same module, from weights instead of a plan.

What stays the same is kept: the classes of dims that rules tie, what given labels reach, and the
structure of the labelling problem (:mod:`.sketch`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from tvm import ir

from ..ir import R
from .decision import Decision, Instance
from .driver import Propagator
from .graph import Axis, Graph, divisible
from .reach import Reach, Reacher
from .sketch import Sketch, sketched, structure
from .solve import AxisProblem, Conversions, Costs, Forms, PriceTables

Labels = dict[str, dict[int, int]]
"""Per public function: label of each weight, by its flat number among the parameters."""

Asked = Mapping[str, Mapping[int, int | None]]
"""Per public function: label of each weight, or None for any."""

Stored = Mapping[str, Collection[int]]
"""Per public function: weights that lie cut, and are gathered where they are used."""

NOTHING: Stored = {}


@dataclass(frozen=True)
class _Unified:
    """What all runs of a reacher share: classes of dims, seeds of annotations, boundaries."""

    root: Mapping[str, list[int]]
    seeds: Mapping[str, Mapping[int, set[int]]]
    boundaries: dict[tuple[str, int], list[tuple[int, int]]]

    @classmethod
    def of(cls, graphs: dict[str, Graph], order: Sequence[str], axes: Sequence[Axis]) -> _Unified:
        """Work them out once."""
        plain = Reacher(graphs, order, axes)
        for key in order:
            plain._unify(graphs[key])
        root = {key: found.root for key, found in plain.result.items()}
        seeds = {key: found.seeds for key, found in plain.result.items()}
        return cls(root, seeds, plain._boundaries)


class _Seeds(Reacher):
    """Reach from weights: any dim (None) or the chosen one; other parameters are whole.

    With ``parts`` the values that follow from other parameters may be sharded as well, where
    that divides a dim of the parameter. ``stored`` names weights that may be communicated.
    """

    def __init__(
        self,
        graphs: dict[str, Graph],
        order: Sequence[str],
        axes: Sequence[Axis],
        known: _Unified,
        asked: Asked,
        stored: Stored,
        parts: int = 0,
    ) -> None:
        super().__init__(graphs, order, axes)
        self.asked, self.stored, self.parts = asked, stored, parts
        self._known, self._boundaries = known, known.boundaries

    def _unify(self, g: Graph) -> None:
        reach = self.result[g.key]
        reach.root = self._known.root[g.key]
        reach.seeds = {root: set(axes) for root, axes in self._known.seeds[g.key].items()}
        for k in g.calls:
            inner = self.result[g.nodes[k].callee]
            for x, y in self._boundary(g, k) if inner.seeds else ():
                axes = inner.seeds.get(inner.root[y])
                if axes:
                    reach.seeds.setdefault(reach.root[x], set()).update(axes)
        for x in self._asked_dims(g):
            reach.seeds.setdefault(reach.root[x], set()).add(0)

    def _asked_dims(self, g: Graph) -> list[int]:
        """Dims of parameters that may be sharded."""
        found: list[int] = []
        asked = self.asked.get(g.key)
        for k in g.params if asked is not None else ():
            v = g.nodes[k].results[0]
            shape = g.values[v].shape
            if asked is None or k not in asked:
                dims = [d for d, n in enumerate(shape) if self.parts and divisible(n, self.parts)]
            else:
                label = asked[k]
                dims = [*range(len(shape))] if label is None else [label] * (label >= 0)
            found += [g.offset[v] + d for d in dims]
        return found

    def _hand_down(self, g: Graph) -> None:
        super()._hand_down(g)
        if g.key not in self.asked:
            return
        reach, asked = self.result[g.key], self.asked[g.key]
        stored = self.stored.get(g.key, ())
        for k in g.params:
            label = asked.get(k, R)
            reach.held[0][k] = k in asked and k not in stored
            if label is not None:
                reach.fixed[0][k] = label


class Search(Propagator):
    """A propagation along one axis whose seeds are weights.

    Parameters
    ----------
    mod : IRModule
        At level 1.
    axis : Axis
    settling : Costs
        Prices asked for often: what is made with them is kept.
    """

    def __init__(
        self,
        mod: ir.IRModule,
        axis: Axis,
        settling: Costs,
    ) -> None:
        self._settling, self._forms = settling, Forms()
        self._kept: PriceTables | None = None
        self._conversions: dict[Costs, Conversions] = {}
        self._size: tuple[int, int] | None = None
        self._reached: dict[Hashable, dict[str, Reach]] = {}
        self._sketches: dict[Hashable, Sketch] = {}
        self._sketching: Hashable = None
        super().__init__(mod, settling, [axis])
        self._known = _Unified.of(self.graphs, self.order, self.axes)

    def reach_of(self, labels: Asked, stored: Stored = NOTHING, parts: int = 0) -> dict[str, Reach]:
        """What the axis reaches from the weights so labelled."""
        key = _key(labels, stored, parts)
        if key not in self._reached:
            asked, apart = {}, {}
            for name, found in labels.items():
                params = self.graphs[self.entries[name]].params
                asked[self.entries[name]] = {params[i]: x for i, x in found.items()}
                apart[self.entries[name]] = {params[i] for i in stored.get(name, ())}
            self._reached[key] = _Seeds(
                self.graphs, self.order, self.axes, self._known, asked, apart, parts
            ).run()
        return self._reached[key]

    def decide(
        self, labels: Asked, costs: Costs, stored: Stored = NOTHING, parts: int = 0
    ) -> Decision:
        """Label the module anew.

        Parameters
        ----------
        labels : mapping
            Of the weights.
        costs : Costs
        stored : mapping of str to collection of int
            Weights that may be communicated.
        parts : int
            Not 0: what follows from the other parameters may be sharded as well, where this
            divides a dim of the parameter.
        """
        self.reach = self.reach_of(labels, stored, parts)
        free = any(x is None for found in labels.values() for x in found.values())
        self._sketching = _key(labels, stored, parts) if free else None
        self.weigh(costs)
        return self.run()

    def weigh(self, costs: Costs) -> None:
        """Start afresh with other weights; what does not depend on them is kept."""
        super().weigh(costs)
        if costs == self._settling:
            self._kept = self.prices = self._kept or self.prices
        prices = self.prices
        prices.forms = self._forms
        sending = replace(prices.costs, memory=0, flop=0, hold=0)
        prices.conversions = self._conversions.setdefault(sending, prices.conversions)

    def _largest(self) -> tuple[int, int]:
        self._size = self._size or super()._largest()
        return self._size

    def _solve_in(self, inst: Instance, order: Sequence[int]) -> tuple[Instance, int, int]:
        """Solve along the only axis."""
        model = self._build(inst, 0)
        values, cost, gap = self._minimise(model, inst.graph, 0)
        return self._decode(inst, 0, model, values), cost, gap

    def _build(self, inst: Instance, a: int) -> AxisProblem:
        if self._sketching is None:
            return super()._build(inst, a)
        distinct = {kid.number: kid for kid in inst.kids.values()}
        at = {number: j for j, number in enumerate(distinct)}
        callees = [self._summary(kid, a) for kid in distinct.values()]
        key = (self._sketching, inst.graph.key, *map(structure, callees))
        if key not in self._sketches:
            self._sketches[key] = sketched(
                self.prices,
                inst,
                a,
                self.reach[inst.graph.key],
                self._sizes(inst, a),
                {k: at[kid.number] for k, kid in inst.kids.items()},
                callees,
            )
        return self._sketches[key].filled(self.prices, callees)


def _key(labels: Asked, stored: Stored, parts: int) -> Hashable:
    return (
        parts,
        tuple((name, tuple(found.items())) for name, found in labels.items()),
        tuple((name, tuple(sorted(found))) for name, found in stored.items()),
    )


__all__ = ["Asked", "Labels", "Search", "Stored"]
