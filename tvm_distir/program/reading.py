# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs from JSON; nothing that the simulator relies on is left unchecked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import SimulationError, nearest
from .checks import check_program
from .program import (
    COLLECTIVES,
    COMMON_KEYS,
    EXTRA_KEYS,
    KERNEL_CLASSES,
    KINDS,
    ROLES,
    SCHEMA_VERSION,
    TRANSFERS,
    Entry,
    Function,
    Mesh,
    Op,
    Program,
    Value,
)

LARGEST = 1 << 60
"""Bound of every number of a program: sums of a few still fit in 64 bits."""

_INT_KEYS = (
    "flops", "bytes_read", "bytes_written", "mesh", "group_size", "payload_bytes", "wire_bytes",
    "peer_mesh",
)  # fmt: skip
_TEXT_KEYS = ("name", "op", "callee", "otherwise", "dtype", "reason")
_WORDS: Mapping[str, tuple[str, ...]] = {
    "kernel_class": KERNEL_CLASSES,
    "kind": KINDS,
}


def load(path: str | Path) -> Program:
    """See :meth:`Program.load`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise SimulationError(
            "DIST0710",
            f"it cannot be read: {err}",
            place=str(path),
            remedy="Give a file that `tvm-distir analyze -o` wrote.",
        ) from err
    return parse_json(text, str(path))


def parse_json(text: str, place: str) -> Program:
    """See :meth:`Program.from_json`."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise SimulationError(
            "DIST0710", f"it is no JSON: {err}", place=place, remedy="Export the program again."
        ) from err
    return parse(data, place)


def parse(data: Any, place: str) -> Program:
    """See :meth:`Program.from_dict`."""
    if not isinstance(data, Mapping):
        raise _wrong(place, f"a value of type {type(data).__name__}", "Give an object: {...}.")
    version = data.get("schema_version")
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        raise SimulationError(
            "DIST0711",
            f"schema version {version!r}",
            place=place,
            remedy=f"This package reads version {SCHEMA_VERSION}.",
        )
    top = _object(data, ("schema_version", "meshes", "functions", "entries"), place)
    functions = top["functions"]
    if not isinstance(functions, Mapping):
        raise _wrong(f"{place}/functions", "no object", "Give functions by name.")
    program = Program(
        meshes=tuple(
            _mesh(one, f"{place}/meshes[{i}]") for i, one in enumerate(_list(top, "meshes", place))
        ),
        functions={
            str(name): _function(fn, f"{place}/functions/{name}") for name, fn in functions.items()
        },
        entries=tuple(
            _entry(one, f"{place}/entries[{i}]")
            for i, one in enumerate(_list(top, "entries", place))
        ),
    )
    check_program(program, place)
    return program


def _mesh(data: Any, place: str) -> Mesh:
    found = _object(data, ("name", "axes", "shape", "device_ids"), place)
    axes = tuple(_list(found, "axes", place))
    if not all(isinstance(axis, str) and axis for axis in axes):
        raise _wrong(f"{place}/axes", f"{list(axes)}", "Give names.")
    return Mesh(
        _text(found, "name", place),
        axes,
        _ints(found, "shape", place, least=1),
        _ints(found, "device_ids", place),
    )


def _entry(data: Any, place: str) -> Entry:
    found = _object(data, ("mesh", "function", "device_ids"), place, ("device_ids",))
    return Entry(
        _int(found, "mesh", place),
        _text(found, "function", place),
        _ints(found, "device_ids", place) if "device_ids" in found else (),
    )


def _function(data: Any, place: str) -> Function:
    found = _object(data, ("mesh", "params", "results", "values", "ops"), place)
    return Function(
        mesh=_int(found, "mesh", place),
        params=_ints(found, "params", place),
        ops=tuple(_op(op, f"{place}/ops[{i}]") for i, op in enumerate(_list(found, "ops", place))),
        results=_ints(found, "results", place),
        values=tuple(
            _value(value, f"{place}/values[{i}]")
            for i, value in enumerate(_list(found, "values", place))
        ),
    )


def _value(data: Any, place: str) -> Value:
    optional = ("role", "whole_shape", "placement", "mesh")
    found = _object(data, ("name", "shape", "dtype", "bytes", *optional), place, optional)
    role = found.get("role", "activation")
    if role not in ROLES:
        raise _wrong(f"{place}/role", f"{role!r}", nearest(str(role), ROLES))
    shape = _ints(found, "shape", place)
    if math.prod(shape) > LARGEST:
        raise _wrong(f"{place}/shape", f"{list(shape)}", "Give the shape one device holds.")
    return Value(
        name=_text(found, "name", place, empty=True),
        shape=shape,
        dtype=_text(found, "dtype", place),
        bytes=_int(found, "bytes", place),
        role=role,
        whole_shape=_ints(found, "whole_shape", place) if "whole_shape" in found else None,
        placement=_text(found, "placement", place) if "placement" in found else None,
        mesh=_int(found, "mesh", place) if "mesh" in found else None,
    )


def _op(data: Any, place: str) -> Op:
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if kind not in KINDS and isinstance(data, Mapping):
        raise _wrong(f"{place}/kind", f"{kind!r}", nearest(str(kind), KINDS))
    keys = (*COMMON_KEYS, *EXTRA_KEYS.get(str(kind), ()))
    found = _object(data, (*keys, "reason"), place, ("reason",))
    fields: dict[str, Any] = {}
    for key in (*keys, *(("reason",) if "reason" in found else ())):
        if key in _INT_KEYS:
            fields[key] = _int(found, key, place)
        elif key in _TEXT_KEYS:
            fields[key] = _text(found, key, place, empty=key in ("name", "dtype"))
        elif key in ("inputs", "outputs", "mesh_axes"):
            fields[key] = _ints(found, key, place)
        elif key in _WORDS:
            fields[key] = _word(found, key, place, _WORDS[key])
        elif key == "collective":
            known = TRANSFERS if kind == "transfer" else COLLECTIVES
            fields[key] = _word(found, key, place, known)
        elif key == "tag":
            fields[key] = _int(found, key, place, least=-LARGEST)
        else:
            fields[key] = _bool(found, key, place)
    return Op(**fields)


def _wrong(place: str, what: str, remedy: str) -> SimulationError:
    return SimulationError("DIST0710", what, place=place, remedy=remedy)


def _object(
    data: Any, keys: Sequence[str], place: str, optional: Sequence[str] = ()
) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise _wrong(place, f"a value of type {type(data).__name__}", "Give an object: {...}.")
    for key in data:
        if key not in keys:
            raise _wrong(f"{place}/{key}", "an unknown key", nearest(str(key), keys))
    for key in keys:
        if key not in data and key not in optional:
            raise _wrong(f"{place}/{key}", "a key is missing", "Export the program again.")
    return data


def _list(data: Mapping[str, Any], key: str, place: str) -> list[Any]:
    if not isinstance(data[key], list):
        raise _wrong(f"{place}/{key}", "no list", "Give a list: [...].")
    return list(data[key])


def _whole(value: Any, place: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
        raise _wrong(place, f"{str(value)[:40]!r}", f"Give an integer from {least} to 2**60.")
    return value


def _int(data: Mapping[str, Any], key: str, place: str, least: int = 0) -> int:
    return _whole(data[key], f"{place}/{key}", least)


def _ints(data: Mapping[str, Any], key: str, place: str, least: int = 0) -> tuple[int, ...]:
    values = _list(data, key, place)
    return tuple(_whole(v, f"{place}/{key}[{i}]", least) for i, v in enumerate(values))


def _text(data: Mapping[str, Any], key: str, place: str, empty: bool = False) -> str:
    value = data[key]
    if not isinstance(value, str) or not (value or empty):
        raise _wrong(f"{place}/{key}", f"{value!r} is no text", "Give a text.")
    return value


def _word(data: Mapping[str, Any], key: str, place: str, known: Sequence[str]) -> str:
    value = data[key]
    if value not in known:
        raise _wrong(f"{place}/{key}", f"{value!r}", nearest(str(value), known))
    return str(value)


def _bool(data: Mapping[str, Any], key: str, place: str) -> bool:
    if not isinstance(data[key], bool):
        raise _wrong(f"{place}/{key}", f"{data[key]!r}", "Give true or false.")
    return bool(data[key])
