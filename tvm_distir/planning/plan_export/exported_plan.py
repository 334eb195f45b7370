# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the placements of parameters that a plan results in."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tvm import ir, relax

from tvm_distir.core.ir import (
    is_private,
    known_shape,
    labels_of,
    mesh_axes,
    meshes,
    relax_functions,
)
from tvm_distir.core.ir.attributes import param_names
from tvm_distir.core.ir.views import order_of
from tvm_distir.core.passes import AnnotateSharding, PropagateSharding
from tvm_distir.core.plan import (
    MeshSpec,
    PartitionSpec,
    Pipeline,
    Plan,
    PlanRule,
    data_positions,
    is_pattern,
    match_name,
    plain_name,
)
from tvm_distir.core.rewriting import all_bindings, canonical, entry_of, op_name
from tvm_distir.planning.strategies.consumers import Consumers
from tvm_distir.planning.strategies.expert_parallelism import expert_dim
from tvm_distir.planning.strategies.model_info import entries, tensor_parameters
from tvm_distir.support import PlanError, lists_by_key
from tvm_distir.transforms import OrderAxes


@dataclass(frozen=True)
class PlacedParameter:
    """A parameter of the entry function, with its decided placement.

    Attributes
    ----------
    name : str
        In the model.
    shape : tuple of int
    labels : tuple of int
        A label per mesh axis.
    spec : PartitionSpec
        The mesh axes of each dim, major first.
    is_data : bool
    is_table : bool
        Whether rows of it are looked up, as of an embedding.
    expert_dim : int, optional
        The dim that counts experts, of a weight that stacks them.
    is_fused : bool
        Whether a shard has a part of each of several segments.
    rules : tuple of PlanRule
        The rules of the plan that match its name.
    """

    name: str
    shape: tuple[int, ...]
    labels: tuple[int, ...]
    spec: PartitionSpec
    is_data: bool
    is_table: bool
    expert_dim: int | None = None
    is_fused: bool = False
    rules: tuple[PlanRule, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class ExportedPlan:
    """A plan with the facts that formats are written from.

    Attributes
    ----------
    plan : Plan
    mesh : MeshSpec
        The only mesh; of a pipeline, that of a stage.
    parameters : tuple of PlacedParameter
        Inputs, weights and states; of a pipeline, those of all stages.
    uses : mapping of str to str
        The role of each axis with several devices.
    zero_stage : int
        What the axes of role ``zero`` shard: 1 optimizer states, 2 gradients too, 3 weights too.
    sequence : bool
        Whether activations between layers are sharded along the axis of role ``tensor``.
    context_state : bool
        Whether the axes of role ``context`` shard the training state too.
    expert_axes : tuple of str
        The axes that divide the experts, each beside its role.
    """

    plan: Plan
    mesh: MeshSpec
    parameters: tuple[PlacedParameter, ...]
    uses: dict[str, str]
    zero_stage: int = 0
    sequence: bool = False
    context_state: bool = False
    expert_axes: tuple[str, ...] = ()

    @functools.cached_property
    def weights(self) -> tuple[PlacedParameter, ...]:
        """Return the parameters that are neither data nor states of the optimizer."""
        names = {parameter.name for parameter in self.parameters}
        return tuple(
            parameter
            for parameter in self.parameters
            if not parameter.is_data and parameter.name.rpartition(".")[0] not in names
        )

    def degree(self, use: str) -> int:
        """Return the number of devices over all axes of a role."""
        return math.prod(
            self.mesh.axes[axis] for axis, axis_use in self.uses.items() if axis_use == use
        )

    @property
    def expert_degree(self) -> int:
        """Return the number of devices that divide the experts."""
        return math.prod(self.mesh.axes[axis] for axis in self.expert_axes)

    def axis_of(self, use: str) -> str | None:
        """Return the only axis of a role, None for none (PlanError DIST0241 for several)."""
        axes = [axis for axis, axis_use in self.uses.items() if axis_use == use]
        if len(axes) > 1:
            raise unsupported(
                f"the axes {' and '.join(axes)} both are of {use} parallelism",
                "Join them to a single mesh axis.",
            )
        return axes[0] if axes else None


def unsupported(problem: str, remedy: str, location: str = "export_plan") -> PlanError:
    """Return the error for what a format cannot express."""
    return PlanError("DIST0241", problem, location=location, remedy=remedy)


def placed_parameters(mod: ir.IRModule, plan: Plan) -> tuple[PlacedParameter, ...]:
    """Return the parameters of the entry functions with the placements that propagation decides.

    Of a pipelined step these are its inputs, without what one stage receives from another.

    Parameters
    ----------
    mod : IRModule
        The module that the plan is for, at level 1.
    plan : Plan
        With a single mesh.
    """
    names = sorted(str(gv.name_hint) for gv, fn in relax_functions(mod) if not is_private(fn))
    if plan.schedule is None or len(names) == 1:
        names = [entry_of(mod)]
    placed = OrderAxes()(PropagateSharding()(AnnotateSharding(plan.by_rules())(mod)))
    home, axes = meshes(placed)[0], mesh_axes(placed)[0]
    parameters: dict[str, PlacedParameter] = {}
    experts, pipeline = _expert_dims(mod, names), Pipeline.of(mod)
    matching = _rules_by_name(plan)
    for function in names:
        before, after = mod[function], placed[function]
        data, tables = set(data_positions(before, function)), _tables(before)
        for number, name in enumerate(param_names(before)):
            ty, shape = after.params[number].ty, known_shape(before.params[number].ty)
            received = pipeline is not None and name not in pipeline.inputs
            if shape is None or not hasattr(ty, "placement") or received:
                continue
            order, labels = order_of(ty.device_mesh, home), labels_of(ty.placement)
            rules = matching(name)
            parameters[name] = PlacedParameter(
                name,
                shape,
                tuple(labels[order.index(a)] for a in range(len(order))),
                PartitionSpec.of_labels(labels, [axes[a] for a in order]),
                number in data,
                before.params[number] in tables,
                experts.get(name),
                any(rule.segments for rule in rules),
                rules,
            )
    return tuple(parameters.values())


def _rules_by_name(plan: Plan) -> Callable[[str], tuple[PlanRule, ...]]:
    """Return a lookup of the rules that match the name of a parameter, in no order."""
    rules = [rule for rule in plan.rules if rule.kind == "param"]
    patterns = [rule for rule in rules if is_pattern(rule.name)]
    named = lists_by_key((plain_name(r.name), r) for r in rules if not is_pattern(r.name))

    def matching(name: str) -> tuple[PlanRule, ...]:
        candidates = (*named.get(plain_name(name), ()), *patterns)
        return tuple(rule for rule in candidates if match_name(rule.name, name))

    return matching


def _expert_dims(mod: ir.IRModule, names: Collection[str]) -> dict[str, int]:
    """Return the dims of the parameters of functions that count experts, by name."""
    consumers, dims = Consumers(mod), {}
    for name, fn, rule_name in entries(canonical(mod)):
        for parameter in tensor_parameters(name, fn, rule_name) if name in names else ():
            dim = expert_dim(mod, consumers, parameter, fn.params[parameter.position])
            if dim is not None:
                dims[parameter.name] = dim
    return dims


def _tables(fn: relax.Function) -> list[relax.Var]:
    """Return the parameters whose rows are looked up, and that are read by nothing else."""
    looked_up, other = [], []
    for binding in all_bindings(fn.body):
        value = binding.value
        if isinstance(value, ir.Call):
            first = op_name(value) == "take"
            looked_up += [arg for arg in value.args[:1] if first and isinstance(arg, relax.Var)]
            other += [arg for arg in value.args[1 if first else 0 :] if isinstance(arg, relax.Var)]
    return [var for var in looked_up if var not in other]


def placed(mod: ir.IRModule, plan: Plan) -> ExportedPlan:
    """Return a plan with the placements of its parameters, and without roles of its axes.

    Raises
    ------
    PlanError
        DIST0241 the plan has several meshes.
    """
    if len(plan.meshes) != 1:
        raise unsupported(
            f"the plan has {len(plan.meshes)} meshes", "Choose a plan with a single mesh."
        )
    return ExportedPlan(plan, plan.meshes[0], placed_parameters(mod, plan), {})
