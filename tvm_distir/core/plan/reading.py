# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read plans from JSON; an unknown key is an error that names the nearest known key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.support import (
    Check,
    DistIRError,
    Faults,
    Integer,
    MeshError,
    PlanError,
    Text,
    check_version,
    read_json,
    read_model,
    shortened,
)

from .partition_spec import PartitionSpec, read_placement
from .schema import (
    DEFAULT_MESH,
    KINDS,
    SCHEMA_VERSION,
    MeshSpec,
    PlanRule,
    check_rule,
    faults_of_plan,
    find_mesh,
)


@dataclass(frozen=True)
class _PlanFile:
    """The keys of a plan; meshes, rules and the schedule are read one by one."""

    mesh: Any = None
    meshes: dict[str, Any] = field(default_factory=dict)
    rules: tuple[Any, ...] | dict[str, Any] = ()
    recompute: dict[str, Text] = field(default_factory=dict)
    ring: tuple[Text, ...] = ()
    regather: tuple[Text, ...] = ()
    schedule: Any = None
    labels: dict[str, Any] | None = None
    complete: bool = False
    attention: Literal["", "fused"] = ""


@dataclass(frozen=True)
class _MeshFile:
    """The keys of a mesh."""

    axes: Any
    start: Integer | None = None
    device_ids: tuple[Integer, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class _RuleFile:
    """The keys of a rule."""

    param: str | None = None
    value: str | None = None
    call: str | None = None
    placement: Annotated[Any, Check(read_placement)]
    mesh: str | None = None
    stationary: bool = False
    function: str | None = None
    index: Integer | None = None
    arg: Integer | None = None
    moving: tuple[Integer, ...] = ()
    segments: tuple[Integer, ...] = ()


Made = TypeVar("Made")


def _wrong(location: str, problem: str, remedy: str) -> PlanError:
    return PlanError("DIST0221", problem, location=location, remedy=remedy)


def _unread(location: str, problem: str, remedy: str) -> PlanError:
    return PlanError("DIST0220", problem, location=location, remedy=remedy)


def _other_version(location: str, problem: str, remedy: str) -> PlanError:
    return PlanError("DIST0222", problem, location=location, remedy=remedy)


def read_plan(data: Mapping[str, Any], location: str, make: Callable[..., Made]) -> Made:
    """Pass the meshes and rules of a JSON object to ``make``.

    Parameters
    ----------
    data : mapping
        The object, with ``schema_version`` (1), ``mesh`` (axes) or ``meshes`` (name to ``axes``,
        ``start``, ``device_ids``), ``rules`` (see :class:`PlanRule`; either ``param``, ``value`` or
        ``call``; or an object from names of parameters to placements), ``recompute`` (policies by
        functions, see :mod:`.recomputation`), ``ring`` and ``regather`` (names of axes),
        ``schedule`` (see :class:`~.schedule.Schedule`), ``labels`` (the decided placements of all
        values: ``rules`` has how many of the rules they were decided under), ``complete`` (whether
        any axis may shard what the rules leave open), ``attention`` (``fused`` where softmax
        attention that is written out becomes a single op before the rules apply).
    location : str
        The name of the plan in messages.
    make : callable
        :class:`.plan.Plan`.

    Raises
    ------
    PlanError, MeshError
        All faults of meshes and rules at once (``error.violations``; DIST0228 where they differ).
    PlanError
        DIST0221 a key or value is wrong, DIST0222 another schema version.
    MeshError
        DIST0201, DIST0202, DIST0203, DIST0204, DIST0206: meshes and placements.
    """
    top = check_version(
        data, location, _wrong, SCHEMA_VERSION, other=_other_version, assumed=SCHEMA_VERSION
    )
    faults = faults_of_plan(location)
    names, specs = _read_meshes(top, location, faults)
    rules: list[PlanRule] = []
    known = len(specs) == len(names) > 0  # rules are not compared with meshes that are wrong
    for number, line in enumerate(_rule_lines(top.get("rules"))):
        at = f"{location}/rules/{number}"
        with faults.gathered():
            rule = read_rule(line, names, specs if known else (), at)
            if rule is None:
                continue
            if known:
                check_rule(rule, specs, f"{at} ({rule.title})")
            rules.append(rule)
    schedule: Schedule | None = None
    if "schedule" in top:
        with faults.gathered():
            schedule = Schedule.from_dict(top["schedule"], f"{location}/schedule", _wrong)
    rest = _PlanFile()
    with faults.gathered():
        rest = read_model(_PlanFile, top, location, _wrong, faults_of_plan(location))
    faults.raise_all()
    try:
        return make(
            tuple(specs), tuple(rules), rest.recompute, rest.ring, rest.regather, schedule,
            rest.labels, rest.complete, rest.attention,
        )  # fmt: skip
    except DistIRError as error:
        raise error.placed(lambda at: at if at.startswith("plan") else f"{location}/{at}") from None


def read_own_rules(labels: Mapping[str, Any], rules: int) -> int:
    """Return how many rules of a plan its labels do not replace (PlanError DIST0221)."""
    count = labels.get("rules")
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= rules:
        problem = f"{shortened(repr(count))} is not an integer from 0 to {rules}"
        raise _wrong("labels/rules", problem, "Give such an integer.")
    return count


def _of_type(kind: type[Made], data: Any) -> Made:
    """Return data of a type, or nothing: :class:`_PlanFile` refuses other types."""
    return data if isinstance(data, kind) else kind()


def _read_meshes(
    top: Mapping[str, Any], location: str, faults: Faults
) -> tuple[list[str], list[MeshSpec]]:
    """Return the names of all meshes, and those without a fault."""
    specs: list[MeshSpec] = []
    if ("mesh" in top) == ("meshes" in top):
        remedy = 'Give "mesh": {"dp": 2}, or "meshes" with a name for each of several.'
        faults.add(_wrong(location, 'a plan has either "mesh" or "meshes"', remedy))
        return [], specs
    if "mesh" in top:
        with faults.gathered():
            specs.append(MeshSpec(DEFAULT_MESH, top["mesh"]))
        return [DEFAULT_MESH], specs
    meshes: dict[str, Any] = _of_type(dict, top["meshes"])
    for name, data in meshes.items():
        with faults.gathered():
            specs.append(_read_mesh(name, data, f"{location}/meshes/{name}"))
    return list(meshes), specs


def _read_mesh(name: str, data: Any, location: str) -> MeshSpec:
    mesh = read_model(_MeshFile, data, location, _wrong)
    if mesh.start is not None and mesh.device_ids is not None:
        raise _wrong(location, 'a mesh has either "start" or "device_ids"', "Remove one of them.")
    if mesh.device_ids == ():
        problem, remedy = "the list of devices is empty", "List the devices."
        raise MeshError("DIST0202", problem, location=location, remedy=remedy)
    return MeshSpec(name, mesh.axes, mesh.start or 0, mesh.device_ids or ())


def _rule_lines(rules: Any) -> list[Any]:
    """Return the rules of a list, or of an object from names of parameters to placements."""
    if isinstance(rules, dict):
        return [{"param": name, "placement": placement} for name, placement in rules.items()]
    return _of_type(list, rules)


def read_rule(
    data: Any, meshes: Sequence[str], specs: Sequence[MeshSpec], location: str
) -> PlanRule | None:
    """Return a rule; None for a placement by mesh axes where the meshes have faults."""
    rule = read_model(_RuleFile, data, location, _wrong, faults_of_plan(location))
    kinds = [kind for kind in KINDS if getattr(rule, kind) is not None]
    if len(kinds) != 1:
        names = " and ".join(kinds) or "none"
        problem = f"a rule names one of {', '.join(KINDS)}; this one names {names}"
        raise _wrong(location, problem, "Write a separate rule for each.")
    if rule.mesh is None and len(meshes) > 1:
        problem = "the rule does not name a mesh, and there are several"
        raise _wrong(location, problem, f'Add "mesh", one of: {", ".join(meshes)}.')
    [kind], [only, *_] = kinds, [*meshes, DEFAULT_MESH]
    mesh = only if rule.mesh is None else rule.mesh
    labels, orders = rule.placement, tuple[tuple[int, ...], ...]()
    if isinstance(labels, PartitionSpec):
        if not specs:
            return None
        spec = find_mesh(specs, mesh, f'{location} ({kind} "{getattr(rule, kind)}")')
        orders = labels.orders(spec)
        labels = labels.labels(spec, f"{location}/placement")
        if kind != "param" and any(list(axes) != sorted(axes) for axes in orders):
            raise MeshError(
                "DIST0203",
                f'a {kind} is sharded by mesh axes in another order than that of the mesh "{mesh}"',
                location=f"{location}/placement",
                remedy="State orders of axes in param rules; those of other values are chosen.",
            )
    try:
        return PlanRule(
            kind, getattr(rule, kind), labels, mesh, rule.stationary, rule.function, rule.index,
            rule.arg, rule.moving, rule.segments, orders if kind == "param" else (),
        )  # fmt: skip
    except PlanError as error:
        raise error.placed(lambda at: f"{location} ({at})") from None


def load_plan(path: str | Path, make: Callable[..., Made]) -> Made:
    """Pass the meshes and rules of a JSON file to ``make``.

    Raises
    ------
    PlanError
        DIST0220 when the file cannot be read or is no JSON, and all of :func:`read_plan`.
    """
    return read_plan(read_json(path, _unread, repeated=_wrong), str(path), make)
