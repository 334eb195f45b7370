# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Estimate the time and memory of candidates before auto-sharding, by tables of layers.

A step of which every layer is a separate stage has few kinds of stage, whatever its depth: one
sharding assignment of it, on a mesh without the axis of the batch, gives the time and the stash of
every layer. Candidates that differ only in stages, in micro-batches and in parts of the batch share
it.
These are estimates, not bounds: they order candidates, and exclude those that are far off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tvm_distir.hardware import PICOSECONDS, MeshCosts, System
from tvm_distir.support import memoized

from .candidates import BATCH, Axes, Candidate
from .layers import Layers
from .stage_partition import partition_stages

ZERO = (1, 2, 3)
"""The stages of ZeRO, by what is sharded along the axis of the batch: the states of the optimizer;
the sums of gradients too; the weights too (ZeRO, Rajbhandari et al. 2020, section 5)."""


SURE = 2
"""The number of candidates of a schedule that tell how far estimates are off: before, the margin is
twice as wide, and excesses over the likely time are ignored."""


class Estimate(NamedTuple):
    """Estimate of a candidate's time and memory.

    Attributes
    ----------
    time_s : float
        The time of a step.
    peak_bytes : int
        The bytes on the device that stores most, leaving out what a micro-batch needs besides.
    zero : int
        The stage of ZeRO, from :data:`ZERO`, that the estimate assumes.
    """

    time_s: float
    peak_bytes: int
    zero: int = 1

    def corrected(self, seen: Sequence[tuple[Estimate, Estimate]]) -> Estimate:
        """Return the least factors by which seen candidates exceeded their estimates.

        That all were longer counts only where they are :data:`SURE` enough.
        """
        longer = min((so.time_s / x.time_s for x, so in seen), default=1.0)
        if len(seen) < SURE:
            longer = min(1.0, longer)
        larger = min((so.peak_bytes / x.peak_bytes for x, so in seen), default=1.0)
        return self._replace(
            time_s=longer * self.time_s, peak_bytes=int(max(1.0, larger) * self.peak_bytes)
        )


class Estimator:
    """Estimator of candidates by tables of their layers.

    Parameters
    ----------
    system : System
    limit : int
        Bytes that a device may keep.
    """

    def __init__(self, system: System, limit: int) -> None:
        self.system, self.limit = system, limit

    def of(self, candidate: Candidate, table: Layers) -> Estimate:
        """Return the fastest estimate that fits, or the smallest where none does."""
        estimates = [self._cut(candidate, table, zero) for zero in self.zero_stages(candidate)]
        fitting = [x for x in estimates if x.peak_bytes <= self.limit]
        if fitting:
            return min(fitting, key=lambda x: x.time_s)
        return min(estimates, key=lambda x: x.peak_bytes)

    def zero_stages(self, candidate: Candidate) -> tuple[int, ...]:
        """Return which of :data:`ZERO` differ for a candidate."""
        if dict(candidate.axes).get(BATCH, 1) == 1:
            return ZERO[:1]
        return ZERO if candidate.schedule is not None else (1, 3)

    def _cut(self, candidate: Candidate, table: Layers, zero: int) -> Estimate:
        count = candidate.stages * candidate.chunks
        needs = [self.needs(candidate, table, zero, rank) for rank in range(candidate.stages)]
        groups = (
            partition_stages(table.times_ps, count, needs, self.limit)
            if candidate.chunks == 1
            else None
        )
        return self.estimate(
            candidate, table, zero, needs, groups or partition_stages(table.times_ps, count) or []
        )

    def needs(self, candidate: Candidate, table: Layers, zero: int, rank: int) -> list[int]:
        """Return the bytes of each layer on a rank."""
        parts = dict(candidate.axes).get(BATCH, 1)
        flying, chunks = in_flight(candidate, rank), candidate.chunks
        return [
            stash * flying // chunks
            + weights // (parts if zero > 2 else 1)
            + sums // (parts if zero > 1 else 1)
            + states // parts
            for _, stash, weights, sums, states in zip(*table)
        ]

    def estimate(
        self,
        candidate: Candidate,
        table: Layers,
        zero: int,
        needs: Sequence[Sequence[int]],
        groups: Sequence[range],
    ) -> Estimate:
        """Estimate the time and memory of a candidate with its layers in these stages.

        ``needs`` has the bytes of each layer, rank by rank.
        """
        times = [sum(table.times_ps[i] for i in group) for group in groups]
        if candidate.chunks == 1:
            step_ps = (candidate.micro_batches - 1) * max(times) + sum(times)
        else:
            step_ps = (candidate.micro_batches * candidate.chunks + candidate.stages - 1) * max(
                times
            )
        peak = max(
            sum(row[i] for group in groups[rank :: candidate.stages] for i in group)
            for rank, row in enumerate(needs)
        )
        step_ps = self._with_gradients(
            candidate, step_ps, sum(table.weights_bytes) // candidate.stages, zero
        )
        return Estimate(step_ps / PICOSECONDS, peak, zero)

    def _with_gradients(self, candidate: Candidate, step_ps: int, weights: int, zero: int) -> int:
        """Add the communication of a rank's weights and gradients along the axis of the batch.

        Where sums are sharded, every micro-batch reduces its gradients, which overlaps with work as
        far as there is some; where weights are sharded, it also gathers them before both its
        passes.
        """
        mesh = dict(candidate.axes)
        parts = mesh.get(BATCH, 1)
        if parts == 1:
            return step_ps
        cost, axis = self._costs_of(candidate.axes).collective_ps, list(mesh).index(BATCH)
        if zero == 1:
            return step_ps + cost("all_reduce", weights, axis)
        gather = cost("all_gather", weights, axis)
        sent = cost("reduce_scatter", weights // parts, axis)
        if zero == 2:
            return max(step_ps, candidate.micro_batches * sent) + gather
        return max(step_ps, candidate.micro_batches * (2 * gather + sent))

    def reduced_ps(self, candidate: Candidate, weights: int) -> int:
        """Return the time of summing gradients along the axis of the batch."""
        mesh = dict(candidate.axes)
        if mesh.get(BATCH, 1) == 1:
            return 0
        return self._costs_of(candidate.axes).collective_ps(
            "all_reduce", weights, list(mesh).index(BATCH)
        )

    @memoized
    def _costs_of(self, axes: Axes) -> MeshCosts:
        return MeshCosts(self.system, Candidate(axes).mesh.device_mesh())


def in_flight(candidate: Candidate, rank: int) -> int:
    """Return how many micro-batches are in flight on a rank (Narayanan et al. 2021, 2.2)."""
    behind = candidate.stages - rank
    if candidate.chunks == 1:
        return min(candidate.micro_batches, behind)
    most = 2 * (behind - 1) + (candidate.chunks - 1) * candidate.stages + 1
    return min(candidate.micro_batches * candidate.chunks, most)
