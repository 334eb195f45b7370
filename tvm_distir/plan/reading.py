# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plans from JSON and to JSON. Unknown keys are errors that name the nearest one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import DistIRError, MeshError, PlanError, nearest
from .schema import (
    DEFAULT_MESH,
    KINDS,
    SCHEMA_VERSION,
    MeshSpec,
    Plan,
    Rule,
    labels_text,
    parse_open_placement,
)

_PLAN_KEYS = ("schema_version", "mesh", "meshes", "rules")
_MESH_KEYS = ("axes", "start", "device_ids")
_RULE_KEYS: dict[str, tuple[str, ...]] = {
    "param": ("param", "function", "placement", "stationary", "moving", "mesh"),
    "value": ("value", "function", "placement", "stationary", "moving", "mesh"),
    "call": ("call", "index", "arg", "function", "placement", "stationary", "moving", "mesh"),
}
_WORDS = {
    str: "a text",
    int: "an integer",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def read_plan(data: Mapping[str, Any], place: str = "plan") -> Plan:
    """Plan of a JSON object.

    Parameters
    ----------
    data : mapping
        ``schema_version`` (1), ``mesh`` (axes) or ``meshes`` (name to ``axes``, ``start``,
        ``device_ids``), ``rules`` (see :class:`Rule`; one of ``param``, ``value``, ``call``).
    place : str
        What to call the plan in messages.

    Raises
    ------
    PlanError
        DIST0221 a key or value is wrong, DIST0222 another schema version.
    MeshError
        DIST0201, DIST0202, DIST0203, DIST0204, DIST0206: meshes and placements.
    """
    _expect(data, dict, place)
    _check_keys(data, _PLAN_KEYS, place)
    if "schema_version" not in data:
        raise PlanError(
            "DIST0222",
            'the plan has no "schema_version"',
            place=place,
            remedy=f'Add "schema_version": {SCHEMA_VERSION}.',
        )
    version = data["schema_version"]
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        raise PlanError(
            "DIST0222",
            f"schema version {version!r}",
            place=place,
            remedy=f"This release reads version {SCHEMA_VERSION}.",
        )
    specs = _read_meshes(data, place)
    lines = _expect(data.get("rules", []), list, f"{place}/rules")
    rules = [
        _read_rule(_expect(line, dict, f"{place}/rules/{i}"), specs, f"{place}/rules/{i}")
        for i, line in enumerate(lines)
    ]
    try:
        return Plan(tuple(specs), tuple(rules))
    except DistIRError as error:
        where = error.place if error.place.startswith("plan") else f"{place}/{error.place}"
        raise type(error)(error.code, error.what, place=where, remedy=error.remedy) from None


def _expect(value: Any, kind: type, place: str) -> Any:
    """Return the value if it is of the kind, or refuse it (DIST0221)."""
    fits = isinstance(value, Mapping) if kind is dict else isinstance(value, kind)
    if kind is list:
        fits = isinstance(value, list | tuple)
    if kind is int and isinstance(value, bool):
        fits = False
    if not fits:
        raise PlanError(
            "DIST0221", f"{value!r} is not {_WORDS[kind]}", place=place, remedy="Fix the value."
        )
    return value


def _check_keys(data: Mapping[str, Any], known: Iterable[str], place: str) -> None:
    names = list(known)
    for key in data:
        if key not in names:
            raise PlanError(
                "DIST0221", f'unknown key "{key}"', place=place, remedy=nearest(str(key), names)
            )


def _read_meshes(data: Mapping[str, Any], place: str) -> list[MeshSpec]:
    if ("mesh" in data) == ("meshes" in data):
        raise PlanError(
            "DIST0221",
            'a plan has either "mesh" or "meshes"',
            place=place,
            remedy='Give "mesh": {"dp": 2}, or "meshes" with a name for each.',
        )
    if "mesh" in data:
        return [MeshSpec(DEFAULT_MESH, data["mesh"])]
    specs = []
    for name, value in _expect(data["meshes"], dict, f"{place}/meshes").items():
        where = f"{place}/meshes/{name}"
        _check_keys(_expect(value, dict, where), _MESH_KEYS, where)
        if "axes" not in value:
            raise PlanError(
                "DIST0221", 'the mesh has no "axes"', place=where, remedy='Add "axes": {"tp": 2}.'
            )
        if "start" in value and "device_ids" in value:
            raise PlanError(
                "DIST0221",
                'a mesh has either "start" or "device_ids"',
                place=where,
                remedy="Remove one of them.",
            )
        ids = _expect(value.get("device_ids", []), list, f"{where}/device_ids")
        if "device_ids" in value and not ids:
            raise MeshError(
                "DIST0202", "the list of devices is empty", place=where, remedy="Name the devices."
            )
        specs.append(
            MeshSpec(
                str(name),
                value["axes"],
                _expect(value.get("start", 0), int, f"{where}/start"),
                tuple(_expect(d, int, f"{where}/device_ids") for d in ids),
            )
        )
    return specs


def _read_rule(data: Mapping[str, Any], specs: list[MeshSpec], place: str) -> Rule:
    kinds = [kind for kind in KINDS if kind in data]
    if len(kinds) != 1:
        known = sorted({key for keys in _RULE_KEYS.values() for key in keys})
        _check_keys(data, known, place)
        raise PlanError(
            "DIST0221",
            f"a rule names one of {', '.join(KINDS)}; this one names "
            + (" and ".join(kinds) or "none"),
            place=place,
            remedy="Write one rule for each.",
        )
    kind = kinds[0]
    _check_keys(data, _RULE_KEYS[kind], place)
    name = _expect(data[kind], str, f"{place}/{kind}")
    if "placement" not in data:
        raise PlanError(
            "DIST0221",
            'the rule has no "placement"',
            place=place,
            remedy='Add one entry per mesh axis: "placement": "S(0), R" with square brackets.',
        )
    text = _expect(data["placement"], str, f"{place}/placement")
    mesh = data.get("mesh")
    if mesh is None and len(specs) > 1:
        raise PlanError(
            "DIST0221",
            "the rule does not say on which of the meshes",
            place=place,
            remedy=f'Add "mesh", one of: {", ".join(spec.name for spec in specs)}.',
        )

    def optional(key: str, of: type) -> Any:
        return _expect(data[key], of, f"{place}/{key}") if key in data else None

    moving = optional("moving", list) or []
    try:
        return Rule(
            kind,
            name,
            parse_open_placement(text, f"{place}/placement"),
            mesh=specs[0].name if specs and mesh is None else _expect(mesh, str, f"{place}/mesh"),
            stationary=bool(optional("stationary", bool)),
            function=optional("function", str),
            index=optional("index", int),
            arg=optional("arg", int),
            moving=tuple(_expect(axis, int, f"{place}/moving") for axis in moving),
        )
    except PlanError as error:
        where = error.place if error.place.startswith(place) else f"{place} ({error.place})"
        raise PlanError(error.code, error.what, place=where, remedy=error.remedy) from None


def plan_dict(plan: Plan) -> dict[str, Any]:
    """JSON form of a plan, without what is the default."""
    out: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    if len(plan.meshes) == 1 and plan.meshes[0].is_default:
        out["mesh"] = dict(plan.meshes[0].axes)
    else:
        out["meshes"] = {mesh.name: _mesh_dict(mesh) for mesh in plan.meshes}
    out["rules"] = [_rule_dict(rule, len(plan.meshes) > 1) for rule in plan.rules]
    return out


def _mesh_dict(mesh: MeshSpec) -> dict[str, Any]:
    ids = {"device_ids": list(mesh.device_ids)} if mesh.device_ids else {"start": mesh.start}
    return {"axes": dict(mesh.axes), **ids}


def _rule_dict(rule: Rule, with_mesh: bool) -> dict[str, Any]:
    out: dict[str, Any] = {rule.kind: rule.name}
    for key in ("function", "index", "arg"):
        if getattr(rule, key) is not None:
            out[key] = getattr(rule, key)
    out["placement"] = labels_text(rule.placement)
    if rule.stationary:
        out["stationary"] = True
    if rule.moving:
        out["moving"] = list(rule.moving)
    if with_mesh:
        out["mesh"] = rule.mesh
    return out


def load_plan(path: str | Path) -> Plan:
    """Plan of a JSON file.

    Raises
    ------
    PlanError
        DIST0220 when the file cannot be read or is no JSON, and all of :func:`read_plan`.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        data = json.loads(text, object_pairs_hook=lambda pairs: _unique_keys(pairs, str(path)))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PlanError(
            "DIST0220", f"cannot read the plan: {reason}", place=str(path), remedy="Check the path."
        ) from error
    except (json.JSONDecodeError, RecursionError) as error:
        where = f"{path}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else str(path)
        raise PlanError(
            "DIST0220", f"the plan is no JSON: {error}", place=where, remedy="Fix the file."
        ) from error
    return read_plan(data, str(path))


def _unique_keys(pairs: list[tuple[str, Any]], place: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise PlanError(
                "DIST0221", f'the key "{key}" stands twice', place=place, remedy="Remove one."
            )
        out[key] = value
    return out


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan as JSON, through a file beside it that is then renamed.

    Raises
    ------
    PlanError
        DIST0227 when it cannot be written.
    """
    target = Path(path)
    text = json.dumps(plan_dict(plan), indent=2) + "\n"
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise PlanError(
            "DIST0227",
            f"cannot write the plan: {error.strerror or error}",
            place=str(target),
            remedy="Choose a folder that exists and can be written.",
        ) from error
