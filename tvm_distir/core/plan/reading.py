# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read plans from JSON; an unknown key is an error that names the nearest known key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.support import (
    LARGEST,
    DistIRError,
    Faults,
    JsonValue,
    MeshError,
    PlanError,
    read_json,
)

from .schema import (
    DEFAULT_MESH,
    KINDS,
    SCHEMA_VERSION,
    MeshSpec,
    OpenLabels,
    PlanRule,
    check_rule,
    faults_of_plan,
    parse_open_placement,
)

_PLAN_KEYS = (
    "schema_version",
    "mesh",
    "meshes",
    "rules",
    "recompute",
    "ring",
    "regather",
    "schedule",
    "labels",
    "complete",
)
_MESH_KEYS = ("axes", "start", "device_ids")
_RULE_KEYS: dict[str, tuple[str, ...]] = {
    "param": ("param", "function", "placement", "stationary", "moving", "mesh"),
    "value": ("value", "function", "placement", "stationary", "moving", "mesh"),
    "call": ("call", "index", "arg", "function", "placement", "stationary", "moving", "mesh"),
}
Made = TypeVar("Made")


def _wrong(place: str, what: str, remedy: str) -> PlanError:
    return PlanError("DIST0221", what, place=place, remedy=remedy)


def _unread(place: str, what: str, remedy: str) -> PlanError:
    return PlanError("DIST0220", what, place=place, remedy=remedy)


def _other_version(place: str, what: str, remedy: str) -> PlanError:
    return PlanError("DIST0222", what, place=place, remedy=remedy)


def read_plan(data: Mapping[str, Any], place: str, make: Callable[..., Made]) -> Made:
    """Pass the meshes and rules of a JSON object to ``make``.

    Parameters
    ----------
    data : mapping
        The object, with ``schema_version`` (1), ``mesh`` (axes) or ``meshes`` (name to ``axes``,
        ``start``, ``device_ids``), ``rules`` (see :class:`PlanRule`; either ``param``, ``value`` or
        ``call``), ``recompute`` (policies by functions, see :mod:`.recomputation`), ``ring`` and
        ``regather`` (names of axes), ``schedule`` (see :class:`~.schedule.Schedule`), ``labels``
        (the decided placements of all values: ``rules`` has how many of the rules they were decided
        under), ``complete`` (whether any axis may shard what the rules leave open).
    place : str
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
    top = JsonValue(data, place, _wrong).object(_PLAN_KEYS, optional=_PLAN_KEYS)
    if "schema_version" not in top:
        raise PlanError(
            "DIST0222",
            'the plan has no "schema_version"',
            place=place,
            remedy=f'Add "schema_version": {SCHEMA_VERSION}.',
        )
    JsonValue(data["schema_version"], place, _other_version).version(SCHEMA_VERSION)
    faults = faults_of_plan(place)
    names, specs = _read_meshes(top, faults)
    rules: list[PlanRule] = []
    known = len(specs) == len(names) > 0  # rules are not compared with meshes that are wrong
    for line in _listed(top, "rules"):
        with faults.gathered():
            rule = _read_rule(line, names)
            if known:
                check_rule(rule, specs, f"{line.place} ({rule.title})")
            rules.append(rule)
    recompute: dict[str, str] = {}
    for name, value in top["recompute"].fields() if "recompute" in top else ():
        with faults.gathered():
            recompute[name] = value.text()
    named: dict[str, list[str]] = {"ring": [], "regather": []}
    for key, axes in named.items():
        for value in _listed(top, key):
            with faults.gathered():
                axes.append(value.text())
    schedule: Schedule | None = None
    if "schedule" in top:
        with faults.gathered():
            schedule = Schedule.from_json(top["schedule"])
    labels: Mapping[str, Any] | None = None
    if "labels" in top:
        with faults.gathered():
            labels = top["labels"].object().data
    complete = False
    if "complete" in top:
        with faults.gathered():
            complete = top["complete"].flag()
    faults.raise_all()
    try:
        lists = (tuple(axes) for axes in named.values())
        return make(tuple(specs), tuple(rules), recompute, *lists, schedule, labels, complete)
    except DistIRError as error:
        raise error.placed(lambda at: at if at.startswith("plan") else f"{place}/{at}") from None


def read_own_rules(labels: Mapping[str, Any], rules: int) -> int:
    """Return how many rules of a plan its labels do not replace (PlanError DIST0221)."""
    return JsonValue(labels.get("rules"), "labels/rules", _wrong).integer(most=rules)


def _read_meshes(top: JsonValue, faults: Faults) -> tuple[list[str], list[MeshSpec]]:
    """Return the names of all meshes, and those without a fault."""
    if ("mesh" in top) == ("meshes" in top):
        raise top.wrong(
            'a plan has either "mesh" or "meshes"',
            'Give "mesh": {"dp": 2}, or "meshes" with a name for each of several.',
        )
    specs: list[MeshSpec] = []
    if "mesh" in top:
        with faults.gathered():
            specs.append(MeshSpec(DEFAULT_MESH, top["mesh"].data))
        return [DEFAULT_MESH], specs
    meshes = dict(top["meshes"].fields())
    for name, value in meshes.items():
        with faults.gathered():
            specs.append(_read_mesh(name, value))
    return list(meshes), specs


def _read_mesh(name: str, data: JsonValue) -> MeshSpec:
    fields = data.object(_MESH_KEYS, optional=_MESH_KEYS)
    if "axes" not in fields:
        raise fields.wrong('the mesh has no "axes"', 'Add "axes": {"tp": 2}.')
    if "start" in fields and "device_ids" in fields:
        raise fields.wrong('a mesh has either "start" or "device_ids"', "Remove one of them.")
    ids = [device.integer(least=-LARGEST) for device in _listed(fields, "device_ids")]
    if "device_ids" in fields and not ids:
        raise MeshError(
            "DIST0202",
            "the list of devices is empty",
            place=fields.place,
            remedy="List the devices.",
        )
    start = fields["start"].integer(least=-LARGEST) if "start" in fields else 0
    return MeshSpec(name, fields["axes"].data, start, tuple(ids))


def _listed(data: JsonValue, key: str) -> list[JsonValue]:
    return data[key].items() if key in data else []


def _read_rule(data: JsonValue, meshes: Sequence[str]) -> PlanRule:
    kinds = [kind for kind in KINDS if kind in data.object()]
    if len(kinds) != 1:
        known = sorted({key for keys in _RULE_KEYS.values() for key in keys})
        data.object(known, optional=known)
        raise data.wrong(
            f"a rule names one of {', '.join(KINDS)}; this one names "
            + (" and ".join(kinds) or "none"),
            "Write a separate rule for each.",
        )
    kind = kinds[0]
    rule = data.object(_RULE_KEYS[kind], optional=_RULE_KEYS[kind])
    if "placement" not in rule:
        raise rule.wrong(
            'the rule has no "placement"', 'Add one entry per mesh axis: "placement": "S[0], R".'
        )
    faults = faults_of_plan(rule.place)
    if "mesh" not in rule and len(meshes) > 1:
        faults.add(
            rule.wrong(
                "the rule does not name a mesh, and there are several",
                f'Add "mesh", one of: {", ".join(meshes)}.',
            )
        )

    def field(key: str, read: Callable[[JsonValue], Made], missing: Made) -> Made:
        if key in rule:
            with faults.gathered():
                return read(rule[key])
        return missing

    only = meshes[0] if meshes else DEFAULT_MESH
    none: tuple[int, ...] = ()
    no_labels: OpenLabels = ()
    name = field(kind, _text, "")
    placement = field("placement", _placement, no_labels)
    mesh = field("mesh", _text, only)
    stationary = field("stationary", JsonValue.flag, False)
    function = field("function", _text_or_none, None)
    index = field("index", _integer, None)
    arg = field("arg", _integer, None)
    moving = field("moving", _integers, none)
    faults.raise_all()
    try:
        return PlanRule(
            kind, name, placement, mesh, stationary, function, index, arg, moving=moving
        )
    except PlanError as error:
        path = rule.place
        raise error.placed(lambda at: at if at.startswith(path) else f"{path} ({at})") from None


def _text(value: JsonValue) -> str:
    return value.text(empty=True)


def _text_or_none(value: JsonValue) -> str | None:
    return value.text(empty=True)


def _integer(value: JsonValue) -> int | None:
    return value.integer(least=-LARGEST)


def _integers(value: JsonValue) -> tuple[int, ...]:
    return tuple(item.integer(least=-LARGEST) for item in value.items())


def _placement(value: JsonValue) -> OpenLabels:
    return parse_open_placement(value.text(empty=True), value.place)


def load_plan(path: str | Path, make: Callable[..., Made]) -> Made:
    """Pass the meshes and rules of a JSON file to ``make``.

    Raises
    ------
    PlanError
        DIST0220 when the file cannot be read or is no JSON, and all of :func:`read_plan`.
    """
    return read_plan(read_json(path, _unread, repeated=_wrong), str(path), make)
