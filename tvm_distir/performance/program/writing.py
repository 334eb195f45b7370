# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write parts of a program as JSON has them, which :mod:`.reading` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from .parts import COMMON_KEYS, EXTRA_KEYS, Entry, Function, Op, Value

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_SCALARS = (int, str, bool, float)
_DEEPEST = 3
"""Depth of JSON down to which each key has a line of its own."""


def plain(part: Any) -> Any:
    """Return a part as lists, mappings and scalars; keys are those that the reader takes.

    Examples
    --------
    >>> from tvm_distir.performance.program.pipeline_program import Phase
    >>> plain((Phase("forward", "f", (0, 1), (2,)),))
    [{'name': 'forward', 'function': 'f', 'inputs': [0, 1], 'outputs': [2]}]
    """
    if part is None or type(part) in _SCALARS:
        return part
    if isinstance(part, Value):
        return _value(part)
    if isinstance(part, Op):
        return _op(part)
    if isinstance(part, tuple):
        return [item if type(item) in _SCALARS else plain(item) for item in part]
    if isinstance(part, Mapping):
        return {key: plain(item) for key, item in part.items()}
    if isinstance(part, Function):
        keys = ("mesh", "params", "results", "values", "ops")
        return {key: plain(getattr(part, key)) for key in keys}
    if isinstance(part, Entry):
        out = {"mesh": part.mesh, "function": part.function}
        more = {"device_ids": part.device_ids, "alias": part.alias}
        return out | {key: plain(items) for key, items in more.items() if items}
    if is_dataclass(part):
        return {
            field.metadata.get("alias", field.name): plain(getattr(part, field.name))
            for field in fields(part)
            if field.metadata.get("init", True)
        }
    return part


def _value(value: Value) -> dict[str, Any]:
    usual = Value._field_defaults
    return {
        key: list(item) if isinstance(item, tuple) else item
        for key, item in zip(value._fields, value, strict=True)
        if key not in usual or item != usual[key]
    }


def _op(op: Op) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key in (*COMMON_KEYS, *EXTRA_KEYS[op.kind]):
        value = getattr(op, key)
        out[key] = list(value) if isinstance(value, tuple) else value
    if not op.modelled:
        out["reason"] = op.reason
    for key in ("measured_ps", "scratch_bytes"):
        if getattr(op, key):
            out[key] = getattr(op, key)
    if op.selects:
        out["selects"] = list(op.selects)
    return out


def lines_of(data: Any, depth: int = 0) -> str:
    """Return the JSON text with a line per function key, value and op.

    Examples
    --------
    >>> print(lines_of({"version": 1, "functions": {"f": {"params": [0, 1], "ops": [{"a": 2}]}}}))
    {
    "version":1,
    "functions":{
    "f":{
    "params":[0,1],
    "ops":[
    {"a":2}]}}}
    """
    if isinstance(data, dict) and data and depth < _DEEPEST:
        pairs = (f"{_ENCODER.encode(k)}:{lines_of(v, depth + 1)}" for k, v in data.items())
        return "{\n" + ",\n".join(pairs) + "}"
    if isinstance(data, list) and any(isinstance(item, dict) for item in data):
        return "[\n" + ",\n".join(map(_ENCODER.encode, data)) + "]"
    return _ENCODER.encode(data)
