# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write plans as Python code for PyTorch and JAX."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tvm import ir

from tvm_distir.core.plan import NONE
from tvm_distir.support import templates_of

from .axis_uses import CONTEXT, DATA, TENSOR, ZERO
from .exported_plan import ExportedPlan, PlacedParameter, unsupported
from .reference_plan import check_reference

_SHOWN = 3
"""The most names of intermediate values that a docstring has."""


def jax_code(mod: ir.IRModule, exported: ExportedPlan) -> str:
    """Write the ``PartitionSpec`` of every parameter, and the mesh, as code for JAX."""
    if exported.plan.schedule is not None:
        raise unsupported("JAX has no pipeline schedules", "Choose a plan without stages.")
    _check_code(exported)
    if exported.plan.ring:
        raise unsupported("a PartitionSpec has no ring attention", "Use context_parallel without.")
    fused = [parameter.name for parameter in exported.parameters if parameter.is_fused]
    if fused:
        raise unsupported(
            f'each shard of "{fused[0]}" has parts of several segments, and those of JAX are whole',
            "Split the weight, or replicate it.",
        )
    mesh = exported.mesh
    devices = [int(x) for x in mesh.device_ids] or range(mesh.start, mesh.start + mesh.device_count)
    return _code(exported, "jax", mesh=mesh, devices=[*devices], parameters=exported.parameters)


def _code(exported: ExportedPlan, form: str, **values: object) -> str:
    """Fill the template of a form."""
    template = templates_of(__package__, escape=False).get_template(f"{form}.py.j2")
    return template.render(note=_left_to_the_framework(exported), repr=repr, **values)


def _check_code(exported: ExportedPlan) -> None:
    """Refuse (DIST0241) recomputation, which the code of a model has."""
    if set(exported.plan.recompute.values()) - {NONE}:
        raise unsupported(
            "recomputation is part of the code of the model",
            "Choose a plan without recomputation, and write it there.",
        )


def _left_to_the_framework(exported: ExportedPlan) -> str:
    """Return lines of a docstring that name the rules of intermediate values; empty for none.

    Names of updated weights and gradients, which are placed as weights, are left out.
    """
    names = {p.name for p in exported.parameters}
    rules = [
        rule.name for rule in exported.plan.rules
        if rule.kind != "param" and rule.name.removesuffix("_updated") not in names
    ]  # fmt: skip
    if not rules:
        return ""
    shown = ", ".join(dict.fromkeys(rules[:_SHOWN]))
    more = ", ..." if len(rules) > _SHOWN else ""
    return (
        f"\n\nNot stated: {len(rules)} placements of intermediate values\n({shown}{more}), which "
        "the framework chooses.\n"
    )


def dtensor_code(mod: ir.IRModule, exported: ExportedPlan) -> str:
    """Write a function for PyTorch that applies ``parallelize_module`` and ``fully_shard``."""
    _check_dtensor(exported)
    check_reference(mod, exported)
    tensor = exported.axis_of(TENSOR)
    styles = _styles(exported, tensor) if tensor is not None else []
    replicas, shards = exported.axis_of(DATA), exported.axis_of(ZERO)
    axes = dict(exported.mesh.axes)
    if replicas is not None and shards is None:  # fully_shard over one device only replicates
        shards = "shard"
        axes = {**axes, shards: 1}
        order = [replicas, shards, *(axis for axis in axes if axis not in (replicas, shards))]
        axes = {axis: axes[axis] for axis in order}
    sharded_over = shards if replicas is None else (replicas, shards)
    return _code(
        exported, "dtensor", tensor=tensor, styles=styles, shards=shards, sharded_over=sharded_over,
        stacks=_stacks(exported.weights), device_count=exported.mesh.device_count,
        sizes=tuple(axes.values()), axes=tuple(axes), parameters=exported.parameters,
    )  # fmt: skip


def _check_dtensor(exported: ExportedPlan) -> None:
    """Refuse (DIST0241) what PyTorch's parallelize_module and fully_shard do not express."""
    if exported.plan.schedule is not None:
        raise unsupported("parallelize_module has no stages", "Choose a plan without stages.")
    _check_code(exported)
    if exported.expert_axes:
        raise unsupported(
            f'the axis "{exported.expert_axes[0]}" divides experts, for which PyTorch has no style',
            "Use the format megatron, torchtitan or deepspeed.",
        )
    for axis, use in exported.uses.items():
        if use == CONTEXT or (use == ZERO and exported.zero_stage < 3):
            context = use == CONTEXT
            subject = "shards of the sequence" if context else "sharded optimizer states alone"
            raise unsupported(
                f'{subject} (axis "{axis}") are not expressed by parallelize_module and '
                "fully_shard",
                "Use data_parallel, fsdp and megatron, or another format.",
            )
    if exported.sequence:
        raise unsupported(
            "activations are sharded along the axis of tensor parallelism",
            "Use megatron without sequence=1, or the format megatron.",
        )


def _styles(exported: ExportedPlan, axis: str) -> list[tuple[str, str]]:
    """Return the style of each module with a sharded weight, by its pattern."""
    number = exported.mesh.axis_number(axis)
    styles: dict[str, str] = {}
    for weight in exported.weights:
        module, _, kind = weight.name.rpartition(".")
        if weight.labels[number] < 0 or kind != "weight":
            continue
        if weight.is_fused:
            raise unsupported(
                f'each shard of "{weight.name}" has parts of several segments', "Split the weight."
            )
        if len(weight.shape) != 2:
            raise unsupported(
                f'"{weight.name}" has {len(weight.shape)} dims, and is no weight of a linear layer',
                "Replicate it.",
            )
        pattern = re.sub(r"\.\d+(?=\.|$)", ".*", module)
        style = _style(weight, number, in_layer=pattern != module)
        if styles.setdefault(pattern, style) != style:
            raise unsupported(f'layers shard "{pattern}" in different ways', "Use one placement.")
    return list(styles.items())


def _style(weight: PlacedParameter, number: int, in_layer: bool) -> str:
    """Return the style of a module: of (out, in) dim 0 by columns of its product, dim 1 by rows."""
    if weight.is_table:
        by_rows = weight.labels[number] == 0
        where = "input_layouts=Replicate()" if by_rows else "output_layouts=Replicate()"
        return f"{'Rowwise' if by_rows else 'Colwise'}Parallel({where})"
    if weight.labels[number] == 1:
        return "RowwiseParallel()"
    return "ColwiseParallel()" if in_layer else "ColwiseParallel(output_layouts=Replicate())"


def _stacks(weights: Iterable[PlacedParameter]) -> list[str]:
    """Return the modules that hold layers by number."""
    matches = (re.match(r"(.+?)\.\d+\.", weight.name) for weight in weights)
    return list(dict.fromkeys(match[1] for match in matches if match is not None))
