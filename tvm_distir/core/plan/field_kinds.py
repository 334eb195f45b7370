# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check that the fields of a plan have the types that they need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.support import Faults, PlanError, shortened

from .schema import MeshSpec


def _are_names(value: Any) -> bool:
    listed = isinstance(value, Iterable) and not isinstance(value, str)
    return listed and all(isinstance(name, str) for name in value)


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "meshes": ("names and sizes of mesh axes, or MeshSpecs",
               lambda meshes: all(isinstance(mesh, MeshSpec) for mesh in meshes)),
    "recompute": ("an object with policies by function",
                  lambda names: isinstance(names, Mapping) and _are_names(names.values())),
    "ring": ("a list of mesh axes", _are_names),
    "regather": ("a list of mesh axes", _are_names),
    "schedule": ("a Schedule", lambda schedule: isinstance(schedule, Schedule | None)),
    "labels": ("an object", lambda labels: isinstance(labels, Mapping | None)),
    "complete": ("True or False", lambda complete: isinstance(complete, bool)),
    "attention": ('"fused" or empty', lambda attention: attention in ("", "fused")),
}  # fmt: skip
"""What the fields of a plan are, in words and as a check."""


def check_kinds(values: Mapping[str, Any], faults: Faults) -> None:
    """Refuse values of other types than the fields have."""
    for name, (words, check) in _KINDS.items():
        if not check(values[name]):
            problem = f"{shortened(repr(values[name]))} is not {words}"
            faults.add(PlanError("DIST0221", problem, location=name, remedy=f"Give {words}."))
    faults.raise_all()
