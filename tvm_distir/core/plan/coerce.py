# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convert a plan, its JSON form, its file or the annotations of a module to a plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.mesh import mesh_axes, mesh_devices, mesh_names, mesh_shape, meshes
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.support import PlanError, shortened

from .plan import Plan
from .schema import MeshSpec

PlanLike = Plan | Mapping[str, Any] | str | Path | None
_ANNOTATION = "relax.dist.annotate_sharding"


def as_plan(plan: PlanLike, mod: ir.IRModule) -> Plan:
    """Return a plan from any of its accepted forms.

    Parameters
    ----------
    plan : Plan, mapping, str, Path or None
        A plan, its JSON form, the path of its file; None for the annotations of the module.
    mod : IRModule

    Raises
    ------
    PlanError
        DIST0220 to DIST0222 what is given cannot be read, DIST0238 None is given and the module
        has no annotation.
    """
    if isinstance(plan, Plan):
        return plan
    if plan is None:
        return _annotated(mod)
    if isinstance(plan, Mapping):
        return Plan.from_dict(plan)
    if isinstance(plan, (str, Path)):
        return Plan.load(plan)
    raise PlanError(
        "DIST0221",
        f"{shortened(repr(plan))} is not a plan",
        location="plan",
        remedy="Give a Plan, its JSON form as a dict, or the path of its file.",
    )


def _annotated(mod: ir.IRModule) -> Plan:
    """Return a plan of the module's meshes without rules, for an annotated module."""
    functions = [fn for fn in mod.functions.values() if isinstance(fn, relax.Function)]
    values = (getattr(b, "value", None) for fn in functions for b in all_bindings(fn.body))
    if not any(
        isinstance(value, ir.Call) and getattr(value.op, "name", "") == _ANNOTATION
        for value in values
    ):
        raise PlanError(
            "DIST0238",
            "no plan is given, and the module has no annotations",
            location="module",
            remedy="Pass --plan or --strategy (in Python, plan=), or write "
            "R.dist.annotate_sharding into the module.",
        )
    return plan_of_meshes(mod)


def plan_of_meshes(mod: ir.IRModule) -> Plan:
    """Return a plan of the module's meshes without rules."""
    specs = []
    for mesh, name, axes in zip(meshes(mod), mesh_names(mod), mesh_axes(mod), strict=True):
        sizes = dict(zip(axes, mesh_shape(mesh), strict=True))
        specs.append(MeshSpec(name, sizes, device_ids=tuple(mesh_devices(mesh).ravel().tolist())))
    return Plan(tuple(specs))
