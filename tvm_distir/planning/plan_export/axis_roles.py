# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the kind of parallelism that each mesh axis of a plan stands for."""

from __future__ import annotations

import glob
import math
from collections.abc import Collection
from dataclasses import dataclass

from tvm import ir, relax

from tvm_distir.core import (
    AnnotateSharding,
    MeshSpec,
    Plan,
    PropagateSharding,
    all_bindings,
    data_positions,
    entry_of,
    is_private,
    known_shape,
    labels_of,
    op_name,
    param_names,
    relax_functions,
)
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.planning.strategies.training_parts import gradient_names, term_names
from tvm_distir.support import DistIRError, PlanError

DATA, ZERO, TENSOR, CONTEXT = "data", "zero", "tensor", "context"
"""The roles of mesh axes: replicas of the model, replicas that share its training state, tensor
parallelism, and shards of the sequence."""


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
    is_data : bool
    is_table : bool
        Whether rows of it are looked up, as of an embedding.
    """

    name: str
    shape: tuple[int, ...]
    labels: tuple[int, ...]
    is_data: bool
    is_table: bool


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
    roles : mapping of str to str
        The role of each axis with several devices.
    zero_stage : int
        What the axes of role ``zero`` shard: 1 optimizer states, 2 gradients too, 3 weights too.
    sequence : bool
        Whether activations between layers are sharded along the axis of role ``tensor``.
    context_state : bool
        Whether the axes of role ``context`` shard the training state too.
    """

    plan: Plan
    mesh: MeshSpec
    parameters: tuple[PlacedParameter, ...]
    roles: dict[str, str]
    zero_stage: int = 0
    sequence: bool = False
    context_state: bool = False

    @property
    def weights(self) -> tuple[PlacedParameter, ...]:
        """Return the parameters that are neither data nor states of the optimizer."""
        names = {parameter.name for parameter in self.parameters}
        return tuple(
            parameter
            for parameter in self.parameters
            if not parameter.is_data and parameter.name.rpartition(".")[0] not in names
        )

    def degree(self, role: str) -> int:
        """Return the number of devices over all axes of a role."""
        return math.prod(
            self.mesh.axes[axis] for axis, axis_role in self.roles.items() if axis_role == role
        )

    def axis_of(self, role: str) -> str | None:
        """Return the only axis of a role, None for none (PlanError DIST0241 for several)."""
        axes = [axis for axis, axis_role in self.roles.items() if axis_role == role]
        if len(axes) > 1:
            raise unsupported(
                f"the axes {' and '.join(axes)} both are of {role} parallelism",
                "Join them to a single mesh axis.",
            )
        return axes[0] if axes else None


def unsupported(problem: str, remedy: str, place: str = "export_plan") -> PlanError:
    """Return the error for what a format cannot express."""
    return PlanError("DIST0241", problem, place=place, remedy=remedy)


def placed_parameters(mod: ir.IRModule, plan: Plan) -> tuple[PlacedParameter, ...]:
    """Return the parameters of the entry functions with the placements that propagation decides.

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
    placed = PropagateSharding()(AnnotateSharding(plan.by_rules())(mod))
    parameters: dict[str, PlacedParameter] = {}
    for function in names:
        before, after = mod[function], placed[function]
        data, tables = set(data_positions(before, function)), _tables(before)
        for number, name in enumerate(param_names(before)):
            ty, shape = after.params[number].ty, known_shape(before.params[number].ty)
            if shape is None or not hasattr(ty, "placement"):
                continue
            labels = tuple(labels_of(ty.placement))
            parameters[name] = PlacedParameter(
                name, shape, labels, number in data, before.params[number] in tables
            )
    return tuple(parameters.values())


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


def describe(mod: ir.IRModule, plan: Plan) -> ExportedPlan:
    """Find the roles of the mesh axes of a plan.

    Raises
    ------
    PlanError
        DIST0241 the plan has several meshes, or an axis whose role is not known.
    """
    if len(plan.meshes) != 1:
        raise unsupported(
            f"the plan has {len(plan.meshes)} meshes", "Choose a plan with a single mesh."
        )
    mesh = plan.meshes[0]
    exported = ExportedPlan(plan, mesh, placed_parameters(mod, plan), {})
    gradients = {
        glob.escape(value)
        for _, fn in relax_functions(mod)
        for names in (gradient_names(fn), term_names(fn))
        for value in names.values()
    }
    roles, stages, sequence, context_stages = {}, set(), False, set()
    for number, (axis, size) in enumerate(mesh.axes.items()):
        if size == 1:
            continue
        role, stage = _role(exported, number, gradients)
        if role is None:
            raise unsupported(
                f'the mesh axis "{axis}" stands for no parallelism that trainers know',
                "Export the format jax, which has the placement of every parameter.",
            )
        roles[axis] = role
        stages |= {stage} if stage else set()
        if role == CONTEXT:
            context_stages.add(stage)
        if role == TENSOR:
            sequence = axis in plan.regather or _shards_values(plan, number)
    if len(stages) > 1:
        raise unsupported("axes share different parts of the training state", "Use one stage.")
    zero_stage = max(stages, default=0)
    shares = zero_stage > 0 and context_stages == {zero_stage}
    return ExportedPlan(plan, mesh, exported.parameters, roles, zero_stage, sequence, shares)


def _role(exported: ExportedPlan, axis: int, gradients: Collection[str]) -> tuple[str | None, int]:
    """Return the role of an axis, and the stage of ZeRO."""
    data = {p.labels[axis] for p in exported.parameters if p.is_data and p.shape} - {-1}
    weights = [p for p in exported.weights if p.labels[axis] >= 0]
    states = [
        p for p in exported.parameters if p not in exported.weights and not p.is_data
        and p.labels[axis] >= 0
    ]  # fmt: skip
    grads = any(
        rule.kind == "value" and rule.name in gradients and _is_sharded(rule.placement[axis])
        for rule in exported.plan.rules
    )
    stage = 3 if weights else (2 if grads else 1) if states else 0
    if data == {0}:
        return ZERO if stage else DATA, stage
    if data == {1}:
        return CONTEXT, stage
    return (TENSOR, 0) if weights and not data else (None, 0)


def _is_sharded(label: int | None) -> bool:
    """Return whether a label shards a dim: it is neither open nor replicated."""
    return label is not None and label >= 0


def _shards_values(plan: Plan, axis: int) -> bool:
    """Return whether activations are sharded along an axis by their sequence dim."""
    return any(
        rule.kind == "value"
        and rule.placement[axis] == 1
        and not rule.name.endswith("_updated")
        and "_grad" not in rule.name
        for rule in plan.rules
    )


def check_megatron(mod: ir.IRModule, exported: ExportedPlan) -> None:
    """Refuse (DIST0241) a plan whose weights are sharded otherwise than Megatron-LM shards them."""
    axis = exported.axis_of(TENSOR)
    if axis is None:
        return
    number = exported.mesh.axis_number(axis)
    try:
        reference = make_plan(mod, "megatron", {axis: exported.mesh.axes[axis]})
    except DistIRError as error:
        raise unsupported(
            f"the model is not sharded as Megatron-LM does: {error.what}", error.remedy
        ) from error
    expected = {rule.name: rule.placement[0] for rule in reference.rules if rule.kind == "param"}
    for weight in exported.weights:
        want = expected.get(weight.name, -1)
        if want is not None and weight.labels[number] != want:
            labels = (weight.labels[number], want)
            source, target = (f"dim {label}" if label >= 0 else "no dim" for label in labels)
            raise unsupported(
                f'the plan shards {source} of "{weight.name}" along "{axis}", Megatron-LM {target}',
                "Export the format jax, which has the placement of every parameter.",
            )
