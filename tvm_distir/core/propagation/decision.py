# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represents decisions: placements of all operands and results per function specialisation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tvm_distir.core.ir.placement import P
from tvm_distir.core.propagation.graph.graph import Axis, Graph, Uses
from tvm_distir.core.propagation.solve.conversions import ReshardPath
from tvm_distir.core.propagation.solve.cost import Conversions
from tvm_distir.core.propagation.solve.strategies import OpStrategy
from tvm_distir.support import lists_by_key, reachable

Signature = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""The labels of all parameters and of all results of a function, per axis."""


@dataclass(eq=False)
class Instance:
    """A specialisation of a placed function.

    ``choice[a][k]`` is the alternative of node k along axis a (absent: not decided yet);
    ``kids[k]`` the specialisation that call node k uses; ``columns[a]`` the number of ``choice[a]``
    among those of an assignment; ``given[a][v]`` the label with which value v is produced.
    """

    number: int
    graph: Graph
    choice: dict[int, tuple[OpStrategy, ...]]
    kids: dict[int, Instance]
    columns: dict[int, int]
    given: dict[int, list[int]]
    local: dict[tuple[int, ...], tuple[list[int], dict[int, dict[int, int]]]] = field(
        default_factory=dict
    )

    def signature(self) -> Signature:
        """Return the labels at the function's boundary."""
        g = self.graph
        columns = [column for _, column in sorted(self.choice.items())]
        params = [tuple(column[k].gives[0] for k in g.params) for column in columns]
        return tuple(zip(params, [tuple(c[k].needs[0] for k in g.rets) for c in columns]))


def each_instance(entries: Iterable[Instance]) -> list[Instance]:
    """Return some instances and all that they call, each once, callers first."""
    return reachable(entries, lambda inst: [kid for _, kid in sorted(inst.kids.items())])


@dataclass(frozen=True)
class Decision:
    """Chosen placements of a module.

    Attributes
    ----------
    axes : tuple of Axis
    entries : dict of str to Instance
        The instance of each public function.
    cost : int
        Sum of the minima in 1/1024 wire bytes: of the axes of each mesh at once; where they were
        solved in turn each axis counts the work, with the sizes it was solved with. Compare
        decisions by :class:`~tvm_distir.core.propagation.decision_cost.Evaluator`.
    bound : int
        A proven lower bound of it; of axes solved in sequence, the bounds of each.
    conversions : Conversions
        Costs of resharding.
    sizes : callable
        ``sizes(instance, a)``: bytes per value, whole along axis a, local to the others.
    """

    axes: tuple[Axis, ...]
    entries: dict[str, Instance]
    cost: int
    bound: int
    conversions: Conversions
    sizes: Callable[[Instance, int], Sequence[int]]

    @functools.cached_property
    def _by_mesh(self) -> dict[int, list[int]]:
        return lists_by_key((axis.mesh, a) for a, axis in enumerate(self.axes))

    def mesh_axes(self, mesh: int) -> list[int]:
        """Return the numbers of the axes of a mesh, in mesh order."""
        return self._by_mesh.get(mesh, [])

    def needs(self, inst: Instance, node: int, operand: int, mesh: int) -> tuple[int, ...]:
        """Return the placement (a label per axis of ``mesh``) in which a node needs an operand."""
        return tuple([inst.choice[a][node].needs[operand] for a in self.mesh_axes(mesh)])

    def gives(self, inst: Instance, node: int, result: int, mesh: int) -> tuple[int, ...]:
        """Return the placement in which a node produces a result."""
        return tuple([inst.choice[a][node].gives[result] for a in self.mesh_axes(mesh)])

    def factors(self, inst: Instance, node: int, mesh: int) -> tuple[int | None, ...]:
        """Return the factor that a node follows, per axis of ``mesh``."""
        return tuple([inst.choice[a][node].factor for a in self.mesh_axes(mesh)])

    def wants(self, inst: Instance, value: int) -> list[tuple[int, ...]]:
        """Return the placements that consumers of a value need, in program order, each once."""
        mesh, uses = inst.graph.values[value].mesh, inst.graph.uses[value]
        needs = (self.needs(inst, k, i, mesh) for k, positions in uses for i in positions)
        return list(dict.fromkeys(needs))

    def settled(self, inst: Instance) -> dict[int, ReshardPath]:
        """Return the routes of all values that every consumer takes as they are produced."""
        g, moved = inst.graph, set[int]()
        first = len(g.params)
        for a, choice in inst.choice.items():
            have, mesh = inst.given[a], self.axes[a].mesh
            for node, chosen in zip(g.nodes[first:], choice[first:]):  # parameters come first
                for v, want in zip(node.operands, chosen.needs):
                    if v >= 0 and want != have[v] and g.values[v].mesh == mesh:
                        moved.add(v)
        layouts = {
            m: list(zip(*[inst.given[a] for a in axes])) for m, axes in self._by_mesh.items()
        }
        result = {}
        for v, value in enumerate(g.values):
            produced = layouts[value.mesh][v]
            if v not in moved and P not in produced:
                result[v] = ReshardPath.at_home(produced)
        return result

    def route(self, inst: Instance, value: int) -> ReshardPath:
        """Return how a value gets from its producer to its consumers."""
        mesh = inst.graph.values[value].mesh
        axes = self.mesh_axes(mesh)
        node, _ = inst.graph.producer[value]
        columns = [inst.choice[a] for a in axes]
        produced = tuple([inst.given[a][value] for a in axes])
        if P not in produced and self._at_home(inst.graph.uses[value], columns, produced):
            return ReshardPath.at_home(produced)
        targets = self.wants(inst, value)
        rule, pending = inst.graph.nodes[node].rule, []
        if rule is not None:
            factors = self.factors(inst, node, mesh)
            pending = [
                i for i, f in enumerate(factors) if f is not None and rule.factors[f].kind == "sum"
            ]
        conversions = [self.conversions.along(a) for a in axes]
        sizes, ranks = zip(*[(self.sizes(inst, a)[value], self.axes[a].size) for a in axes])
        return ReshardPath(conversions, produced, targets, pending, sizes, ranks)

    @staticmethod
    def _at_home(
        uses: Uses, columns: Sequence[Sequence[OpStrategy]], produced: Sequence[int]
    ) -> bool:
        """Return whether all consumers take a value as it is produced."""
        return all(
            column[k].needs[i] == have
            for column, have in zip(columns, produced)
            for k, positions in uses
            for i in positions
        )

    def value_layout(self, inst: Instance, value: int) -> tuple[int, ...]:
        """Return the placement in which a value is produced."""
        mesh = inst.graph.values[value].mesh
        return tuple([inst.given[a][value] for a in self.mesh_axes(mesh)])
