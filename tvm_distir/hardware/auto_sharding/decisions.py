# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Converts solver results to decisions of propagation and to plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tvm import relax

from tvm_distir.core.ir import Labels, P, R, value_types
from tvm_distir.core.plan import MeshSpec, Plan, PlanRule
from tvm_distir.core.propagation import (
    Conversions,
    Costs,
    Decision,
    Graph,
    Instance,
    Instances,
    OpStrategy,
    PlacedModule,
    ReachableAxes,
    called,
    each_instance,
)
from tvm_distir.support import PlanError, Steps, lists_by_key, unrolled

from .sharding_problem import ShardingProblem


def decision_of(
    module: PlacedModule,
    reach: Mapping[str, ReachableAxes],
    solutions: Mapping[str, tuple[ShardingProblem, Sequence[int]]],
    cost_ps: int,
    bound_ps: int,
) -> Decision:
    """Convert the solutions of public functions to a decision of propagation.

    Parameters
    ----------
    module : PlacedModule
    reach : mapping of str to ReachableAxes
    solutions : mapping of str to (ShardingProblem, sequence of int)
        The problem of each public function and the values of its variables.
    cost_ps, bound_ps : int
    """
    instances = Instances(module.axes, reach)
    entries = {}
    for name, (net, values) in solutions.items():
        g = module.graphs[module.entries[name]]
        reader = _Reader(module, instances, axes_of(module, g))
        entries[name] = unrolled(reader.instance(g, net, values))
    conversions = Conversions(Costs())
    return Decision(module.axes, entries, cost_ps, bound_ps, conversions, instances.value_bytes)


def axes_of(module: PlacedModule, g: Graph) -> list[int]:
    """Return the module-wide numbers of the axes of the mesh on which a function is."""
    return [a for a, axis in enumerate(module.axes) if axis.mesh == mesh_of(g)]


def mesh_of(g: Graph) -> int:
    """Return the number of the mesh on which a function is.

    Raises
    ------
    PlanError
        DIST0237 where it is on several.
    """
    meshes = sorted({max(value.mesh, 0) for value in g.values})
    if len(meshes) > 1:
        raise PlanError(
            "DIST0237",
            f"{len(meshes)} meshes are used in a function, whose placements are decided on a "
            "single mesh",
            location=g.name,
            remedy="Split the model into stages, each on a single mesh.",
        )
    return meshes[0] if meshes else 0


class _Reader:
    """Reader of instances from values of variables; ``axes`` are those of the functions' mesh."""

    def __init__(self, module: PlacedModule, instances: Instances, axes: Sequence[int]) -> None:
        self.module, self.instances, self.axes = module, instances, axes

    def instance(self, g: Graph, net: ShardingProblem, values: Sequence[int]) -> Steps[Instance]:
        """Return the instance of a function, and create those of its callees."""
        kids: dict[int, Instance] = {}
        states: list[tuple[OpStrategy, ...]] = []
        replicated: list[OpStrategy] = []  # along axes of other meshes
        for k, node in enumerate(g.nodes):
            replicated.append(OpStrategy((R,) * len(node.operands), (R,) * len(node.results), None))
            if k in net.callees:
                inner, first = net.callees[k]
                inner_values = values[first : first + len(inner.domains)]
                callee = self.module.graphs[node.callee]
                kids[k] = kid = yield self.instance(callee, inner, inner_values)
                states.append(tuple([called(kid, a) for a in self.axes]))
                continue
            choices, variable = net.ends[k]
            if not choices.items:
                states.append((replicated[k],) * len(self.axes))
                continue
            states.append(choices.items[values[variable] if variable >= 0 else 0])
        choice = {a: tuple(replicated) for a in range(len(self.module.axes))}
        for i, a in enumerate(self.axes):
            choice[a] = tuple([axes[i] for axes in states])
        return self.instances.of(g, choice, kids)


def plan_of(decision: Decision, meshes: Sequence[MeshSpec]) -> Plan:
    """Return a plan whose rules express a decision, as far as rules can.

    Of a private function that is called on several meshes there are none.
    """
    rules: list[PlanRule] = []
    seen = lists_by_key((i.graph.name, i) for i in each_instance(decision.entries.values()))
    for name, instances in seen.items():
        numbers = {mesh_of(inst.graph) for inst in instances}
        if len(numbers) > 1:
            continue
        mesh = meshes[numbers.pop()]
        function = None if name == "main" else name
        for make in (_params, _arguments, _values):
            rules += make(decision, instances, mesh, function)
    return Plan(tuple(meshes), tuple(rules))


def _params(
    decision: Decision, instances: Sequence[Instance], mesh: MeshSpec, function: str | None
) -> list[PlanRule]:
    """Return the placements of the parameters of a public function."""
    g = instances[0].graph
    params = []
    for v in g.param_values if g.public else ():
        layout = decision.value_layout(instances[0], v)
        params.append(PlanRule("param", g.values[v].name, layout, mesh.name, function=function))
    return params


def _arguments(
    decision: Decision, instances: Sequence[Instance], mesh: MeshSpec, function: str | None
) -> list[PlanRule]:
    """Return placements of arguments on which all calls of a function agree, in a caller.

    Tuples are left to propagation.
    """
    requests: dict[tuple[str, int], set[Labels]] = {}
    for inst in instances:
        for k, kid in inst.kids.items():
            for number, operand in _tensors(kid):
                layout = decision.value_layout(kid, kid.graph.param_values[operand])
                requests.setdefault((inst.graph.nodes[k].callee, number), set()).add(layout)
    names = {kid.graph.key: kid.graph.name for inst in instances for kid in inst.kids.values()}
    return [
        PlanRule("call", names[key], layout, mesh.name, function=function, arg=number)
        for (key, number), layouts in requests.items()
        for layout in layouts
        if len(layouts) == 1 and P not in layout
    ]


def _tensors(inst: Instance) -> Iterator[tuple[int, int]]:
    """Yield the number of each parameter that is a tensor with dims, and that of its value."""
    flat = 0
    for number, param in enumerate(inst.graph.fn.params):
        count = len(value_types(param.ty))
        if count == 1 and not isinstance(param.ty, relax.TupleType):
            if inst.graph.values[inst.graph.param_values[flat]].shape:
                yield number, flat
        flat += count


def _values(
    decision: Decision, instances: Sequence[Instance], mesh: MeshSpec, function: str | None
) -> list[PlanRule]:
    """Return the placements of call results on which all instances agree.

    Results of public functions are left out: new weights are placed as the old weights.
    """
    g = instances[0].graph
    returned = set(g.result_values) if g.public else set()
    names = [value.name for value in g.values]
    counts = Counter(names)
    values = []
    for k, node in enumerate(g.nodes):
        if node.kind != "op" or len(node.results) != 1:
            continue
        v = node.results[0]
        layouts = {decision.value_layout(inst, v) for inst in instances}
        layout = next(iter(layouts))
        if v in returned:
            continue
        if len(layouts) > 1 or P in layout or not g.values[v].shape or counts[names[v]] > 1:
            continue
        values.append(PlanRule("value", names[v], layout, mesh.name, function=function))
    return values
