# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the redistribution costs between all placements of a tensor at once."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_distir.core.ir.operators.names import LOCAL_STEPS
from tvm_distir.core.ir.placement import Labels, P, R
from tvm_distir.core.ops.dims import size_bytes
from tvm_distir.core.solver.problem import INFINITE

from .costs import StepCosts, step_cost
from .shards import bounds_of, lacking
from .shortest_path import MAX_PAIRS
from .steps import KINDS, Space, crossing_axes, steps_from
from .transfer import step_transfer
from .transition import Transition

CostArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CostMatrix:
    """The placements of a tensor and the redistribution costs between them.

    Attributes
    ----------
    placements : tuple of Labels
    cost : int64 array (placements, placements)
        The cost of the cheapest steps from the placement of a row to that of a column, in which no
        shard is larger than the larger end; INFINITE where there are none.
    local : int64 array (placements, placements)
        The same by steps that send nothing.
    local_bytes : int64 array (placements,)
        The bytes of a (padded) shard.
    """

    placements: tuple[Labels, ...]
    cost: CostArray
    local: CostArray
    local_bytes: CostArray

    @functools.cached_property
    def at(self) -> dict[Labels, int]:
        """Return the row of each placement."""
        return {labels: i for i, labels in enumerate(self.placements)}

    def rows(self, placements: Iterable[Labels]) -> list[int]:
        """Return the rows of some placements."""
        return [self.at[labels] for labels in placements]


def cost_matrix(
    costs: StepCosts,
    shape: Sequence[int],
    dtype: str,
    mesh: Sequence[int],
    devices: Sequence[int],
    placements: Sequence[Labels],
) -> CostMatrix:
    """Compute the costs of all pairs of placements as shortest paths over the planner's steps.

    Exchanges are among them where the pairs of placements times the devices are not too many, as
    for a single redistribution. A value may become partial from whole, which sends nothing.

    Parameters
    ----------
    costs : StepCosts
    shape : sequence of int
    dtype : str
    mesh : sequence of int
        Sizes of the mesh axes.
    devices : sequence of int
        Device ids, row-major.
    placements : sequence of Labels
        The placements to consider, for ends and for steps in between; partial placements included.

    Notes
    -----
    R. W. Floyd, Algorithm 97: Shortest Path, CACM 5(6), 1962; what lies between in order of its
    size, so that pairs are done when all that is as small as they are was between them.
    """
    replicated = (R,) * len(mesh)
    key = Transition(tuple(shape), dtype, replicated, replicated, tuple(mesh), tuple(devices))
    return _Matrix(costs, key, tuple(placements)).run()


class _Matrix:
    """The pairs of a tensor."""

    def __init__(self, costs: StepCosts, key: Transition, placements: tuple[Labels, ...]) -> None:
        self.costs, self.key, self.placements = costs, key, placements
        self.at = {labels: i for i, labels in enumerate(placements)}
        self.groups = functools.cache(key.groups)
        self.known: dict[tuple[str, tuple[int, ...], int], int] = {}
        axes, every = len(key.mesh), tuple(range(len(key.shape)))
        self.space = Space(key.mesh, (every,) * axes, (True,) * axes, KINDS)

    def run(self) -> CostMatrix:
        count = len(self.placements)
        sizes = np.array([self.key.local_bytes(labels) for labels in self.placements], np.int64)
        steps = np.full((count, count), INFINITE, np.int64)
        local = steps.copy()
        np.fill_diagonal(steps, 0)
        np.fill_diagonal(local, 0)
        for i, labels in enumerate(self.placements):
            self._steps(i, labels, steps, local)
        self._exchanges(steps)
        return CostMatrix(self.placements, _shortest(steps, sizes), _shortest(local, sizes), sizes)

    def _steps(self, i: int, labels: Labels, steps: CostArray, local: CostArray) -> None:
        for step in steps_from(self.space, labels):
            j = self.at.get(step.after)
            if j is None:
                continue
            transfer = step_transfer(self.key.shape, labels, step, self.key.mesh, self.key.dtype)
            cost = self._cost(transfer.kind, transfer.axes, transfer.payload_bytes)
            steps[i, j] = min(steps[i, j], cost)
            if transfer.kind in LOCAL_STEPS:
                local[i, j] = min(local[i, j], cost)
        for axis, label in enumerate(labels):
            partial = (*labels[:axis], P, *labels[axis + 1 :])
            j = self.at.get(partial)
            if label == R and j is not None:
                cost = self._cost("partial", (axis,), self.key.local_bytes(partial))
                steps[i, j] = min(steps[i, j], cost)
                local[i, j] = min(local[i, j], cost)

    def _cost(self, kind: str, axes: tuple[int, ...], payload_bytes: int) -> int:
        key = (kind, axes, payload_bytes)
        if key not in self.known:
            self.known[key] = max(1, step_cost(self.costs, *key, self.groups))
        return self.known[key]

    def _exchanges(self, steps: CostArray) -> None:
        """Compute the costs from each placement to all that have the same partial axes."""
        groups: dict[tuple[bool, ...], list[int]] = {}
        for i, labels in enumerate(self.placements):
            groups.setdefault(tuple(x == P for x in labels), []).append(i)
        key = self.key
        for members in groups.values():
            if len(members) ** 2 * len(key.devices) > MAX_PAIRS:
                continue
            bounds = [bounds_of(key.shape, self.placements[i], key.mesh) for i in members]
            targets = np.stack(bounds, axis=1)
            for i, source in zip(members, bounds, strict=True):
                for j, elements in zip(members, lacking(source, targets).tolist(), strict=True):
                    if i == j:
                        continue
                    axes = crossing_axes(self.placements[i], self.placements[j])
                    cost = self._cost("exchange", axes, size_bytes((elements,), key.dtype))
                    steps[i, j] = min(steps[i, j], cost)


def _shortest(steps: CostArray, sizes: CostArray) -> CostArray:
    """Return the shortest paths on which nothing is larger than the larger end."""
    known, shortest = steps.copy(), steps.copy()
    larger = np.maximum(sizes[:, None], sizes[None])
    for size in np.unique(sizes):
        for k in np.flatnonzero(sizes == size):
            np.minimum(known, known[:, k, None] + known[None, k], out=known)
        ends = larger == size
        shortest[ends] = known[ends]
    return np.minimum(shortest, INFINITE)
