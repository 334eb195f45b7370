# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Map the axis names of a plan to the axes of a module's meshes."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir

from tvm_distir.core.ir import mesh_axes, meshes
from tvm_distir.support import MeshError, nearest


def numbers_of_axes(
    mod: ir.IRModule, axes: Sequence[str], location: str
) -> dict[str, tuple[int, ...]]:
    """Return, per mesh text, the numbers of the axes with the given names.

    Raises
    ------
    MeshError
        DIST0206 if no mesh has such an axis; ``location`` says who asks.
    """
    names = mesh_axes(mod)
    known = {name for row in names for name in row}
    for axis in axes:
        if axis not in known:
            problem = f'no mesh has an axis "{axis}"'
            raise MeshError("DIST0206", problem, location=location, remedy=nearest(axis, known))
    return {
        str(mesh): tuple(i for i, name in enumerate(row) if name in axes)
        for mesh, row in zip(meshes(mod), names, strict=True)
    }
