# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write plans as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_distir.core.plan.schedules.schedule import Schedule, stated
from tvm_distir.support import PlanError, write_atomically

from .partition_spec import PartitionSpec
from .schema import SCHEMA_VERSION, MeshSpec, PlanRule, labels_text


@dataclass(frozen=True, init=False)
class PlanFields:
    """The fields of a plan, which :class:`~tvm_distir.core.plan.Plan` describes."""

    meshes: tuple[MeshSpec, ...]
    rules: tuple[PlanRule, ...]
    recompute: Mapping[str, str]
    ring: tuple[str, ...]
    regather: tuple[str, ...]
    schedule: Schedule | None
    labels: Mapping[str, Any] | None
    complete: bool
    attention: str


def plan_dict(plan: PlanFields) -> dict[str, Any]:
    """Return the JSON form of a plan, without default values."""
    meshes = plan.meshes
    out: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    if len(meshes) == 1 and meshes[0].is_default:
        out["mesh"] = dict(meshes[0].axes)
    else:
        out["meshes"] = {mesh.name: _mesh_dict(mesh) for mesh in meshes}
    of_name = {mesh.name: mesh for mesh in meshes}
    out["rules"] = [_rule_dict(rule, of_name) for rule in plan.rules]
    out |= stated(plan, "recompute", "ring", "regather")
    if plan.schedule is not None:
        out["schedule"] = plan.schedule.to_dict()
    return out | stated(plan, "labels", "complete", "attention")


def _mesh_dict(mesh: MeshSpec) -> dict[str, Any]:
    ids = {"device_ids": list(mesh.device_ids)} if mesh.device_ids else {"start": mesh.start}
    return {"axes": dict(mesh.axes), **ids}


def _rule_dict(rule: PlanRule, meshes: Mapping[str, MeshSpec]) -> dict[str, Any]:
    out: dict[str, Any] = {rule.kind: rule.name}
    for key in ("function", "index", "arg"):
        if getattr(rule, key) is not None:
            out[key] = getattr(rule, key)
    out["placement"] = labels_text(rule.placement)
    if rule.orders:
        names = meshes[rule.mesh].axis_names
        spec = PartitionSpec.of_labels(rule.placement, names)
        stated_axes = {frozenset(names[a] for a in axes): axes for axes in rule.orders}
        out["placement"] = [
            [names[a] for a in stated_axes[frozenset(entry)]] if isinstance(entry, tuple) else entry
            for entry in spec
        ]
    out |= stated(rule, "stationary", "moving", "segments")
    return {**out, "mesh": rule.mesh} if len(meshes) > 1 else out


def save_plan(data: Mapping[str, Any], path: str | Path) -> None:
    """Write the JSON form of a plan, through a file beside it that is then renamed.

    Raises
    ------
    PlanError
        DIST0227 when it cannot be written.
    """
    target = Path(path)
    text = json.dumps(data, indent=2) + "\n"
    try:
        write_atomically(target, text)
    except OSError as error:
        problem = f"cannot write the plan: {error.strerror or error}"
        remedy = "Choose a folder that exists and can be written."
        raise PlanError("DIST0227", problem, location=str(target), remedy=remedy) from error
