# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read programs from JSON and check all that the simulator relies on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tvm_distir.core import COLLECTIVES, KERNEL_CLASSES, TRANSFERS
from tvm_distir.support import LARGEST, JsonValue, SimulationError, parse_json, read_text

from . import parts
from .checks import check_program
from .parts import (
    COMMON_KEYS,
    EXTRA_KEYS,
    KINDS,
    ROLES,
    SCHEMA_VERSION,
    STAGED_VERSION,
    Entry,
    Function,
    Mesh,
    Op,
)
from .staged_reading import KEYS, read_pair, read_staged
from .storage_reading import read_storage

EXPORT = "Export the program again."

_INTEGERS = (
    "flops", "bytes_read", "bytes_written", "mesh", "group_size", "payload_bytes", "wire_bytes",
    "peer_mesh", "measured_ps",
)  # fmt: skip
_TEXTS = ("op", "callee", "otherwise", "reason")
_READ: Mapping[str, Callable[[JsonValue], Any]] = {
    **{key: JsonValue.integer for key in _INTEGERS},
    **{key: JsonValue.text for key in _TEXTS},
    **{key: lambda value: value.text(empty=True) for key in ("name", "dtype")},
    **{key: JsonValue.integers for key in ("inputs", "outputs", "mesh_axes")},
    "kind": lambda value: value.word(KINDS),
    "kernel_class": lambda value: value.word(KERNEL_CLASSES),
    "tag": lambda value: value.integer(least=-LARGEST),
    "modelled": JsonValue.flag,
}
"""The reader of each key of an op, except for ``collective``."""

Made = TypeVar("Made")


def _wrong(place: str, what: str, remedy: str) -> SimulationError:
    return SimulationError("DIST0710", what, place=place, remedy=remedy)


def _other_version(place: str, what: str, remedy: str) -> SimulationError:
    return SimulationError("DIST0711", what, place=place, remedy=remedy)


def load(path: str | Path, make: Callable[..., Made]) -> Made:
    """Read a file; see :meth:`.program.Program.load`."""
    text = read_text(path, _wrong, "Give a file that `tvm-distir analyze -o` wrote.")
    return parse_text(text, str(path), make)


def parse_text(text: str, place: str, make: Callable[..., Made]) -> Made:
    """Read JSON text; see :meth:`.program.Program.from_json`."""
    return parse(parse_json(text, place, _wrong, EXPORT), place, make)


def parse(data: Any, place: str, make: Callable[..., Made]) -> Made:
    """Pass the checked parts of a program to ``make``; see :meth:`.program.Program.from_dict`."""
    top = JsonValue(data, place, _wrong, EXPORT).object()
    version = top.data.get("schema_version")
    in_stages = version == STAGED_VERSION and not isinstance(version, bool)
    if not in_stages:
        JsonValue(version, place, _other_version).version(SCHEMA_VERSION)
    keys = ("schema_version", "meshes", "functions", *(KEYS if in_stages else ("entries",)))
    top.object((*keys, "storage"), optional=("storage",))
    meshes = tuple(_mesh(item) for item in top["meshes"].items())
    functions = {name: _function(fn) for name, fn in top["functions"].fields()}
    entries = () if in_stages else tuple(_entry(item) for item in top["entries"].items())
    staged = read_staged(top, _value) if in_stages else None
    check_program(meshes, functions, entries, staged, place)
    storage = read_storage(top["storage"]) if "storage" in top else None
    if storage is not None and len(storage.entries) != (len(entries) or len(meshes)):
        raise top["storage"].wrong(f"{len(storage.entries)} entries", EXPORT)
    return make(meshes, functions, entries, staged, storage)


def _mesh(data: JsonValue) -> Mesh:
    fields = data.object(("name", "axes", "shape", "device_ids"))
    return Mesh(
        fields["name"].text(),
        tuple(axis.text() for axis in fields["axes"].items()),
        fields["shape"].integers(least=1),
        fields["device_ids"].integers(),
    )


def _entry(data: JsonValue) -> Entry:
    optional = ("device_ids", "alias")
    fields = data.object(("mesh", "function", *optional), optional)
    return Entry(
        fields["mesh"].integer(),
        fields["function"].text(),
        fields["device_ids"].integers() if "device_ids" in fields else (),
        tuple(read_pair(pair) for pair in fields["alias"].items()) if "alias" in fields else (),
    )


def _function(data: JsonValue) -> Function:
    fields = data.object(("mesh", "params", "results", "values", "ops"))
    return Function(
        mesh=fields["mesh"].integer(),
        params=fields["params"].integers(),
        ops=tuple(_op(op) for op in fields["ops"].items()),
        results=fields["results"].integers(),
        values=tuple(_value(value) for value in fields["values"].items()),
    )


def _value(data: JsonValue) -> parts.Value:
    optional = ("role", "whole_shape", "placement", "mesh")
    fields = data.object(("name", "shape", "dtype", "bytes", *optional), optional)
    shape = fields["shape"].integers()
    if math.prod(shape) > LARGEST:
        raise fields["shape"].wrong(f"{list(shape)}", "Give the shape of the shard on a device.")
    return parts.Value(
        name=fields["name"].text(empty=True),
        shape=shape,
        dtype=fields["dtype"].text(),
        bytes=fields["bytes"].integer(),
        role=fields["role"].word(ROLES) if "role" in fields else "activation",
        whole_shape=fields["whole_shape"].integers() if "whole_shape" in fields else None,
        placement=fields["placement"].text() if "placement" in fields else None,
        mesh=fields["mesh"].integer() if "mesh" in fields else None,
    )


def _op(data: JsonValue) -> Op:
    if "kind" not in data.object():
        data.object(COMMON_KEYS)
    kind = data["kind"].word(KINDS)
    optional = ("reason", "measured_ps") if kind == "compute" else ("reason",)
    json_fields = data.object((*COMMON_KEYS, *EXTRA_KEYS[kind], *optional), optional=optional)
    known = TRANSFERS if kind == "transfer" else COLLECTIVES
    fields: dict[str, Any] = {
        key: value.word(known) if key == "collective" else _READ[key](value)
        for key, value in json_fields.fields()
    }
    return Op(**fields)
