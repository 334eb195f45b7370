# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Simulate many pipelined steps together that differ in numbers only.

The functions, units and messages of a step are computed once; each step has different durations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_distir.hardware import System
from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.program.numbers import Numbers
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.simulation.pipeline.rank_arrays import StageSteps
from tvm_distir.performance.simulation.pipeline.rank_classes import axes_used, layout_key

from .batched_costs import BOUNDS, BatchCosts, main_bound
from .op_costs import COMM, COMPUTE, OpCosts

Ints = npt.NDArray[np.int64]


class BatchedTimes(NamedTuple):
    """Times of simulated steps.

    Attributes
    ----------
    time_ps : int64 array (rows,)
    bound : int64 array (rows,)
        Places in :data:`.batched_costs.BOUNDS` and, behind these, idle time.
    fits : bool array (rows,)
        The rows all of whose times fit; the other rows are to be left.
    """

    time_ps: Ints
    bound: Ints
    fits: npt.NDArray[np.bool_]


class Batch:
    """Batch of like pipelined steps.

    Parameters
    ----------
    program : Program
        The program of a step, grouped into kernels, with the schedule of all.
    system : System
    numbers : Numbers
        The numbers of the program.
    which : int64 array
        The quantity of each number of the program.
    blocking : bool
        The option, as :func:`.simulator.simulate` has it.
    """

    def __init__(
        self, program: Program, system: System, numbers: Numbers, which: Ints, blocking: bool
    ) -> None:
        self.program, self.system = _placed(program), system
        self.numbers, self.which, self.blocking = numbers, which, blocking
        self._axes = axes_used(program)
        self._lying: dict[Hashable, tuple[int, ...]] = {}
        self._plans: dict[tuple[int, ...], _Plan] = {}

    @property
    def micro_batches(self) -> int:
        """Return the number of micro-batches of each step."""
        assert self.program.staged is not None
        return self.program.staged.schedule.micro_batches

    def layout_key(self, meshes: Sequence[Mesh]) -> tuple[int, ...]:
        """Return, per rank, the first rank with the same layout."""
        shape = meshes[0].shape
        if shape not in self._lying:
            costs = OpCosts(dataclasses.replace(self.program, meshes=tuple(meshes)), self.system)
            keys = layout_key(self._axes, costs)
            self._lying[shape] = tuple(map(keys.index, keys))
        return self._lying[shape]

    def run(self, quantities: Ints, shapes: Sequence[Sequence[Mesh]], shape: Ints) -> BatchedTimes:
        """Simulate steps.

        Parameters
        ----------
        quantities : int64 array (quantities, rows)
        shapes : sequence of sequence of Mesh
            Meshes of the ranks: those that rows have.
        shape : int64 array (rows,)
            The shape that each row has.
        """
        rows = quantities.shape[1]
        ran = BatchedTimes(np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.ones(rows, bool))
        layout_keys = [self.layout_key(meshes) for meshes in shapes]
        for pattern in dict.fromkeys(layout_keys):
            numbers = [number for number, other in enumerate(layout_keys) if other == pattern]
            at = np.flatnonzero(np.isin(shape, numbers))
            if not at.size:
                continue
            if pattern not in self._plans:
                self._plans[pattern] = _Plan(self, shapes[numbers[0]])
            renumbered = np.searchsorted(numbers, shape[at])
            part = self._plans[pattern].run(
                quantities[:, at], [shapes[number] for number in numbers], renumbered
            )
            for full, part_values in zip(ran, part, strict=True):
                full[at] = part_values
        return ran


class _Plan:
    """Plan of the units and messages of steps whose ranks have the same layout."""

    def __init__(self, batch: Batch, meshes: Sequence[Mesh]) -> None:
        self.batch = batch
        self.program = dataclasses.replace(batch.program, meshes=tuple(meshes))
        self.steps = StageSteps.of(self.program, batch.system, batch.blocking)
        self.kinds = self.steps.kinds
        lowering = self.kinds.lowering
        order = [step.row for fn in lowering.functions if fn.number >= 0 for step in fn.steps]
        self.order = np.array(order, np.int64)
        self.names = [row.op.title for row in lowering.rows]
        self.counts = self._counts()

    def run(self, quantities: Ints, shapes: Sequence[Sequence[Mesh]], shape: Ints) -> BatchedTimes:
        """Run the plan as :meth:`Batch.run` does."""
        batch, rows = self.batch, quantities.shape[1]
        batch_costs = BatchCosts(
            self.program, batch.system, batch.numbers, batch.which, quantities, shapes, shape
        )
        keys: dict[Hashable, int] = {}
        spans: list[Ints] = []
        codes = []
        of_row = np.zeros(len(self.kinds.lowering.rows), np.int64)
        nothing = np.zeros(rows, np.int64)
        for number, row in enumerate(self.kinds.lowering.rows):
            if row.op.kind == "wait":
                key: Hashable = "wait"
                priced = nothing, nothing.astype(np.int8)
            else:
                key = batch_costs.key(row.function, int(row.op.name), row.op)
                priced = batch_costs.of(key, row.op, row.function)
            if key not in keys:
                keys[key] = len(spans)
                spans.append(priced[0])
                codes.append(priced[1])
            of_row[number] = keys[key]
        rank_of = self.steps.rank_of
        edges = [
            batch_costs.edge(edge, rank_of[edge.source[0]], rank_of[edge.target[0]])
            for edge in self.steps.edges
        ]
        duration = np.array(spans, np.int64).reshape(len(spans), rows)
        sent = np.array(edges, np.int64).reshape(len(edges), rows)
        columns = np.where(self.order >= 0, of_row[self.order], -1)
        time_ps = self.kinds.maps.sweep(columns, duration, sent, self.steps.units)
        bound = self._bound(of_row, duration, np.array(codes), time_ps)
        return BatchedTimes(time_ps, bound, batch_costs.fits & (time_ps >= 0))

    def _counts(self) -> list[Ints]:
        """Return how often ranks run each row; equal ones once."""
        _, step, begin = self.steps.units.runs()
        lowering = self.kinds.lowering
        counts: dict[bytes, Ints] = {}
        for first, last in zip(begin[:-1].tolist(), begin[1:].tolist(), strict=True):
            total = np.zeros(len(lowering.rows), np.int64)
            used, times = np.unique(step[first:last], return_counts=True)
            for run, count in zip(used.tolist(), times.tolist(), strict=True):
                total += count * lowering.counts(self.steps.runs[run].unit.function)
            counts.setdefault(total.tobytes(), total)
        return list(counts.values())

    def _bound(
        self, of_row: Ints, duration: Ints, codes: npt.NDArray[np.int8], time_ps: Ints
    ) -> Ints:
        """Return the resource that bounds most of the busiest rank's step."""
        rows = time_ps.size
        most = np.full(rows, -1, np.int64)
        bound = np.zeros(rows, np.int64)
        lowering = self.kinds.lowering
        compute = np.array([r.bound_by != "network" and r.stream == COMPUTE for r in lowering.rows])
        moves = np.array([r.stream == COMM for r in lowering.rows])
        for counts in self.counts:
            parts = np.zeros((len(BOUNDS) + 1, rows), np.int64)
            names: dict[str, dict[int, int]] = {}
            for number in np.flatnonzero((counts > 0) & compute).tolist():
                by_key = names.setdefault(self.names[number], {})
                key = int(of_row[number])
                by_key[key] = by_key.get(key, 0) + int(counts[number])
            for by_key in names.values():
                _add(
                    parts, list(by_key), np.array(list(by_key.values()), np.int64), duration, codes
                )
            weights = np.bincount(of_row[moves], counts[moves], duration.shape[0]).astype(np.int64)
            used = np.flatnonzero(weights)
            moved = weights[used] @ duration[used] if used.size else np.zeros(rows, np.int64)
            kernels = parts.sum(axis=0)
            busier = kernels + moved > most
            most = np.where(busier, kernels + moved, most)
            bound = np.where(busier, main_bound(parts, moved, time_ps), bound)
        return bound


def _add(
    parts: Ints, keys: Sequence[int], counts: Ints, duration: Ints, codes: npt.NDArray[np.int8]
) -> None:
    """Add the time of all ops of a name to the resource that bounds most of it."""
    time, code = counts[:, None] * duration[list(keys)], codes[list(keys)]
    total = time.sum(axis=0)
    if (code == code[:1]).all():
        parts_of = code[0]
    else:
        each = np.stack([np.where(code == k, time, 0).sum(axis=0) for k in range(len(BOUNDS))])
        parts_of = each.argmax(axis=0).astype(np.int8)
    for k in np.unique(parts_of).tolist():
        parts[k] += np.where(parts_of == k, total, 0)


def _placed(program: Program) -> Program:
    """Return a program whose ops are called by their places in their functions."""
    functions = {
        name: dataclasses.replace(
            fn, ops=tuple(op._replace(name=str(n)) for n, op in enumerate(fn.ops))
        )
        for name, fn in program.functions.items()
    }
    return dataclasses.replace(program, functions=functions)
