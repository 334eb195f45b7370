# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the JSON of a program in lines that are easy to read and compare."""

from __future__ import annotations

import json
from typing import Any

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

_DEEPEST = 3
"""The depth of the objects whose keys have separate lines: program, functions, function."""


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
