# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the costs of ops for many like programs at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tvm_distir.core.ops import VIEW
from tvm_distir.hardware import PICOSECONDS, GroupLayout, KernelSizes, System
from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.program.numbers import EDGE_NUMBERS, Numbers
from tvm_distir.performance.program.parts import Op
from tvm_distir.performance.program.pipeline_program import Edge
from tvm_distir.performance.program.program import Program

from .kernel_sizes import sizes_of
from .op_costs import (
    GRADIENTS,
    HOST,
    HOSTS,
    SLOWDOWN,
    MessageStep,
    OpCosts,
    host_time_s,
    launched,
    overlap_delay_ps,
)

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]

BOUNDS = ("compute", "memory", "launch", "host", "network")
"""The resources that may bound an op; codes are positions in this list."""
_COMPUTE, _MEMORY, _LAUNCH, _HOST_BOUND, _NETWORK = range(5)
_LATEST = float(1 << 60)
_LARGEST = 1 << 62


def main_bound(parts: Ints, moved_ps: Ints, time_ps: Ints) -> Ints:
    """Return what bounds most of each step: a place in :data:`BOUNDS`, behind these idle time.

    Parameters
    ----------
    parts : int64 array (resources + 1, rows)
        The time of kernels by what bounds them; it receives the rest.
    moved_ps, time_ps : int64 array (rows,)
        The time of collectives, of which the part that kernels leave counts; the time of the step.
    """
    rest = np.maximum(time_ps - parts.sum(axis=0), 0)
    parts[_NETWORK] = np.minimum(moved_ps, rest)
    parts[-1] = rest - parts[_NETWORK]
    return np.asarray(parts.argmax(axis=0), np.int64)


class BatchCosts:
    """Durations of the ops of a program in stages, for many sets of its numbers.

    Parameters
    ----------
    program : Program
        Grouped into kernels; ops are called by their places in their functions.
    system : System
    numbers : Numbers
        The numbers of the program.
    which : int64 array
        The quantity of each number of the program.
    quantities : int64 array (quantities, rows)
    shapes : sequence of sequence of Mesh
        Meshes of the ranks: those that rows have.
    shape : int64 array (rows,)
        The shape that each row has.

    Attributes
    ----------
    fits : bool array (rows,)
        The rows all of whose times fit.
    """

    def __init__(
        self,
        program: Program,
        system: System,
        numbers: Numbers,
        which: Ints,
        quantities: Ints,
        shapes: Sequence[Sequence[Mesh]],
        shape: Ints,
    ) -> None:
        self.program, self.system, self.numbers = program, system, numbers
        self.which, self.quantities, self.shape = which, quantities, shape
        self.rows = quantities.shape[1]
        self.fits = np.ones(self.rows, bool)
        self._of_shape = [
            (
                np.flatnonzero(shape == number),
                OpCosts(replace(program, meshes=tuple(meshes)), system),
            )
            for number, meshes in enumerate(shapes)
        ]
        self._cache: dict[Hashable, tuple[Ints, Codes]] = {}
        edges = () if program.staged is None else program.staged.all_edges
        self._edges = {id(edge): at for edge, at in zip(edges, numbers.edge_at, strict=True)}

    def key(self, function: str, number: int, op: Op) -> Hashable:
        """Return the key of an op; ops of the same key take equally long."""
        at = self.numbers.op_at[function][number]
        flops, moved, payload, _ = self.which[at : at + 4].tolist()
        if op.kind in ("collective", SLOWDOWN):
            return op.kind, op.collective, payload, op.mesh, op.mesh_axes, op.kernel_class
        if op.kind == "transfer":
            return "transfer", op.collective, payload, op.mesh, op.peer_mesh
        if op.kind == "copy":
            return "copy", payload, self.program.functions[function].mesh
        if op.kernel_class == HOST:
            return HOST, function, flops
        if op.kernel_class in HOSTS:
            return "mark", op.kernel_class, flops
        if self.system.kernel_tables:
            dims = tuple(self._dims(function, value) for value in (*op.inputs, *op.outputs))
            return "kernel", flops, moved, op.kernel_class, op.dtype, op.op, dims
        return "kernel", flops, moved, op.kernel_class, op.dtype

    def of(self, key: Hashable, op: Op, function: str) -> tuple[Ints, Codes]:
        """Return the durations in picoseconds and the codes of their bounds, (rows,) each."""
        if key not in self._cache:
            self._cache[key] = self._cost(op, function, key)
        return self._cache[key]

    def _cost(self, op: Op, function: str, key: Hashable) -> tuple[Ints, Codes]:
        assert isinstance(key, tuple)
        if op.kind == "collective":
            return self._collective(op, self.quantities[key[2]]), self._codes(_NETWORK)
        if op.kind == SLOWDOWN:
            duration = self._collective(op, self.quantities[key[2]])
            return overlap_delay_ps(self.system, duration), self._codes(_NETWORK)
        if op.kind == "transfer":
            return self._transfer(op, self.quantities[key[2]]), self._codes(_NETWORK)
        if op.kind == "copy":
            system = self._of_shape[0][1].systems[key[2]]
            size = self.quantities[key[1]].astype(np.float64)
            return self._picoseconds(system.host_copy_time_s(size)), self._codes(_NETWORK)
        if key[0] == "kernel":
            flops, moved = self.quantities[key[1]], self.quantities[key[2]]
            return self._kernel(flops, moved, op, self._sizes(op, function, flops))
        count = self.quantities[key[2]].astype(np.float64)
        issued = self._picoseconds(host_time_s(self.system, op.kernel_class, count))
        if key[0] == HOST:
            issued = np.maximum(issued - self._busy(function), 0)
        return issued, self._codes(_HOST_BOUND)

    def _busy(self, function: str) -> Ints:
        """Return the kernel time of a function without callees."""
        total, fn = np.zeros(self.rows, np.int64), self.program.functions[function]
        for number in launched(fn):
            op = fn.ops[number]
            total += self.of(self.key(function, number, op), op, function)[0]
        return total

    def _dims(self, function: str, value: int) -> tuple[int, ...]:
        """Return the quantities of the dims of a value."""
        start = self.numbers.dims_from + self.numbers.dims_at[function][value]
        rank = len(self.program.functions[function].values[value].shape)
        return tuple(self.which[start : start + rank].tolist())

    def _sizes(self, op: Op, function: str, flops: Ints) -> KernelSizes | None:
        """Return the sizes of a kernel in all rows, where tables of measured kernels need them."""
        if not self.system.kernel_tables:
            return None
        values = self.program.functions[function].values
        ins, outs = (
            [[self.quantities[q] for q in self._dims(function, v)] for v in operands]
            for operands in (op.inputs, op.outputs)
        )
        return sizes_of(op, flops, ins, outs, [values[v].dtype for v in op.inputs])

    def _kernel(
        self, flops: Ints, moved: Ints, op: Op, sizes: KernelSizes | None
    ) -> tuple[Ints, Codes]:
        """Compute :meth:`tvm_distir.hardware.systems.system.System.roofline` for many rows."""
        if op.kernel_class == VIEW:
            return np.zeros(self.rows, np.int64), self._codes(_COMPUTE)
        duration, rate = self.system.spent_s(
            flops.astype(np.float64), moved.astype(np.float64), op.kernel_class, op.dtype, sizes
        )
        codes = np.where(duration.bound >= 0, _COMPUTE, _MEMORY)
        codes[(duration.busy < rate.floor_s) | (duration.busy < rate.gap_s)] = _LAUNCH
        return self._picoseconds(duration.total), codes.astype(np.int8)

    def _collective(self, op: Op, payload: Ints) -> Ints:
        result = np.zeros(self.rows, np.int64)
        gradients = op.kernel_class == GRADIENTS
        for rows, costs in self._of_shape:
            layout = costs.layout(op.mesh, op.mesh_axes)
            result[rows] = self._slowest(op.collective, payload[rows], layout, rows, gradients)
        return result

    def _transfer(self, op: Op, payload: Ints) -> Ints:
        """Compute the durations of an end of a message whose devices send all of their part."""
        result = np.zeros(self.rows, np.int64)
        for rows, costs in self._of_shape:
            layout = costs.pair_layout(op.mesh, op.peer_mesh)
            if layout.spreads:
                result[rows] = self._slowest(op.collective, payload[rows], layout, rows)
        return result

    def _slowest(
        self, kind: str, payload: Ints, layout: GroupLayout, rows: Ints, gradients: bool = False
    ) -> Ints:
        """Compute :meth:`~.Clock.collective_ps` for the payloads of some rows."""
        result = np.zeros(payload.size, np.int64)
        for where in layout.kinds:
            fits = payload < _LARGEST // (2 * where.ranks)
            self.fits[rows] &= fits
            bytes_sent = np.where(fits, payload, 0)
            duration = self.system.spread_time_s(kind, bytes_sent, where, layout.sharing, gradients)
            np.maximum(result, self._picoseconds(duration, rows), out=result)
        return result

    def edge(self, edge: Edge, source: int, target: int) -> Ints:
        """Return the durations of a message between ranks: as :meth:`.op_costs.OpCosts.edge_ps`."""
        at = self._edges[id(edge)]
        result = np.zeros(self.rows, np.int64)
        for rows, costs in self._of_shape:
            numbers = self.quantities[self.which[at : at + EDGE_NUMBERS]][:, rows]
            for split in np.unique(numbers[-1]).tolist():
                selected = numbers[-1] == split
                _, total, sent, received, _ = numbers[:, selected]
                ends = costs.message_steps((sent, received), total, split, source, target)
                times = [self._message(steps, rows[selected]) for steps in ends]
                result[rows[selected]] = np.maximum(*times)
        return result

    def _message(self, steps: Sequence[MessageStep], rows: Ints) -> Ints:
        """Return the durations of the steps of an end of a message."""
        total = np.zeros(rows.size, np.int64)
        for kind, size, layout in steps:
            total += np.where(size > 0, self._slowest(kind, size, layout, rows), 0)
        return total

    def _picoseconds(self, time_s: npt.NDArray[np.float64], rows: Ints | None = None) -> Ints:
        """Apply :func:`tvm_distir.hardware.systems.clock.picoseconds` to some rows or all."""
        time = np.rint(time_s * PICOSECONDS)
        bad = ~(time < _LATEST)
        self.fits[slice(None) if rows is None else rows] &= ~bad
        return np.where(bad, 0.0, time).astype(np.int64)

    def _codes(self, code: int) -> Codes:
        return np.full(self.rows, code, np.int8)
