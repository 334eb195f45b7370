# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Enumerate pipelines whose stages have different numbers of devices.

A stage has a power of two of a node's devices, or complete nodes, so that groups are placed as
their costs assume (Zheng et al. 2022, Alpa, section 5.2). There is a candidate per number of stages
and samples of a micro-batch: that with the fastest step by the tables of layers.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm_distir.hardware import PICOSECONDS

from .candidates import BATCH, STAGES, Axes, Candidate, Enumeration, factorisations
from .estimates import ZERO, Estimate, Estimator
from .layers import Layers, LayerTables
from .stage_partition import StageAssignment, shared_out


class Uneven:
    """Generator of candidates whose stages have different meshes.

    Parameters
    ----------
    enumeration : Enumeration
    tables : LayerTables
    outlooks : Estimator
    """

    def __init__(self, enumeration: Enumeration, tables: LayerTables, outlooks: Estimator) -> None:
        self.enumeration, self.tables, self.outlooks = enumeration, tables, outlooks

    def candidates(self) -> Iterator[tuple[Candidate, Estimate]]:
        """Yield candidates with estimates; where nothing fits, with the next policy."""
        enumeration, rules = self.enumeration, self.enumeration.constraints
        if not enumeration.stages or STAGES not in rules.axes or enumeration.batch is None:
            return
        most = min(
            enumeration.devices, self.tables.depth, rules.most.get(STAGES, enumeration.devices)
        )
        for stages in range(2, most + 1):
            for samples in self._samples(enumeration.batch):
                shared = (
                    self._shared(stages, samples, enumeration.batch // samples, policy)
                    for policy in rules.recompute
                )
                yield from [candidate for candidate in shared if candidate is not None][:1]

    def _samples(self, batch: int) -> list[int]:
        """Return the samples of a micro-batch, of all parts together."""
        sizes = self._sizes()
        rows = {n * size for n in self.enumeration.constraints.micro_batches for size in sizes}
        return sorted(n for n in rows if batch % n == 0)

    def _sizes(self) -> list[int]:
        """Return the devices that a stage may have."""
        devices = self.enumeration.devices
        node = self.enumeration.system.intra_node.devices_per_node
        powers = [1 << i for i in range(node.bit_length()) if 1 << i < min(node, devices)]
        return powers + list(range(node, devices, node))

    def _kinds(self, stages: int, samples: int) -> list[Axes]:
        """Return the meshes that a stage may have."""
        names = [n for n in self.enumeration.constraints.axes if n != STAGES]
        kinds: dict[Axes, None] = {}
        for size in self._sizes():
            for sizes in factorisations(size, len(names)):
                chosen = dict(zip(names, sizes, strict=True))
                if (
                    self.enumeration.allows({STAGES: stages, **chosen})
                    and samples % chosen.get(BATCH, 1) == 0
                ):
                    axes = tuple((name, n) for name, n in chosen.items() if n > 1)
                    kinds[axes or ((BATCH, 1),)] = None
        return list(kinds)

    def _shared(
        self, stages: int, samples: int, micro_batches: int, policy: str
    ) -> tuple[Candidate, Estimate] | None:
        """Return the candidate of a number of stages; None where none fits, or stages are equal."""
        kinds, alone, tables = [], list[Candidate](), list[Layers]()
        for axes in self._kinds(stages, samples):
            candidate = Candidate(axes, stages, micro_batches, recompute=policy)
            table = self.tables.of(candidate, at_layers=True)
            if table is not None:
                kinds.append(axes)
                alone.append(candidate)
                tables.append(table)
        if not kinds:
            return None
        times = [self._times(candidate, x) for candidate, x in zip(alone, tables, strict=True)]
        sizes = [candidate.devices for candidate in alone]
        for zero in ZERO:
            needs = [
                [
                    self.outlooks.needs(candidate, x, zero, rank)
                    for candidate, x in zip(alone, tables)
                ]
                for rank in range(stages)
            ]
            division = shared_out(
                times, sizes, needs, self.enumeration.devices, micro_batches, self.outlooks.limit
            )
            if division is None:
                continue
            step_ps, shares = division
            peak = max(
                sum(needs[rank][kind][i] for i in layers)
                for rank, (layers, kind) in enumerate(shares)
            )
            estimate = Estimate(step_ps / PICOSECONDS, peak, zero)
            ranks = tuple([kinds[share.kind] for share in shares])
            if len(set(ranks)) == 1:
                return None
            return self._candidate(ranks, shares, micro_batches, policy), estimate
        return None

    def _times(self, candidate: Candidate, table: Layers) -> list[int]:
        """Return the time of each layer for a micro-batch, its gradient reduction included.

        Reduced once a step.
        """
        return [
            time + self.outlooks.reduced_ps(candidate, weights) // candidate.micro_batches
            for time, weights in zip(table.times_ps, table.weights_bytes, strict=True)
        ]

    def _candidate(
        self,
        ranks: tuple[Axes, ...],
        shares: list[StageAssignment],
        micro_batches: int,
        policy: str,
    ) -> Candidate:
        cuts = tuple([self.tables.ends[share.layers.stop - 1] for share in shares[:-1]])
        return Candidate(
            ranks[0], len(ranks), micro_batches, recompute=policy, ranks=ranks, cuts=cuts
        )
