# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write plans as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.support import PlanError, write_whole

from .schema import SCHEMA_VERSION, MeshSpec, PlanRule, labels_text


class PlanLike(Protocol):
    """The interface of a plan that is written or shown."""

    @property
    def meshes(self) -> Sequence[MeshSpec]:
        """Return the meshes."""

    @property
    def rules(self) -> Sequence[PlanRule]:
        """Return the rules."""

    @property
    def recompute(self) -> Mapping[str, str]:
        """Return the recomputation policies by function."""

    @property
    def ring(self) -> Sequence[str]:
        """Return the names of the axes."""

    @property
    def regather(self) -> Sequence[str]:
        """Return the names of the axes."""

    @property
    def schedule(self) -> Schedule | None:
        """Return the pipeline schedule."""

    @property
    def labels(self) -> Mapping[str, Any] | None:
        """Return the decided placement of every value."""

    @property
    def complete(self) -> bool:
        """Return whether any axis may shard what the rules leave open."""

    @property
    def attention(self) -> str:
        """Return ``fused`` where the plan is for a module whose attention is an op."""


def plan_dict(plan: PlanLike) -> dict[str, Any]:
    """Return the JSON form of a plan, without default values."""
    meshes = plan.meshes
    out: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    if len(meshes) == 1 and meshes[0].is_default:
        out["mesh"] = dict(meshes[0].axes)
    else:
        out["meshes"] = {mesh.name: _mesh_dict(mesh) for mesh in meshes}
    out["rules"] = [_rule_dict(rule, len(meshes) > 1) for rule in plan.rules]
    if plan.recompute:
        out["recompute"] = dict(plan.recompute)
    if plan.ring:
        out["ring"] = list(plan.ring)
    if plan.regather:
        out["regather"] = list(plan.regather)
    if plan.schedule is not None:
        out["schedule"] = plan.schedule.to_dict()
    if plan.labels is not None:
        out["labels"] = dict(plan.labels)
    if plan.complete:
        out["complete"] = True
    if plan.attention:
        out["attention"] = plan.attention
    return out


def _mesh_dict(mesh: MeshSpec) -> dict[str, Any]:
    ids = {"device_ids": list(mesh.device_ids)} if mesh.device_ids else {"start": mesh.start}
    return {"axes": dict(mesh.axes), **ids}


def _rule_dict(rule: PlanRule, with_mesh: bool) -> dict[str, Any]:
    out: dict[str, Any] = {rule.kind: rule.name}
    for key in ("function", "index", "arg"):
        if getattr(rule, key) is not None:
            out[key] = getattr(rule, key)
    out["placement"] = labels_text(rule.placement)
    if rule.stationary:
        out["stationary"] = True
    if rule.moving:
        out["moving"] = list(rule.moving)
    if rule.segments:
        out["segments"] = list(rule.segments)
    if with_mesh:
        out["mesh"] = rule.mesh
    return out


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
        write_whole(target, text)
    except OSError as error:
        problem = f"cannot write the plan: {error.strerror or error}"
        remedy = "Choose a folder that exists and can be written."
        raise PlanError("DIST0227", problem, place=str(target), remedy=remedy) from error
