# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Computes costs on a mesh of a system in picoseconds: kernels, collectives and resharding."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import Labels, P, R, axis_groups, mesh_devices, mesh_shape
from tvm_distir.core.ir.operators import LOCAL_STEPS
from tvm_distir.core.propagation import shape_fits
from tvm_distir.core.redistribution import CostMatrix, cost_matrix
from tvm_distir.hardware.systems.clock import Clock
from tvm_distir.hardware.systems.system import System
from tvm_distir.support import memoized

Groups = Sequence[Sequence[int]]


def shard_bytes(size_bytes: int, sizes: Sequence[int], layout: Labels) -> int:
    """Return the bytes of the largest shard of a value in a placement."""
    for size, label in zip(sizes, layout):
        if label >= 0:
            size_bytes = -(-size_bytes // size)
    return size_bytes


class MeshCosts:
    """Costs of work and communication on a mesh, memoised.

    Unlike :class:`~.cost.Costs`, which weighs bytes and operations equally on all axes, these are
    the times that simulation charges: on each axis those of its links.

    Parameters
    ----------
    system : System
    mesh : DeviceMesh
    """

    def __init__(self, system: System, mesh: DeviceMesh) -> None:
        self.clock, self.mesh, self.sizes = Clock(system), mesh, mesh_shape(mesh)
        self.devices = tuple([int(d) for d in mesh_devices(mesh).reshape(-1)])
        self._groups: dict[int, Groups] = {}
        self._divides: dict[tuple[tuple[int, ...], Labels], bool] = {}

    def step(self, kind: str, payload_bytes: int, groups: Groups) -> int:
        """Return the :class:`~.costs.StepCosts` of a resharding step; local steps cost copies."""
        if len(groups[0]) == 1:
            return 0
        if kind in LOCAL_STEPS:
            return self.kernel_ps(0, 2 * payload_bytes, "memory", "float32")
        return self.clock.collective_ps(kind, payload_bytes, self.clock.layout(groups))

    def floor(self, received_bytes: int) -> int:
        """Return lower bounds as :class:`~.costs.StepCosts`, for all pairs without pruning."""
        return 0

    def kernel_ps(self, flops: int, moved_bytes: int, kernel_class: str, dtype: str) -> int:
        """Return the time of a kernel."""
        return self.clock.kernel(flops, moved_bytes, kernel_class, dtype).duration_ps

    def collective_ps(self, kind: str, payload_bytes: int, axis: int) -> int:
        """Return the time of a collective along an axis of the mesh."""
        if axis not in self._groups:
            self._groups[axis] = axis_groups(self.mesh, (axis,))
        return self.step(kind, payload_bytes, self._groups[axis])

    @memoized
    def layouts(self, shape: tuple[int, ...], dtype: str) -> CostMatrix:
        """Return the placements of a tensor on the mesh, and the resharding costs between them."""
        every = (*range(len(shape)), R, P)
        choices = [every if size > 1 else (R,) for size in self.sizes]
        placements = [x for x in itertools.product(*choices) if self.divides(shape, x)]
        return cost_matrix(self, shape, dtype, self.sizes, self.devices, placements)

    def divides(self, shape: tuple[int, ...], layout: Labels) -> bool:
        """Return whether each dim can be split over all axes that shard it."""
        key = (shape, layout)
        if key not in self._divides:
            self._divides[key] = shape_fits(shape, self.sizes, layout)
        return self._divides[key]


class MeshCostCache:
    """Costs on the meshes of a system, shared by the problems of several modules.

    It is pickled without the costs, which are then computed again.

    Parameters
    ----------
    system : System
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self._costs: dict[tuple[tuple[int, ...], tuple[int, ...]], MeshCosts] = {}

    def __reduce__(self) -> tuple[Callable[[System], MeshCostCache], tuple[System]]:
        """Return how to make an empty cache of the same system."""
        return MeshCostCache, (self.system,)

    def of(self, mesh: DeviceMesh) -> MeshCosts:
        """Return the costs on a mesh; they do not depend on the names of its axes."""
        mesh_costs = MeshCosts(self.system, mesh)
        return self._costs.setdefault((tuple(mesh_costs.sizes), mesh_costs.devices), mesh_costs)
