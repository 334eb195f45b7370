# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Show plans: a table of rules per mesh, with a column per mesh axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm_distir.support import Column, DataTable

from .plan_writer import PlanFields
from .schema import PlanRule, labels_text

_ROW_INCHES = 0.25


def plan_headline(plan: PlanFields) -> str:
    """Return the meshes of a plan and what it states besides rules."""
    lines = [
        f"plan on {mesh.name} ({', '.join(f'{axis}={size}' for axis, size in mesh.axes.items())})"
        for mesh in plan.meshes
    ]
    if plan.schedule is not None:
        schedule = ", ".join(f"{key} {value}" for key, value in _scalars(plan.schedule.to_dict()))
        lines.append(f"schedule: {schedule}")
    if plan.recompute:
        lines.append(f"recompute: {', '.join(f'{k} {v}' for k, v in plan.recompute.items())}")
    for word, axes in (("ring", plan.ring), ("regather", plan.regather)):
        if axes:
            lines.append(f"{word}: {', '.join(axes)}")
    if plan.complete:
        lines.append("any axis may shard what the rules leave open")
    if plan.attention:
        lines.append("softmax attention is a single op (FuseAttention)")
    if plan.labels is not None:
        lines.append("the placements of all values are decided (labels)")
    return "\n".join(lines)


def _scalars(data: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in data.items() if not isinstance(value, (list, dict))]


def plan_tables(plan: PlanFields) -> list[DataTable]:
    """Return a table of rules per mesh."""
    tables = []
    for mesh in plan.meshes:
        rules = [rule for rule in plan.rules if rule.mesh == mesh.name]
        columns = [Column("rule", "rule"), Column("function", "function")]
        columns += [Column(axis, axis) for axis in mesh.axes]
        columns.append(Column("stationary", "stationary"))
        title = f"{len(rules)} rules on {mesh.name}"
        tables.append(DataTable(title, tuple(columns), [_row(rule) for rule in rules]))
    return tables


def _row(rule: PlanRule) -> list[Any]:
    labels = [labels_text((label,)) for label in rule.placement]
    return [rule.title, rule.function, *labels, "yes" if rule.stationary else None]


def draw_plan(plan: PlanFields, axes: Any) -> None:
    """Draw the rules as rows and the mesh axes as columns, coloured by the dim that they shard."""
    names = [f"{mesh.name}.{axis}" for mesh in plan.meshes for axis in mesh.axes]
    cells = [_cells(plan, rule) for rule in plan.rules]
    dims = [[-1.0 if label is None else float(label) for label in row] for row in cells]
    axes.figure.set_figheight(max(2.0, 1.0 + _ROW_INCHES * len(cells)))
    axes.imshow(dims, aspect="auto", cmap="Pastel1", vmin=-1, vmax=7)
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(cells)), [rule.title for rule in plan.rules])
    for y, rule in enumerate(plan.rules):
        for x, label in enumerate(cells[y]):
            text = labels_text((label,)) if names[x].startswith(f"{rule.mesh}.") else ""
            axes.text(x, y, text, ha="center", va="center")
    axes.set_title("dims sharded by each mesh axis")


def _cells(plan: PlanFields, rule: PlanRule) -> Sequence[int | None]:
    """Return the labels of a rule over the axes of all meshes; None on other meshes."""
    return [
        label
        for mesh in plan.meshes
        for label in (rule.placement if mesh.name == rule.mesh else [None] * len(mesh.axes))
    ]
