# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the plan as an immutable dataclass whose constructor checks it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

from tvm_distir.core.ir.mesh import mesh_key
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.support import DataTable, Displayed, Faults, MeshError, PlanError, nearest

from .field_kinds import check_kinds
from .partition_spec import PartitionSpec, read_placement
from .plan_display import draw_plan, plan_headline, plan_tables
from .plan_writer import PlanFields, plan_dict, save_plan
from .reading import load_plan, read_own_rules, read_plan, read_rule
from .recomputation import read_plan_policies
from .schema import DEFAULT_MESH, MeshSpec, PlanRule, check_rule, faults_of_plan, find_mesh


@dataclass(frozen=True, init=False)
class Plan(PlanFields, Displayed):
    """Meshes, and rules that place tensors on them; a name takes precedence over a pattern.

    Parameters
    ----------
    meshes : sequence of MeshSpec, or mapping of str to int
        Left out where ``mesh`` is given, which is what a mapping is taken for.
    rules : sequence of PlanRule or of mappings, or mapping
        In a sequence, rules or their JSON form. A mapping has placements of parameters by name or
        pattern: a :class:`.PartitionSpec` (``td.P``), or a text with a label per mesh axis, as
        ``"S[0], ?"``.
    recompute : mapping of str to str
        The recomputation policy of a training step, by functions (:mod:`.recomputation`).
    ring : tuple of str
        Mesh axes along which attention gathers no keys: blocks of them travel around a ring.
    regather : tuple of str
        Mesh axes along which a training step gathers again, in its backward pass, what it has
        gathered in its forward pass: only each device's part is kept in between.
    schedule : Schedule, optional
        The stages and micro-batches of a training step. The mesh is that of a single stage, and
        rules name the functions of stages.
    labels : mapping, optional
        The decided placements of all values of a module, as ``propagation.labels_of`` writes them:
        propagation then decides nothing. The rules express as much of it as rules can.
    complete : bool
        Whether what the rules leave open may be sharded on any dim along any axis, not only on
        dims that follow from theirs: the cheapest completion of the rules.
    attention : str
        ``"fused"`` where the rules are for a module whose softmax attention is a single op:
        ``FuseAttention`` then runs before other passes. A plan with rings is such a plan. Empty:
        attention stays as it is.
    mesh : mapping of str to int, optional
        The axes of the only mesh, major first, in place of ``meshes``.

    Raises
    ------
    PlanError, MeshError
        All faults at once (``error.violations``; DIST0228 where they differ): DIST0202 two equal
        meshes; DIST0203 a placement that cannot be read; DIST0204 one of the wrong length; DIST0206
        an unknown mesh, or an axis of ``ring`` or ``regather`` that no mesh has; DIST0221 no mesh,
        or two of the same name, or a policy that is none.

    Examples
    --------
    >>> plan = Plan(mesh={"dp": 2, "tp": 4}, rules={"x": P("dp"), "*.q_proj.weight": P("tp", None)})
    >>> plan.rules[1].placement
    (-1, 0)
    """

    def __init__(
        self,
        meshes: Iterable[MeshSpec] | Mapping[str, int] = (),
        rules: Iterable[PlanRule | Mapping[str, Any]] | Mapping[str, PartitionSpec | str] = (),
        recompute: Mapping[str, str] | None = None,
        ring: Iterable[str] = (),
        regather: Iterable[str] = (),
        schedule: Schedule | None = None,
        labels: Mapping[str, Any] | None = None,
        complete: bool = False,
        attention: str = "",
        *,
        mesh: Mapping[str, int] | None = None,
    ) -> None:
        faults = faults_of_plan()
        items: Any = meshes
        if isinstance(meshes, Mapping) and mesh is None:
            items, mesh = (), meshes
        specs = tuple(_items(items))
        values: dict[str, Any] = {
            "meshes": specs, "recompute": recompute or {}, "ring": ring, "regather": regather,
            "schedule": schedule, "labels": labels, "complete": complete, "attention": attention,
        }  # fmt: skip
        check_kinds(values, faults)
        if mesh is not None:
            with faults.gathered():
                values["meshes"] = (*specs, MeshSpec(DEFAULT_MESH, mesh))
        values["rules"] = _read_rules(rules, values["meshes"], faults)
        values["recompute"] = dict(values["recompute"])
        values["attention"] = attention or ("fused" if values["ring"] else "")
        for name in ("ring", "regather"):
            values[name] = tuple(sorted(set(values[name])))
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check(faults)

    def _check(self, faults: Faults) -> None:
        """Raise all faults, with those that are known already."""
        with faults.gathered():
            read_plan_policies(self.recompute)
        if self.labels is not None:
            with faults.gathered():
                read_own_rules(self.labels, len(self.rules))
        _check_meshes(self.meshes, faults)
        good: set[tuple[str, int]] = set()  # meshes and lengths of placements
        for number, rule in enumerate(self.rules):
            kind = (rule.mesh, len(rule.placement))
            if kind in good:
                continue
            with faults.gathered():
                check_rule(rule, self.meshes, f"rules/{number} ({rule.title})")
                good.add(kind)
        names = [mesh.name for mesh in self.meshes]
        for name in self.schedule.meshes if self.schedule is not None else ():
            if name not in names:
                problem = f'the plan has no mesh "{name}"'
                remedy = nearest(name, names)
                faults.add(
                    MeshError("DIST0206", problem, location="schedule/meshes", remedy=remedy)
                )
        known = {axis for mesh in self.meshes for axis in mesh.axes}
        for location, axes in (("ring", self.ring), ("regather", self.regather)):
            for axis in (axis_name for axis_name in axes if axis_name not in known):
                problem = f'no mesh has an axis "{axis}"'
                faults.add(
                    MeshError("DIST0206", problem, location=location, remedy=nearest(axis, known))
                )
        faults.raise_all()

    def unused_axes(self) -> tuple[tuple[MeshSpec, str], ...]:
        """Return the mesh axes of several devices along which no rule shards anything."""
        cut = {
            (rule.mesh, axis)
            for rule in self.rules
            for axis, label in enumerate(rule.placement)
            if label is not None and label >= 0
        }
        return tuple(
            (mesh, name)
            for mesh in self.meshes
            for number, (name, size) in enumerate(mesh.axes.items())
            if size > 1 and (mesh.name, number) not in cut
        )

    def without_functions(self, names: Container[str]) -> Plan:
        """Return the plan without rules inside, or for calls of, functions of these names."""
        stays = [
            rule.function not in names and not (rule.kind == "call" and rule.name in names)
            for rule in self.rules
        ]
        labels = self.labels
        if labels is not None:
            labels = {**labels, "rules": sum(stays[: labels["rules"]])}
        return replace(self, rules=tuple(compress(self.rules, stays)), labels=labels)

    def by_rules(self) -> Plan:
        """Return the plan without labels: its rules hold, and propagation decides the rest."""
        return replace(self, labels=None)

    def mesh(self, name: str, location: str = "plan") -> MeshSpec:
        """Return the mesh of a name.

        Raises
        ------
        MeshError
            DIST0206 when the plan has none.
        """
        return find_mesh(self.meshes, name, location)

    @staticmethod
    def from_dict(data: Mapping[str, Any], location: str = "plan") -> Plan:
        """Read the JSON form of a plan; see :func:`.reading.read_plan`."""
        return read_plan(data, location, Plan)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan from a JSON file; see :func:`.reading.load_plan`."""
        return load_plan(path, Plan)

    def _headline(self) -> str:
        return plan_headline(self)

    def _tables(self) -> list[DataTable]:
        return plan_tables(self)

    def _draw(self, axes: Any) -> None:
        draw_plan(self, axes)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; :meth:`from_dict` gives an equal plan."""
        return plan_dict(self)

    def save(self, path: str | Path) -> None:
        """Write the JSON form; the file is complete or untouched.

        Raises
        ------
        PlanError
            DIST0227 when it cannot be written.
        """
        save_plan(self.to_dict(), path)


def _read_rules(rules: Any, meshes: Sequence[MeshSpec], faults: Faults) -> tuple[PlanRule, ...]:
    """Return rules that are PlanRules, in their JSON form, or as placements by name."""
    if isinstance(rules, Mapping):
        lines = [
            (f'rules (param "{name}")', {"param": name, "placement": placement})
            for name, placement in rules.items()
        ]
    else:
        lines = [(f"rules/{number}", rule) for number, rule in enumerate(_items(rules))]
    names, rows = [mesh.name for mesh in meshes], list[PlanRule]()
    for location, rule in lines:
        if isinstance(rule, PlanRule):
            rows.append(rule)
            continue
        with faults.gathered():
            parsed = read_rule(_plain(rule, location), names, meshes, location)
            rows += [] if parsed is None else [parsed]
    return tuple(rows)


def _plain(rule: Any, location: str) -> Any:
    """Return a rule whose placement is JSON data: a text, or the mesh axes of each dim."""
    if not isinstance(rule, Mapping) or isinstance(rule.get("placement", ""), str):
        return rule
    try:
        return {**rule, "placement": read_placement(rule["placement"])}
    except MeshError as error:
        raise error.placed(lambda _: location) from None


def _items(value: Any) -> Iterable[Any]:
    """Return the items of a sequence, or what is none as its only item."""
    return value if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def _check_meshes(meshes: Sequence[MeshSpec], faults: Faults) -> None:
    if not meshes:
        faults.raise_all()  # a mesh with a fault is not missing
        raise PlanError(
            "DIST0221", "the plan has no mesh", location="plan", remedy='Add "mesh": {"dp": 2}.'
        )
    names: list[str] = []
    keys: list[Any] = []
    for mesh in meshes:
        at = f'mesh "{mesh.name}"'
        if mesh.name in names:
            problem = "two meshes have the same name"
            faults.add(PlanError("DIST0221", problem, location=at, remedy="Rename one of them."))
        key = mesh_key(mesh.device_mesh())
        if key in keys:
            same = names[keys.index(key)]
            problem = f'it has the same devices in the same shape as mesh "{same}"'
            remedy = 'Use a single mesh, or give the others "start" or "device_ids".'
            faults.add(MeshError("DIST0202", problem, location=at, remedy=remedy))
        names.append(mesh.name)
        keys.append(key)
