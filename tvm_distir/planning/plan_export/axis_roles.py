# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the kind of parallelism that each mesh axis of a plan stands for."""

from __future__ import annotations

import contextlib
import glob
import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from tvm import ir, relax

from tvm_distir.core.ir import is_private, known_shape, labels_of, relax_functions
from tvm_distir.core.ir.attributes import param_names
from tvm_distir.core.passes import AnnotateSharding, PropagateSharding
from tvm_distir.core.plan import MeshSpec, Plan, PlanRule, data_positions, match_name
from tvm_distir.core.rewriting import all_bindings, entry_of, op_name
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.planning.strategies.consumers import Consumers
from tvm_distir.planning.strategies.expert_parallelism import expert_dim
from tvm_distir.planning.strategies.model_info import entries, tensor_parameters
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
    expert_dim : int, optional
        The dim that counts experts, of a weight that stacks them.
    is_fused : bool
        Whether a shard has a part of each of several segments.
    """

    name: str
    shape: tuple[int, ...]
    labels: tuple[int, ...]
    is_data: bool
    is_table: bool
    expert_dim: int | None = None
    is_fused: bool = False


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
    expert_axes : tuple of str
        The axes of role ``data`` or ``zero`` that also divide the experts.
    """

    plan: Plan
    mesh: MeshSpec
    parameters: tuple[PlacedParameter, ...]
    roles: dict[str, str]
    zero_stage: int = 0
    sequence: bool = False
    context_state: bool = False
    expert_axes: tuple[str, ...] = ()

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

    @property
    def expert_degree(self) -> int:
        """Return the number of devices that divide the experts."""
        return math.prod(self.mesh.axes[axis] for axis in self.expert_axes)

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
    experts = _expert_dims(mod, names)
    for function in names:
        before, after = mod[function], placed[function]
        data, tables = set(data_positions(before, function)), _tables(before)
        for number, name in enumerate(param_names(before)):
            ty, shape = after.params[number].ty, known_shape(before.params[number].ty)
            if shape is None or not hasattr(ty, "placement"):
                continue
            parameters[name] = PlacedParameter(
                name,
                shape,
                tuple(labels_of(ty.placement)),
                number in data,
                before.params[number] in tables,
                experts.get(name),
                any(rule.segments for rule in _rules_of(plan, name)),
            )
    return tuple(parameters.values())


def _rules_of(plan: Plan, name: str) -> list[PlanRule]:
    """Return the rules of a parameter."""
    return [rule for rule in plan.rules if rule.kind == "param" and match_name(rule.name, name)]


def _expert_dims(mod: ir.IRModule, names: Collection[str]) -> dict[str, int]:
    """Return the dims of the parameters of functions that count experts, by name."""
    consumers, dims = Consumers(mod), {}
    for name, fn, rule_name in entries(mod):
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


def describe(mod: ir.IRModule, plan: Plan) -> ExportedPlan:
    """Find the roles of the mesh axes of a plan.

    Raises
    ------
    PlanError
        DIST0241 the plan has several meshes, an axis whose role is not known, or devices or a
        schedule that no trainer has.
    """
    exported = placed(mod, plan)
    check_devices(plan)
    gradients = {
        glob.escape(value)
        for _, fn in relax_functions(mod)
        for names in (gradient_names(fn), term_names(fn))
        for value in names.values()
    }
    roles, stages, sequence, context_stages = {}, set(), False, set()
    experts: list[str] = []
    for number, (axis, size) in enumerate(exported.mesh.axes.items()):
        if size == 1:
            continue
        divided = _divided_experts(exported, number)
        role, stage = _role(exported, number, gradients, divided)
        roles[axis] = role
        stages |= {stage} if stage else set()
        if divided:
            experts.append(axis)
        if role == CONTEXT:
            context_stages.add(stage)
        if role == TENSOR:
            sequence = axis in plan.regather or _shards_values(plan, number)
    if len(stages) > 1:
        raise unsupported("axes share different parts of the training state", "Use one stage.")
    zero_stage = max(stages, default=0)
    shares = zero_stage > 0 and context_stages == {zero_stage}
    described = replace(
        exported, roles=roles, zero_stage=zero_stage, sequence=sequence, context_state=shares,
        expert_axes=tuple(experts),
    )  # fmt: skip
    _check_order(described)
    return described


def check_devices(plan: Plan) -> None:
    """Refuse (DIST0241) devices and parts of a schedule that trainers do not take."""
    schedule, mesh = plan.schedule, plan.meshes[0]
    named = mesh.device_ids and mesh.device_ids != tuple(range(mesh.device_count))
    if schedule is None and (mesh.start or named):
        raise unsupported(
            "the mesh names devices, and trainers number their ranks from 0",
            "Remove start and device_ids, or export the format jax.",
        )
    for name in ("cuts", "devices", "meshes", "units", "stash", "offload"):
        if getattr(schedule, name, None):
            raise unsupported(
                f'the schedule has "{name}", which no option of a trainer says', f"Remove {name}."
            )


def _check_order(exported: ExportedPlan) -> None:
    """Refuse (DIST0241) a mesh whose axes are not in the order of the ranks of trainers.

    Ranks of tensor parallelism are consecutive, those of context parallelism are around them, and
    those of data parallelism around both; experts are divided over consecutive ranks of these.
    """
    order = {DATA: 0, ZERO: 0, CONTEXT: 2, TENSOR: 3}
    axes = [axis for axis in exported.mesh.axes if axis in exported.roles]
    places = [order[exported.roles[axis]] + (axis in exported.expert_axes) for axis in axes]
    if places != sorted(places):
        right = sorted(axes, key=lambda axis: places[axes.index(axis)])
        raise unsupported(
            f"the axes {', '.join(axes)} are not in the order of the ranks of trainers",
            f"Use the order {', '.join(right)}.",
        )


def _divided_experts(exported: ExportedPlan, axis: int) -> list[PlacedParameter]:
    """Return the weights of which an axis of the batch divides the experts, rather than stores.

    They are stationary along it, or alone: ZeRO stores all weights in parts, and gathers them.
    """
    weights = [p for p in exported.weights if p.labels[axis] >= 0]
    stacked = [p for p in weights if p.expert_dim == p.labels[axis]]
    batch = any(p.is_data and p.labels[axis] == 0 for p in exported.parameters if p.shape)
    if not batch or len(stacked) == len(weights):
        return stacked if batch else []
    return [p for p in stacked if _is_stationary(exported.plan, p, axis)]


def _is_stationary(plan: Plan, parameter: PlacedParameter, axis: int) -> bool:
    """Return whether a rule shards a parameter along an axis, and forbids to move it there."""
    return any(
        rule.stationary and axis not in rule.moving and _is_sharded(rule.placement[axis])
        for rule in _rules_of(plan, parameter.name)
    )


def _role(
    exported: ExportedPlan,
    axis: int,
    gradients: Collection[str],
    experts: Collection[PlacedParameter],
) -> tuple[str, int]:
    """Return the role of an axis, and the stage of ZeRO.

    Raises
    ------
    PlanError
        DIST0241 the axis has no role, or shards only some of the training state.
    """
    name = exported.mesh.axis_names[axis]
    remedy = "Export the format jax, which has the placement of every parameter."
    data = {p.labels[axis] for p in exported.parameters if p.is_data and p.shape} - {-1}
    weights = [p for p in exported.weights if p not in experts]
    divided = [p for p in weights if p.labels[axis] >= 0]
    if not data and divided:
        return TENSOR, 0
    if data not in ({0}, {1}) or (data == {1} and experts):
        raise unsupported(f'the mesh axis "{name}" stands for no parallelism that trainers know',
                          remedy)  # fmt: skip
    for weight in divided:
        if _is_stationary(exported.plan, weight, axis):
            raise unsupported(
                f'the axis "{name}" shards the batch, and "{weight.name}" is not gathered along it',
                remedy,
            )
    of_experts = {p.name for p in experts}
    states = [
        p for p in exported.parameters
        if not p.is_data and p not in exported.weights
        and p.name.rpartition(".")[0] not in of_experts
    ]  # fmt: skip
    grads = any(
        rule.kind == "value" and rule.name in gradients and _is_sharded(rule.placement[axis])
        for rule in exported.plan.rules
    )
    stored = [p for p in states if p.labels[axis] >= 0]
    stage = 3 if divided else (2 if grads else 1) if stored else 0
    for whole in (weights if stage == 3 else []) + (states if stage else []):
        if _could_be_stored(whole, axis, exported.mesh.axes[name]):
            raise unsupported(
                f'the axis "{name}" stores others in parts, and "{whole.name}" whole', remedy
            )
    if data == {1}:
        return CONTEXT, stage
    return ZERO if stage else DATA, stage


def _could_be_stored(parameter: PlacedParameter, axis: int, size: int) -> bool:
    """Return whether an axis leaves a parameter whole that it could store in parts."""
    free = [n for dim, n in enumerate(parameter.shape) if dim not in parameter.labels]
    return parameter.labels[axis] < 0 and any(n % size == 0 for n in free)


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


def context_form(mod: ir.IRModule, exported: ExportedPlan) -> str:
    """Return how attention is computed over shards of the sequence, as ``context_parallel`` does.

    Raises
    ------
    PlanError
        DIST0241 the plan has none of the forms.
    """
    axis = exported.axis_of(CONTEXT)
    assert axis is not None
    if axis in exported.plan.ring:
        return "ring"
    number, size = exported.mesh.axis_number(axis), exported.mesh.axes[axis]
    ours = set(_value_labels(exported.plan, number).items())
    labels = {form: set[tuple[object, int]]() for form in ("all_to_all", "gather")}
    for form, known in labels.items():
        with contextlib.suppress(DistIRError):  # its heads are not divisible, for example
            plan = make_plan(mod, f"context_parallel:axis={axis},form={form}", {axis: size})
            known.update(_value_labels(plan, 0).items())
    for form, known in labels.items():  # ZeRO places arguments too, the same for all forms
        distinct = known.difference(*(other for name, other in labels.items() if name != form))
        if distinct and distinct <= ours:
            return form
    raise unsupported(
        f'attention over the shards of "{axis}" has none of the forms of context_parallel',
        "Use the strategy context_parallel.",
    )


def _value_labels(plan: Plan, axis: int) -> dict[tuple[object, ...], int]:
    """Return the labels along an axis of the values and arguments that rules place."""
    return {
        (rule.kind, rule.name, rule.function, rule.index, rule.arg): label
        for rule in plan.rules
        if rule.kind != "param" and (label := rule.placement[axis]) is not None
    }


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
