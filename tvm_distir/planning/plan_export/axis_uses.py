# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the kind of parallelism that each mesh axis of a plan stands for."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Collection, Mapping
from dataclasses import replace

from tvm import ir

from tvm_distir.core.ir import relax_functions
from tvm_distir.core.plan import Plan
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.planning.strategies.training_parts import noted_names
from tvm_distir.support import REFUSALS

from .exported_plan import ExportedPlan, PlacedParameter, placed, unsupported

DATA, ZERO, TENSOR, CONTEXT = "data", "zero", "tensor", "context"
"""The roles of mesh axes: replicas of the model, replicas that share its training state, tensor
parallelism, and shards of the sequence."""


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
        glob.escape(value): weight
        for _, fn in relax_functions(mod)
        for names in (noted_names(fn, "gradients"), noted_names(fn, "terms"))
        for weight, value in names.items()
    }
    uses, stages, sequence, context_stages = {}, set(), False, set()
    experts: list[str] = []
    for number, (axis, size) in enumerate(exported.mesh.axes.items()):
        if size == 1:
            continue
        divided = _divided_experts(exported, number)
        use, stage = _use(exported, number, gradients, divided)
        uses[axis] = use
        stages |= {stage} if stage else set()
        if divided:
            experts.append(axis)
        if use == CONTEXT:
            context_stages.add(stage)
        if use == TENSOR:
            sequence = axis in plan.regather or _shards_values(plan, number)
    if len(stages) > 1:
        raise unsupported("axes share different parts of the training state", "Use one stage.")
    zero_stage = max(stages, default=0)
    shares = zero_stage > 0 and context_stages == {zero_stage}
    described = replace(
        exported, uses=uses, zero_stage=zero_stage, sequence=sequence, context_state=shares,
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
    those of data parallelism around both; experts are divided over consecutive ranks of these, or
    of all but those of tensor parallelism.
    """
    order = {DATA: 0, ZERO: 0, CONTEXT: 2, TENSOR: 4}
    axes = [axis for axis in exported.mesh.axes if axis in exported.uses]
    positions = [order[exported.uses[axis]] + (axis in exported.expert_axes) for axis in axes]
    if positions != sorted(positions):
        right = sorted(axes, key=lambda axis: positions[axes.index(axis)])
        raise unsupported(
            f"the axes {', '.join(axes)} are not in the order of the ranks of trainers",
            f"Use the order {', '.join(right)}.",
        )


def _divided_experts(exported: ExportedPlan, axis: int) -> list[PlacedParameter]:
    """Return the weights of which an axis divides the experts, rather than stores.

    Along an axis of the data they are stationary, or alone: ZeRO stores all weights in parts, and
    gathers them. Along one of tensor parallelism they are beside other weights.
    """
    weights = [p for p in exported.weights if p.labels[axis] >= 0]
    stacked = [p for p in weights if p.expert_dim == p.labels[axis]]
    data = any(p.is_data and p.labels[axis] >= 0 for p in exported.parameters if p.shape)
    if not data:
        return stacked if len(stacked) < len(weights) else []
    if len(stacked) == len(weights):
        return stacked
    return [p for p in stacked if _is_stationary(p, axis)]


def _is_stationary(parameter: PlacedParameter, axis: int) -> bool:
    """Return whether a rule shards a parameter along an axis, and forbids to move it there."""
    return any(
        rule.stationary and axis not in rule.moving and _is_sharded(rule.placement[axis])
        for rule in parameter.rules
    )


def _use(
    exported: ExportedPlan,
    axis: int,
    gradients: Mapping[str, str],
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
    of_experts = {p.name for p in experts}
    weights = [p for p in exported.weights if p.name not in of_experts]
    divided = [p for p in weights if p.labels[axis] >= 0]
    if not data and divided:
        return TENSOR, 0
    if data not in ({0}, {1}):
        raise unsupported(f'the mesh axis "{name}" stands for no parallelism that trainers know',
                          remedy)  # fmt: skip
    for weight in divided:
        if _is_stationary(weight, axis):
            raise unsupported(
                f'the axis "{name}" shards the batch, and "{weight.name}" is not gathered along it',
                remedy,
            )
    names = {p.name for p in exported.weights}
    states = [
        p for p in exported.parameters
        if not p.is_data and p.name not in names
        and p.name.rpartition(".")[0] not in of_experts
    ]  # fmt: skip
    grads = any(
        rule.kind == "value"
        and rule.name in gradients
        and gradients[rule.name] not in of_experts
        and _is_sharded(rule.placement[axis])
        for rule in exported.plan.rules
    )
    stored = [p for p in states if p.labels[axis] >= 0]
    stage = 3 if divided else (2 if grads else 1) if stored else 0
    if data == {1}:
        return CONTEXT, stage
    return ZERO if stage else DATA, stage


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


def context_method(mod: ir.IRModule, exported: ExportedPlan) -> str:
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
    ours = set(value_labels(exported.plan, number).items())
    labels = {form: set[tuple[object, int]]() for form in ("all_to_all", "gather")}
    for form, known in labels.items():
        with contextlib.suppress(*REFUSALS):  # its heads are not divisible, for example
            plan = make_plan(mod, f"context_parallel:axis={axis},form={form}", {axis: size})
            known.update(value_labels(plan, 0).items())
    for form, known in labels.items():  # ZeRO places arguments too, the same for all forms
        distinct = known.difference(*(other for name, other in labels.items() if name != form))
        if distinct and distinct <= ours:
            return form
    raise unsupported(
        f'attention over the shards of "{axis}" has none of the forms of context_parallel',
        "Use the strategy context_parallel.",
    )


def value_labels(
    plan: Plan, axis: int, inner: Collection[str] = ()
) -> dict[tuple[object, ...], int]:
    """Return the labels along an axis of the values and arguments that rules place.

    ``inner`` names functions whose parameters are among them.
    """
    return {
        (rule.kind, rule.name, rule.function, rule.index, rule.arg): label
        for rule in plan.rules
        if (rule.kind != "param" or rule.function in inner)
        and (label := rule.placement[axis]) is not None
    }
