# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``PropagateSharding`` with a work list in place of recursion.

``AxisGroupGraph::PropagateShardingSpec(axis, spec, path, visited)`` calls itself once per axis
along a path, so that deep modules overflow the stack. In C++, in
``include/tvm/relax/distributed/axis_group_graph.h``, on top of the repair that makes ``AddEdge``
constant::

    void PropagateShardingSpec(Axis source, AxisShardingSpec spec, Path path,
                               std::unordered_set<Axis, AxisHash>* visited) {
      std::vector<std::pair<Axis, Path>> pending{{source, path}};
      while (!pending.empty()) {
        auto [axis, path_to_axis] = pending.back();
        pending.pop_back();
        auto it = src_axis_sharding_spec_.find(axis);
        bool is_other =
            it != src_axis_sharding_spec_.end() && !AxisShardingSpecEqual()(it->second, spec);
        if (is_other || cutpoint_axis_sharding_spec_.count(axis) || !visited->insert(axis).second) {
          continue;
        }
        int& priority = axis_sharding_specs_priority_[axis].insert({spec, 0}).first->second;
        priority = std::max(priority, path_to_axis.GetPriority());
        const auto& edges = graph_[axis];
        for (auto edge = edges.rbegin(); edge != edges.rend(); ++edge) {
          pending.push_back({edge->dst, path_to_axis.AddEdge(edge->type)});
        }
      }
    }

The edges of an axis are added from the last to the first, so that the axes are visited in the
order of the recursion and along the same paths: the results are the same. Time stays quadratic in
the annotations, because each annotated axis starts a search of its own. One search for all of them
that tells apart by which kinds of edges an axis was reached would be linear, and would not do: a
walk that turns back at a neighbor reaches an axis by a mixed path, and ties with those that are.
This module is the same search in Python, with the graph of the piece before.
"""

from __future__ import annotations

from .one_result import MIXED, PRIORITY, Axis, AxisGraph, Spec


class WorkListGraph(AxisGraph):
    """The graph, searched without recursion."""

    def __init__(self) -> None:
        super().__init__(is_repaired=True)

    def spread(self, axis: Axis, spec: Spec, mask: int, visited: set[Axis]) -> None:
        """Visit all axes that can be reached from a source, in the order of the recursion."""
        pending = [(axis, mask)]
        while pending:
            axis, mask = pending.pop()
            if axis in visited or self.sources.get(axis, spec) != spec:
                continue
            visited.add(axis)
            specs = self.priorities[axis]
            specs[spec] = max(specs.get(spec, 0), PRIORITY.get(mask, MIXED))
            pending.extend((target, mask | kind) for target, kind in reversed(self.edges[axis]))
