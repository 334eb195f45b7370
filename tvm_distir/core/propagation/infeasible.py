# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Explains why no placement is allowed along an axis."""

from __future__ import annotations

from collections.abc import Mapping

from tvm_distir.core.propagation.graph.graph import Graph
from tvm_distir.support import PropagationError

from .placed_module import PlacedModule
from .reach import ReachableAxes


def infeasible(
    module: PlacedModule, reach_of: Mapping[str, ReachableAxes], g: Graph, a: int
) -> PropagationError:
    """Build the error that names a stationary parameter which some op cannot take as it is."""
    graphs, axis = module.graphs, module.axes[a]
    for graph in [g, *[graphs[k] for k in module.order if graphs[k] is not g]]:
        reach = reach_of[graph.key]
        for k in graph.params:
            node = graph.nodes[k]
            fixed = node.stationary or reach.held[a].get(k, False)
            v = node.results[0]
            label = reach.fixed[a].get(k)
            if graph.public and node.pin is not None and node.pin_on(axis):
                label = node.pin[axis.index]
            if not fixed or label is None or label < 0:
                continue
            for kc, positions in graph.uses[v]:
                rule = graph.nodes[kc].rule
                if rule is None or graph.nodes[kc].kind != "op":
                    continue
                if not any(f.ins[i] == label for f in rule.factors for i in positions):
                    why = rule.why_replicated.get(
                        f"in{positions[0]}.dim{label}", "no factor contains it"
                    )
                    return PropagationError(
                        "DIST0411",
                        f"stationary {graph.values[v].name} is sharded on dim {label} along "
                        f'"{axis.name}", which {rule.op} does not support: {why}',
                        location=graph.location(kc),
                        remedy='Change its placement, or set "stationary": false.',
                    )
    return PropagationError(
        "DIST0411",
        f'the stationary placements along "{axis.name}" contradict each other or do not '
        "divide the dims they shard",
        location=g.name,
        remedy='Change the placements, or set "stationary": false.',
    )
