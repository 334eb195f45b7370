# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``PropagateSharding`` with one result, whatever the addresses of a module's tensors are.

Two faults of ``AxisGroupGraph`` in ``include/tvm/relax/distributed/axis_group_graph.h``:

- ``Path::AddEdge`` ors the direction of an edge into the mask of the path that it is called on.
  ``PropagateShardingSpec(axis, spec, path, visited)`` calls it in its loop over the edges of an
  axis, so that the path along a later edge has the directions of those before it, and a path
  from producers to consumers only is taken for a mixed one.
- The same function stores the priority of the path that it came by, also where another source of
  the same spec has come by a better one. ``PropagateShardingSpec()`` visits the sources in the
  order of a table that is hashed by address; the last one decides.

Two specs of one priority are then an error in ``ChooseAxisShardingSpec``, or not, from run to
run. In C++, one line each::

    // Path::AddEdge
    Path AddEdge(EdgeType type) const { return {direction | (1 << GetEdgePriority(type))}; }

    // PropagateShardingSpec(axis, spec, path, visited), in place of the assignment
    int& priority = axis_sharding_specs_priority_[axis].insert({spec, 0}).first->second;
    priority = std::max(priority, path.GetPriority());

0 is the lowest priority. The first line suffices for the module of the issue; the second is needed
where two sources of a spec reach an axis by paths of different priority. Two specs that tie for
the greatest priority remain an error. The class is compiled into the library of the wheel, whose
headers are those of the runtime only. This module is the same search in Python, with the faults
and without. ``native_search.py`` compiles the class of a checkout with these lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tvm import ir, relax

Axis = tuple[str, int]  # a tensor and a dim of it; the dim -1 stands for its device mesh
Spec = tuple[str, int]  # a device mesh and an axis of it, or -1
Edge = tuple[Axis, Axis, int]

CONSUMER_TO_PRODUCER, SIDEWAYS, PRODUCER_TO_CONSUMER = 1, 2, 4
REVERSE = {1: 4, 2: 2, 4: 1}
MIXED = 1
PRIORITY = {CONSUMER_TO_PRODUCER: 0, PRODUCER_TO_CONSUMER: 2, 0: 3}  # else MIXED


class AxisGraph:
    """Axes that are sharded alike, and the specs that spread along its edges.

    Parameters
    ----------
    is_repaired : bool
        Without the two faults.
    """

    def __init__(self, is_repaired: bool) -> None:
        self.is_repaired = is_repaired
        self.edges: dict[Axis, list[tuple[Axis, int]]] = defaultdict(list)
        self.sources: dict[Axis, Spec] = {}
        self.priorities: dict[Axis, dict[Spec, int]] = defaultdict(dict)

    def join(self, edges: Iterator[Edge]) -> None:
        """Add edges in both directions."""
        for source, target, kind in edges:
            self.edges[source].append((target, kind))
            self.edges[target].append((source, REVERSE[kind]))

    def propagate(self, order: Sequence[Axis]) -> dict[Axis, Spec]:
        """Return the spec of each axis that a source reaches.

        Parameters
        ----------
        order : sequence of Axis
            The sources in the order in which they are visited.

        Raises
        ------
        ValueError
            Two specs reach an axis with the same priority.
        """
        self.priorities.clear()
        for axis in order:
            self.spread(axis, self.sources[axis], 0, set())
        choices = {}
        for axis, specs in self.priorities.items():
            greatest = max(specs.values())
            spec, *others = [s for s, priority in specs.items() if priority == greatest]
            if others:
                raise ValueError(f"multiple possible sharding for axis: ({axis[0]}, {axis[1]})")
            choices[axis] = spec
        return choices

    def spread(self, axis: Axis, spec: Spec, mask: int, visited: set[Axis]) -> None:
        """Visit an axis that was reached along edges of the kinds in the mask."""
        if axis in visited or self.sources.get(axis, spec) != spec:
            return
        visited.add(axis)
        priority, specs = PRIORITY.get(mask, MIXED), self.priorities[axis]
        specs[spec] = max(specs.get(spec, 0), priority) if self.is_repaired else priority
        for target, kind in self.edges[axis]:
            if self.is_repaired:
                self.spread(target, spec, mask | kind, visited)
            else:
                mask |= kind
                self.spread(target, spec, mask, visited)


def edges_of(name: str, args: Sequence[relax.Var], var: relax.Var) -> Iterator[Edge]:
    """Yield the edges of a call of an element-wise operator or of a product of matrices."""
    result = var.name
    if name == "relax.matmul":
        x, w = (arg.name for arg in args)
        yield (x, 1), (w, 0), SIDEWAYS
        yield (x, 0), (result, 0), PRODUCER_TO_CONSUMER
        yield (w, 1), (result, 1), PRODUCER_TO_CONSUMER
    elif name in ("relax.add", "relax.nn.relu", "relax.dist.annotate_sharding"):
        for behind in range(1, var.ty.ndim + 1):
            for arg in (arg for arg in args if arg.ty.ndim >= behind):
                source = arg.name, arg.ty.ndim - behind
                yield source, (result, var.ty.ndim - behind), PRODUCER_TO_CONSUMER
    else:
        raise NotImplementedError(f"the edges of {name}")
    yield from (((arg.name, -1), (result, -1), PRODUCER_TO_CONSUMER) for arg in args)


def graph_of(function: relax.Function, graph: AxisGraph) -> AxisGraph:
    """Return the graph with the edges and the sources of a function."""
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    for var, call in ((b.var, b.value) for b in bindings if isinstance(b.value, ir.Call)):
        graph.join(edges_of(call.op.name, call.args, var))
        if call.op.name == "relax.dist.annotate_sharding":
            mesh = str(call.attrs.device_mesh)
            graph.sources[var.name, -1] = mesh, -1
            for axis, spec in enumerate(call.attrs.placement.dim_specs):
                if int(spec.axis) >= 0:
                    graph.sources[var.name, int(spec.axis)] = mesh, axis
    return graph
