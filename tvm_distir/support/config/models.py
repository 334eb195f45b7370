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

from .json_types import STRICT, InvalidValue

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")

Refuse = Callable[[str, str, str], DistIRError]
"""Makes the error of a wrong value from its place, what is wrong, and the remedy."""

_MISSING = ("missing", "missing_argument")
_SHOULD = "Input should be "
_QUOTED = re.compile('"(.*)"')


def shown(data: object) -> str:
    """Return a value as text for a message: strings quoted, long values shortened."""
    return shortened(data) if isinstance(data, int) else shortened(repr(data))


def check_version(
    data: object,
    location: str,
    refuse: Refuse,
    *supported: int,
    other: Refuse | None = None,
    assumed: int | None = None,
) -> dict[str, Any]:
    """Return a JSON object without its schema version, which must be a supported one.

    ``other`` makes the error of another version, where it is not ``refuse``. ``assumed`` is the
    version of an object that states none, as files that people write; without it the key must be
    there.
    """
    if not isinstance(data, Mapping):
        raise refuse(location, f"{shown(data)} is not an object", "Give an object: {...}.")
    at, versions = f"{location}/schema_version", " or ".join(map(str, supported))
    if "schema_version" not in data and assumed is None:
        remedy = f'Add "schema_version": {versions}.'
        raise (other or refuse)(at, "a key is missing", remedy)
    version = data.get("schema_version", assumed)
    if isinstance(version, bool) or version not in supported:
        problem = f"the schema version is {shown(version)}"
        raise (other or refuse)(at, problem, f"Use schema version {versions}.")
    return {key: value for key, value in data.items() if key != "schema_version"}


def read_model(
    model: Callable[..., T],
    data: object,
    location: str,
    refuse: Refuse,
    faults: Faults | None = None,
) -> T:
    """Make an instance of an annotated dataclass from JSON data.

    Parameters
    ----------
    model : type
        A dataclass. Its fields have types of :mod:`.json_types`, of the standard library, and
        other dataclasses; a field whose key has another name has ``metadata={"alias": key}``.
    data : value
        The data, as ``json.loads`` returns it.
    location : str
        The file, and the keys that lead to the value: ``plan.json/rules/0``.
    refuse : callable
        Makes the error of each fault.
    faults : Faults, optional
        A collector for a file whose faults have several codes: errors of constructors and checks
        keep theirs.

    Raises
    ------
    DistIRError
        All faults as one error; of an unknown key the nearest is reported.
    """
    from pydantic import ValidationError

    adapter = _adapter(model)
    try:
        text = json.dumps({location: data}, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise refuse(location, f"it is not JSON data: {error}", "Give JSON data.") from error
    try:
        instance: T = adapter.validate_json(text)[location]
        return instance
    except ValidationError as error:
        entries = error.errors(include_url=False)
    except DistIRError as error:  # of a constructor
        raise error.placed(_below(location)) from None
    coded = faults is not None
    faults = faults or Faults(location, refuse(location, "the file has several faults", ""))
    schema = adapter.json_schema()
    located = [(*_locate(schema, entry["loc"] or (location,)), entry) for entry in entries]
    remedies = {
        where: nearest(where[-1], keys) for where, keys, entry in located if _is_unknown(entry)
    }
    misspelt = {(*where[:-1], *_QUOTED.findall(remedy)) for where, remedy in remedies.items()}
    for where, _, entry in located:
        cause = getattr(entry.get("ctx", {}).get("error"), "error", None)
        if coded and cause is not None:
            faults.add(cause.placed(_below("/".join(where))))
        elif entry["type"] not in _MISSING or where not in misspelt:
            faults.add(refuse("/".join(where), *_describe(entry, remedies.get(where, ""))))
    faults.raise_all()
    raise AssertionError(location)


@functools.cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    """Return what reads objects that hold a dataclass; the key is the place in messages."""
    from pydantic import TypeAdapter

    return TypeAdapter(dict[str, model], config=STRICT)


def _plain(data: object) -> object:
    if isinstance(data, Mapping):
        return dict(data)
    raise TypeError(f"{shown(data)} is of type {type(data).__name__}")


def _below(location: str) -> Callable[[str], str]:
    """Return what moves the places of an error below a place, whose last key they may repeat."""

    def moved(at: str) -> str:
        first, _, rest = at.partition("/")
        if first == location.rpartition("/")[2]:
            return f"{location}/{rest}" if rest else location
        return f"{location} ({at})" if at else location

    return moved


def _is_unknown(entry: ErrorDetails) -> bool:
    return entry["type"] in ("unexpected_keyword_argument", "extra_forbidden")


def _describe(entry: ErrorDetails, remedy: str) -> tuple[str, str]:
    """Return the fault and the remedy of an entry of a validation error."""
    kind, key, message, value = entry["type"], entry["loc"][-1:], entry["msg"], entry["input"]
    context = entry.get("ctx", {})
    if _is_unknown(entry):
        return f'unknown key "{key[0]}"', remedy
    if kind in _MISSING:
        return "a key is missing", f'Give "{key[0]}".'
    if isinstance(context.get("error"), InvalidValue):
        return context["error"].what, context["error"].remedy
    if kind in ("literal_error", "union_tag_invalid"):
        cached = re.findall("'([^']*)'", context.get("expected_tags") or context["expected"])
        value = context.get("tag", value)
        return f"{shown(value)} is not an allowed value", nearest(str(value), cached)
    if message.startswith(_SHOULD):
        expected = message.removeprefix(_SHOULD)
        return f"{shown(value)} is not {expected}", f"Give a value that is {expected}."
    return f"{shown(value)} is refused: {message}", "Correct the value."


def _locate(schema: Any, loc: Sequence[str | int]) -> tuple[tuple[str, ...], Iterable[str]]:
    """Return the keys that lead to a fault, and the known keys beside the last of them.

    ``loc`` has the kind of an object behind its key, too, where the kind decides its keys.
    """
    node, where = schema, []
    for step in loc:
        node = next((n for n in node.get("anyOf", ()) if n.get("type") != "null"), node)
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        if "discriminator" in node:
            node = node["discriminator"]["mapping"][step]
            continue
        where.append(str(step))
        keys = node.get("properties", {})
        if isinstance(step, int):
            node = node["prefixItems"][step] if "prefixItems" in node else node.get("items", {})
        else:
            node = keys.get(step) or node.get("additionalProperties") or {}
    return tuple(where), keys
