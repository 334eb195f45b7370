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

from .costs import Groups, RingCosts, StepCosts
from .shards import bounds_of, lacking
from .shortest_path import MAX_PAIRS
from .steps import KINDS, Space, crossing_axes, steps_from
from .transfer import StepTraffic, step_transfer
from .transition import Transition

CostArray = npt.NDArray[np.int64]
_BYTES = RingCosts()


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
    for a single redistribution, and where fewer bytes are sent with them. A value may become
    partial from whole, which sends nothing.

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
    return _Matrix(costs, tuple(shape), dtype, tuple(mesh), tuple(devices), placements).run()


class _Matrix:
    """The pairs of a tensor.

    A table is an array (3, placements, placements): by all steps, by those that send no exchange,
    and by those that send nothing.
    """

    def __init__(
        self,
        costs: StepCosts,
        shape: tuple[int, ...],
        dtype: str,
        mesh: tuple[int, ...],
        devices: tuple[int, ...],
        placements: Sequence[Labels],
    ) -> None:
        self.costs, self.placements = costs, tuple(placements)
        replicated = (R,) * len(mesh)
        self.key = Transition(shape, dtype, replicated, replicated, mesh, devices)
        self.at = {labels: i for i, labels in enumerate(self.placements)}
        self.groups: dict[tuple[int, ...], Groups] = {}
        every = tuple(range(len(shape)))
        self.space = Space(mesh, (every,) * len(mesh), (True,) * len(mesh), KINDS)
        count = len(self.placements)
        self.by_cost = np.full((3, count, count), INFINITE, np.int64)
        self.by_cost[:, range(count), range(count)] = 0
        self.by_bytes = self.by_cost.copy()

    def run(self) -> CostMatrix:
        sizes = np.array([self.key.local_bytes(labels) for labels in self.placements], np.int64)
        for i, labels in enumerate(self.placements):
            self._steps(i, labels)
        self._exchanges()
        every, plain, local = _shortest(self.by_cost, sizes)
        fewest = _shortest(self.by_bytes[:2], sizes)
        # As the planner: no exchange where the cheapest plan by bytes has none.
        cost = np.where(fewest[0] < fewest[1], every, plain)
        return CostMatrix(self.placements, cost, local, sizes)

    def _steps(self, i: int, labels: Labels) -> None:
        for step in steps_from(self.space, labels):
            j = self.at.get(step.after)
            if j is None:
                continue
            transfer = step_transfer(self.key.shape, labels, step, self.key.mesh, self.key.dtype)
            self._add(i, j, transfer)
        for axis, label in enumerate(labels):
            partial = (*labels[:axis], P, *labels[axis + 1 :])
            j = self.at.get(partial)
            if label == R and j is not None:
                self._add(i, j, StepTraffic("partial", (axis,), self.key.local_bytes(partial)))

    def _add(self, i: int, j: int, traffic: StepTraffic) -> None:
        """Add a step from a placement to another to all tables that may use it."""
        kind, axes = traffic.kind, traffic.axes
        if axes not in self.groups:
            self.groups[axes] = self.key.groups(axes)
        retained = slice(0, 1 if kind == "exchange" else 3 if kind in LOCAL_STEPS else 2)
        for costs, table in ((self.costs, self.by_cost), (_BYTES, self.by_bytes)):
            cost = max(1, costs.step(kind, traffic.payload_bytes, self.groups[axes]))
            table[retained, i, j] = np.minimum(table[retained, i, j], cost)

    def _exchanges(self) -> None:
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
                missing = lacking(source, targets).tolist()
                for j, elements in zip(members, missing, strict=True):
                    if i == j:
                        continue
                    axes = crossing_axes(self.placements[i], self.placements[j])
                    moved_bytes = size_bytes((elements,), key.dtype)
                    self._add(i, j, StepTraffic("exchange", axes, moved_bytes))


def _shortest(steps: CostArray, sizes: CostArray) -> CostArray:
    """Return the shortest paths of tables on which nothing is larger than the larger end."""
    known, shortest = steps.copy(), steps.copy()
    larger = np.maximum(sizes[:, None], sizes[None])
    for size in np.unique(sizes):
        for k in np.flatnonzero(sizes == size):
            np.minimum(known, known[..., k, None] + known[:, None, k], out=known)
        ends = larger == size
        shortest[:, ends] = known[:, ends]
    return np.minimum(shortest, INFINITE)
