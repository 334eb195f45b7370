# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the meshes of Shardy, whose axes shardings may name in parts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm_distir.models.common.translation import Unsupported
from tvm_distir.models.mlir.attributes import unescaped
from tvm_distir.models.mlir.tree import Module, Opaque
from tvm_distir.support import parse_int

WORD = r'"(?:[^"\\]|\\.)*"'
"""A pattern of a text in quotes."""
TEXT = r'"((?:[^"\\]|\\.)*)"'
"""The same, with the text inside the quotes as a group."""
SUB_AXIS = TEXT + r"\s*:\s*\((\d+)\)(\d+)"
_AXIS = re.compile(TEXT + r"\s*=\s*(\d+)")
_IDS = re.compile(r"device_ids\s*=\s*\[([\d,\s]*)\]")


@dataclass(frozen=True)
class NamedMesh:
    """Mesh with its name, axis sizes by name, and devices."""

    name: str
    axes: dict[str, int]
    device_ids: tuple[int, ...] | None = None


def _refined(mesh: NamedMesh, parts: Sequence[tuple[str, int, int]]) -> NamedMesh:
    """Return a mesh whose axes are cut where sub-axes begin and end.

    Raises
    ------
    Unsupported
        Sub-axes that share no finer mesh.
    """
    axes: dict[str, int] = {}
    for name, size in mesh.axes.items():
        ends = {p for of, low, count in parts if of == name for p in (low, low * count)}
        pairs = [*itertools.pairwise(sorted({1, size, *ends}))] if ends else []
        if any(not low or high % low or size % high for low, high in pairs):
            raise Unsupported(f'sub-axes of "{name}" ({size}) that share no finer mesh')
        pieces = {f"{name}:({low}){high // low}": high // low for low, high in pairs}
        axes |= pieces if len(pieces) > 1 else {name: size}
    return replace(mesh, axes=axes)


def named_meshes(module: Module, text: str) -> list[NamedMesh]:
    """Return the meshes of a module, refined by the sub-axes that its text names."""
    parts = [
        (unescaped(n), parse_int(start) or 0, parse_int(size) or 0)
        for n, start, size in re.findall(SUB_AXIS, text)
    ]
    meshes = []
    for operation in module.operations:
        mesh: Any = operation.attributes.get("mesh")
        if operation.name != "sdy.mesh" or not isinstance(mesh, Opaque):
            continue
        ids = _IDS.search(mesh.body)
        numbers = tuple(parse_int(n) or 0 for n in ids.group(1).split(",")) if ids else None
        axes = {unescaped(n): parse_int(size) or 0 for n, size in _AXIS.findall(mesh.body)}
        named = NamedMesh(str(operation.attributes["sym_name"]), axes, numbers)
        meshes.append(_refined(named, parts))
    return meshes
