# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read modules in TVM's JSON (``tvm.ir.save_json``) at any level."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import ir

from tvm_distir.core.rewriting import bind_dims
from tvm_distir.models.common.spec import check_file
from tvm_distir.support import ModelError, read_text, type_info

_MOST_DEEP = 4096
_OF_NODES = ("ffi.Array", "ffi.Dict", "ffi.List", "ffi.Map")
_INLINE = (1, 2, 3)
"""FFI's numbers of the types of fields that hold an integer, a boolean or a float themselves."""


def _check_nodes(graph: dict[str, Any]) -> None:
    """Reject cyclic or too deeply nested nodes (ValueError), which crash TVM's reader.

    A node follows all nodes that it refers to.
    """
    depths: list[int] = []
    for number, node in enumerate(graph["nodes"]):
        depth = 0
        for child in _held(node["type"], node.get("data")):
            if not 0 <= child < number:
                raise ValueError(
                    f"the node {number} contains the node {child}, which does not precede it"
                )
            depth = max(depth, depths[child] + 1)
        if depth > _MOST_DEEP:
            raise ValueError(f"nodes are nested more than {_MOST_DEEP} deep")
        depths.append(depth)


def _held(kind: str, data: Any) -> Iterator[int]:
    """Return the numbers of the nodes that a node references."""
    if isinstance(data, list) and kind in _OF_NODES:
        yield from (item for item in data if type(item) is int)
    elif isinstance(data, dict):
        plain = _plain_fields(kind)
        yield from (v for name, v in data.items() if type(v) is int and name not in plain)


@functools.cache
def _plain_fields(kind: str) -> frozenset[str]:
    """Return the fields of a type that hold numbers, not nodes."""
    names: set[str] = set()
    info: Any = type_info(kind)
    while info is not None:
        plain = (f for f in info.fields or () if f.field_static_type_index in _INLINE)
        names |= {field.name for field in plain}
        info = info.parent_type_info
    return frozenset(names)


def read_relax(path: str | Path, dims: Mapping[str, int]) -> ir.IRModule:
    """Read a module.

    Raises
    ------
    ModelError
        DIST0301 no file, DIST0303 a file that holds no module, DIST0313 a size of no dim.
    """
    check_file(path)
    remedy = "Give the JSON of a Relax module, as `tvm-distir convert MODEL out.json` writes it."

    def refuse(location: str, problem: str, remedy: str) -> ModelError:
        return ModelError("DIST0303", problem, location=location, remedy=remedy)

    text = read_text(path, refuse)
    try:
        _check_nodes(json.loads(text))
        loaded = tvm.ir.load_json(text)
    except (
        *(json.JSONDecodeError, AttributeError, LookupError, RecursionError),
        *(RuntimeError, TypeError, ValueError),
    ) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        problem = f"it is not a TVM module: {lines[-1] if lines else type(error).__name__}"
        raise refuse(str(path), problem, remedy) from error
    if not isinstance(loaded, ir.IRModule):
        raise refuse(str(path), f"it is a {type(loaded).__name__}, not a module", remedy)
    return bind_dims(loaded, dims)
