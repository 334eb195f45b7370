# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the meshes of a program."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import mesh_devices, mesh_shape
from tvm_distir.core.ir.views import are_views
from tvm_distir.support import Count, PositiveCount, Text


@dataclass(frozen=True)
class Mesh:
    """A device mesh: axis names and sizes major first, device ids row-major over them."""

    name: Text
    axes: tuple[Text, ...]
    shape: tuple[PositiveCount, ...]
    device_ids: tuple[Count, ...]

    @staticmethod
    def of(name: str, axes: Iterable[str], mesh: DeviceMesh) -> Mesh:
        """Return the mesh of a module, with the names of its axes."""
        return Mesh(name, tuple(axes), mesh_shape(mesh), tuple(mesh_devices(mesh).ravel().tolist()))

    def groups(self, axes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the groups of devices that differ in the coordinates along ``axes`` only."""
        return tuple(map(tuple, self.group_table(axes).tolist()))

    def group_table(self, axes: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Return the groups as an array, (groups, devices)."""
        table = np.array(self.device_ids).reshape(self.shape)
        rest = [axis for axis in range(len(self.shape)) if axis not in axes]
        moved = table.transpose([*rest, *sorted(axes)])
        return moved.reshape(-1, math.prod(self.shape[axis] for axis in axes))


def first_numbers(meshes: Sequence[Mesh]) -> tuple[int, ...]:
    """Return the number of the first view of each mesh among some meshes: of most, their own."""
    devices = [DeviceMesh(mesh.shape, mesh.device_ids) for mesh in meshes]
    return tuple(
        next(number for number, other in enumerate(devices) if are_views(mesh, other))
        for mesh in devices
    )
