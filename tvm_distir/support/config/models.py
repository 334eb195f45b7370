# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read dataclasses from JSON data: pydantic checks it, and its errors become the package's.

>>> read_model(Device, json.loads(text), "device.json", refuse)
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tvm_distir.support.errors.collector import Faults
from tvm_distir.support.errors.tree import DistIRError
from tvm_distir.support.errors.user_input import nearest, shortened

from .json_types import InvalidValue

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

Refuse = Callable[[str, str, str], DistIRError]
"""Makes the error of a wrong value from its place, what is wrong, and the remedy."""

_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
_SHOULD = "Input should be "
_QUOTED = re.compile('"(.*)"')


def shown(data: Any) -> str:
    """Return a value as text for a message: strings quoted, long values shortened."""
    return shortened(data) if isinstance(data, int) else shortened(repr(data))


def check_version(data: Any, place: str, refuse: Refuse, supported: int) -> dict[str, Any]:
    """Return a JSON object without its schema version, which must be the supported one."""
    if not isinstance(data, Mapping):
        raise refuse(place, f"{shown(data)} is not an object", "Give an object: {...}.")
    remedy = f"Use schema version {supported}."
    at = f"{place}/schema_version"
    if "schema_version" not in data:
        raise refuse(at, "a key is missing", remedy)
    version = data["schema_version"]
    if isinstance(version, bool) or version != supported:
        raise refuse(at, f"the schema version is {shown(version)}", remedy)
    return {key: value for key, value in data.items() if key != "schema_version"}


def read_model(model: Callable[..., T], data: Any, place: str, refuse: Refuse) -> T:
    """Make an instance of an annotated dataclass from JSON data.

    Parameters
    ----------
    model : type
        A dataclass. Its fields have types of :mod:`.json_types`, of the standard library, and
        other dataclasses; a field whose key has another name has ``metadata={"alias": key}``.
    data : value
        The data, as ``json.loads`` returns it.
    place : str
        The file, and the keys that lead to the value: ``plan.json/rules/0``.
    refuse : callable
        Makes the error of each fault.

    Raises
    ------
    DistIRError
        All faults as one error; of an unknown key the nearest is reported.
    """
    from pydantic import ValidationError

    adapter = _adapter(model)
    try:
        text = json.dumps({place: data}, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise refuse(place, f"it is not JSON data: {error}", "Give JSON data.") from error
    try:
        instance: T = adapter.validate_json(text)[place]
        return instance
    except ValidationError as error:
        entries = error.errors(include_url=False)
    faults = Faults(place, refuse(place, "several things are wrong", ""))
    schema = adapter.json_schema()
    remedies = {
        entry["loc"]: nearest(str(entry["loc"][-1]), _keys_at(schema, entry["loc"][:-1]))
        for entry in entries
        if entry["type"] in _UNKNOWN
    }
    misspelt = {(*where[:-1], *_QUOTED.findall(remedy)) for where, remedy in remedies.items()}
    for entry in entries:
        where = entry["loc"] or (place,)
        if entry["type"] != "missing" or where not in misspelt:
            faults.add(refuse("/".join(map(str, where)), *_describe(entry, remedies)))
    faults.raise_all()
    raise AssertionError(place)


@functools.cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    """Return what reads objects that hold a dataclass; the key is the place in messages."""
    from pydantic import ConfigDict, TypeAdapter

    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return TypeAdapter(dict[str, model], config=config)


def _plain(data: Any) -> Any:
    if isinstance(data, Mapping):
        return dict(data)
    raise TypeError(f"{shown(data)} is of type {type(data).__name__}")


def _describe(entry: Any, remedies: Mapping[tuple[Any, ...], str]) -> tuple[str, str]:
    """Return the fault and the remedy of an entry of a validation error."""
    kind, where, message, value = entry["type"], entry["loc"], entry["msg"], shown(entry["input"])
    context = entry.get("ctx", {})
    if kind in _UNKNOWN:
        return f'unknown key "{where[-1]}"', remedies[where]
    if kind == "missing":
        return "a key is missing", f'Give "{where[-1]}".'
    if isinstance(context.get("error"), InvalidValue):
        return context["error"].what, context["error"].remedy
    if kind == "literal_error":
        known = re.findall("'([^']*)'", context["expected"])
        return f"{value} is not an allowed value", nearest(str(entry["input"]), known)
    if message.startswith(_SHOULD):
        expected = message.removeprefix(_SHOULD)
        return f"{value} is not {expected}", f"Give a value that is {expected}."
    return f"{value} is refused: {message}", "Correct the value."


def _keys_at(schema: Any, path: Sequence[Any]) -> Iterable[str]:
    """Return the keys of the object at a path of a JSON schema."""
    node = schema
    for step in (*path, None):
        node = next((n for n in node.get("anyOf", ()) if n.get("type") != "null"), node)
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        if isinstance(step, int):
            node = node["prefixItems"][step] if "prefixItems" in node else node["items"]
        elif step is not None:
            node = node.get("properties", {}).get(step) or node["additionalProperties"]
    properties: dict[str, Any] = node["properties"]
    return properties
