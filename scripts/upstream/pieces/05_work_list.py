# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``PropagateSharding`` with a work list in place of a recursive search per source.

``AxisGroupGraph::PropagateShardingSpec(axis, spec, path, visited)`` calls itself once per axis
along a path, so that deep modules overflow the stack, and it is called once per annotated axis,
each time for all axes that can be reached, so that time is quadratic in the annotations. In C++,
in ``include/tvm/relax/distributed/axis_group_graph.h``, one function in place of the two of this
name, behind the repair that makes ``AddEdge`` constant::

    void PropagateShardingSpec() {
      axis_sharding_specs_priority_.clear();
      // By spec and by set of directions, the axes that a path has reached.
      std::unordered_map<AxisShardingSpec, std::array<AxisGroup, 8>, AxisShardingSpecHash,
                         AxisShardingSpecEqual>
          reached;
      for (const auto& [source, spec] : src_axis_sharding_spec_) {
        auto& reached_by_spec = reached[spec];
        std::vector<std::pair<Axis, Path>> pending{{source, Path()}};
        while (!pending.empty()) {
          auto [axis, path] = pending.back();
          pending.pop_back();
          auto it = src_axis_sharding_spec_.find(axis);
          bool is_other = it != src_axis_sharding_spec_.end() &&
                          !AxisShardingSpecEqual()(it->second, spec);
          if (is_other || cutpoint_axis_sharding_spec_.count(axis) ||
              !reached_by_spec[path.direction].insert(axis).second) {
            continue;
          }
          int& priority = axis_sharding_specs_priority_[axis].insert({spec, 0}).first->second;
          priority = std::max(priority, path.GetPriority());
          for (const auto& edge : graph_[axis]) {
            pending.push_back({edge.dst, path.AddEdge(edge.type)});
          }
        }
      }
      ChooseAxisShardingSpec();
    }

A path goes on from an axis unless one of the same spec has reached it by the same set of
directions. Each edge is thereby taken at most eight times per spec, and an axis gets the greatest
priority of all paths that reach it; the recursive search knows only the first path of each source.
This module is the same search in Python; the first of its two parts is the piece before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from .one_result import MIXED, PRIORITY, Axis, AxisGraph, Spec


class WorkListGraph(AxisGraph):
    """The graph, searched without recursion."""

    def __init__(self) -> None:
        super().__init__(is_repaired=True)

    def propagate(self, order: Sequence[Axis]) -> dict[Axis, Spec]:
        """Return the spec of each axis that a source reaches."""
        self.reached: dict[Spec, set[tuple[Axis, int]]] = defaultdict(set)
        return super().propagate(order)

    def spread(self, axis: Axis, spec: Spec, mask: int, visited: set[Axis]) -> None:
        """Visit all axes that can be reached from an axis; ``visited`` is not needed."""
        reached, pending = self.reached[spec], [(axis, mask)]
        while pending:
            axis, mask = pending.pop()
            if (axis, mask) in reached or self.sources.get(axis, spec) != spec:
                continue
            reached.add((axis, mask))
            specs = self.priorities[axis]
            specs[spec] = max(specs.get(spec, 0), PRIORITY.get(mask, MIXED))
            pending.extend((target, mask | kind) for target, kind in self.edges[axis])
