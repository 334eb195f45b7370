# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Finds the dims that sharding rules tie to given dims of the inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm.ir import IRModule

from tvm_distir.core.ir.branches import lift_branches
from tvm_distir.core.propagation.graph.graph import Axis, Graph
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.core.rewriting.canonical import canonical

from .placed_module import PlacedModule
from .weight_search import WeightSearch


@dataclass(frozen=True)
class TiedDims:
    """Dims of a function and its callees that are tied to given dims of the inputs.

    Attributes
    ----------
    graph : Graph
    flags : sequence of int
        1 for each (value, dim) of the graph, at ``graph.offset[value] + dim``, that is tied.
    names : mapping of int to str
        The variable that each node binds, where no other has its name.
    follows : sequence of int
        1 for each of those inputs and each value that is computed from them.
    """

    graph: Graph
    flags: Sequence[int]
    names: Mapping[int, str]
    follows: Sequence[int]

    def dims(self, value: int) -> tuple[int, ...]:
        """Return the tied dims of a value; none for a constant."""
        if value < 0:
            return ()
        start = self.graph.offset[value]
        count = len(self.graph.values[value].shape)
        return tuple(d for d in range(count) if self.flags[start + d])


def tied_dims(mod: IRModule, seeds: Mapping[str, Mapping[int, int]], ranks: int) -> list[TiedDims]:
    """Follow dims of inputs through a module and its callees by the sharding rules.

    Two dims are tied where a factor of a rule names both. A branch of an ``If`` is a function.

    Parameters
    ----------
    mod : IRModule
        The module, at level 1.
    seeds : mapping
        The dim of each flat parameter that counts, per public function.
    ranks : int
        The number of shards of the tied dims.

    Raises
    ------
    PropagationError
        DIST0401 an op without a rule; what extraction raises.
    """
    search = WeightSearch(lift_branches(canonical(mod)), Axis(0, 0, ranks, ""), Costs())
    reach = search.reach_of(seeds)
    follows = _following(search.module, seeds)
    result = []
    for key in search.module.order:
        g = search.module.graphs[key]
        names = {handle: str(var.name) for handle, var in g.variables.items()}
        often = Counter(names.values())
        named_nodes = {k: names[h] for h, k in g.node_of.items() if often[names[h]] == 1}
        result.append(TiedDims(g, reach[key].active[0], named_nodes, follows[key]))
    return result


def _following(
    module: PlacedModule, seeds: Mapping[str, Mapping[int, int]]
) -> dict[str, bytearray]:
    """Return per graph 1 for each value that is computed from seeded parameters."""
    follows = {key: bytearray(len(module.graphs[key].values)) for key in module.order}
    for name, dims in seeds.items():
        entry = module.entries[name]
        for i in dims:
            follows[entry][module.graphs[entry].param_values[i]] = 1
    for key in reversed(module.order):  # callers first
        g, marked = module.graphs[key], follows[key]
        for node in g.nodes:
            if node.kind == "call":
                params = module.graphs[node.callee].param_values
                for v, inside in zip(node.operands, params, strict=True):
                    follows[node.callee][inside] |= v >= 0 and marked[v]
            if any(v >= 0 and marked[v] for v in node.operands):
                for v in node.results:
                    marked[v] = 1
    return follows
