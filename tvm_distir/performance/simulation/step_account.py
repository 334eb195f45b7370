# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Account for a step: sum up the timelines of its devices, whichever engine made them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_distir.core.ops import TENSOR_CLASSES
from tvm_distir.hardware import System
from tvm_distir.performance.memory.memory_timeline import curve
from tvm_distir.performance.memory.ranks import RankMemory
from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.program.program import Program

from .device_results import CollectiveTotal, DeviceGroupResult, DeviceMemory, DeviceTimeline
from .devices import Devices, DeviceWork
from .lowering import Lowering
from .module_times import ModuleNames, module_times
from .op_costs import COMPUTE, SEND, SLOWDOWN, OpRow, overlap_slowdown
from .op_records import all_seconds, bound_times, op_times, seconds
from .result import PipelineResult, Result

Ints = npt.NDArray[np.int64]

TrafficKey = tuple[str, str, str, int]
"""Mesh, kind, axes and group size."""

Traffic = dict[TrafficKey, list[int]]
"""Executions, bytes of results, bytes on the wire, picoseconds."""


class _Ops(NamedTuple):
    """Ops that are run, how often, those of them that count as traffic, and all FLOPs.

    ``kernels`` are the picoseconds of kernels and of the work of the host by class and type,
    ``products`` the FLOPs of tensor kernels by type and ``product_ps`` their time, ``delay_ps`` is
    the sum of the delays beside started collectives.
    """

    rows: list[OpRow]
    counts: list[int]
    moves: list[tuple[OpRow, int]]
    flops: int
    kernels: dict[tuple[str, str], int]
    products: dict[str, int]
    product_ps: int
    delay_ps: int


@dataclass(eq=False)
class StepAccount:
    """Account of a step.

    Attributes
    ----------
    program : Program
    system : System
    lowering : Lowering
    finish : int
        End of the step, in picoseconds.
    modules : ModuleNames
        The modules of the program's ops.
    works : list of DeviceWork
        The work of each group of devices.
    """

    program: Program
    system: System
    lowering: Lowering
    finish: int
    modules: ModuleNames

    def __post_init__(self) -> None:
        self.works: list[DeviceWork] = []
        self._lanes: list[DeviceGroupResult] = []
        self._traffic: Traffic = {}
        self._cache: dict[bytes, _Ops] = {}
        self._moved: set[tuple[bytes, str]] = set()

    def add(
        self,
        mesh: str,
        devices: tuple[int, ...],
        timeline: DeviceTimeline,
        memory_of: Callable[[], DeviceMemory],
        peak_of: Callable[[], int],
        traffic: Traffic,
        system: System,
        collective_mesh: Mesh | None = None,
    ) -> None:
        """Add devices that do the same.

        Parameters
        ----------
        mesh : str
        devices : tuple of int
        timeline : DeviceTimeline
            The timeline of the first of them.
        memory_of : callable giving DeviceMemory
        peak_of : callable giving int
            The peak of that memory alone, in bytes.
        traffic : Traffic
            Messages and copies that are no ops. Where groups of devices share a mesh, whose ops may
            differ, the most of each counts.
        system : System
            The system of these devices.
        collective_mesh : Mesh, optional
            The mesh on which collectives run, where ops do not name it.
        """
        counts = timeline.counts()
        ops = self._ops(counts)
        compute_ps, comm_ps, both_ps = timeline.busy()
        slowed_ps = _slowed_ps(overlap_slowdown(system), ops.delay_ps, both_ps)
        unused_ps = ops.delay_ps - slowed_ps
        share = slowed_ps / ops.delay_ps if ops.delay_ps else 1.0
        timed = self.modules, ops.rows, ops.counts, share
        self._lanes.append(
            DeviceGroupResult(
                mesh,
                devices,
                timeline,
                functools.cache(memory_of),
                peak_of,
                functools.cache(functools.partial(op_times, *timed)),
                functools.cache(functools.partial(module_times, *timed)),
                functools.partial(bound_times, *timed[1:]),
                {key: seconds(spent_ps) for key, spent_ps in ops.kernels.items()},
                ops.products,
                seconds(ops.product_ps),
                system.memory_capacity_bytes,
            )
        )
        work = compute_ps - unused_ps, comm_ps, both_ps - unused_ps
        self.works.append(DeviceWork(*work, self.finish, ops.flops))
        key = counts.tobytes(), "" if collective_mesh is None else collective_mesh.name
        if key not in self._moved:
            self._moved.add(key)
            self._add_moves(traffic, ops.moves, collective_mesh)
        for kind, table in traffic.items():
            most = self._traffic.get(kind, table)
            self._traffic[kind] = [max(pair) for pair in zip(most, table, strict=True)]

    def _ops(self, counts: Ints) -> _Ops:
        """Return the ops of devices that run each row so often; equal rows are computed once."""
        key = counts.tobytes()
        if key not in self._cache:
            numbers = np.flatnonzero(counts)
            rows = [self.lowering.rows[number] for number in numbers.tolist()]
            often = counts[numbers].tolist()
            moves = [
                pair
                for pair in zip(rows, often, strict=True)
                if pair[0].stream not in (COMPUTE, SEND)
            ]
            flops = sum(count * row.op.flops for row, count in zip(rows, often, strict=True))
            kernels = Counter[tuple[str, str]]()
            products, product_ps = Counter[str](), 0
            for row, count in zip(rows, often, strict=True):
                if row.op.kind == "compute":
                    kernels[row.op.kernel_class, row.op.dtype] += count * row.duration_ps
                if row.op.kernel_class in TENSOR_CLASSES and row.op.flops:
                    products[row.op.dtype] += count * row.op.flops
                    product_ps += count * row.duration_ps
            delay_ps = sum(
                count * row.duration_ps
                for row, count in zip(rows, often, strict=True)
                if row.op.kind == SLOWDOWN
            )
            self._cache[key] = _Ops(
                rows, often, moves, flops, kernels, products, product_ps, delay_ps
            )
        return self._cache[key]

    def _add_moves(
        self, sums: Traffic, moves: Iterable[tuple[OpRow, int]], collective_mesh: Mesh | None
    ) -> None:
        """Add collectives and received transfers that are run so often."""
        meshes = self.program.meshes
        for row, count in moves:
            op = row.op
            copies = op.kind == "copy"
            number = self.program.functions[row.function].mesh if copies else op.mesh
            mesh = meshes[number] if collective_mesh is None else collective_mesh
            if copies:
                key = mesh.name, op.collective, "host", len(mesh.device_ids)
            elif op.kind == "collective":
                axes = ",".join(mesh.axes[axis] for axis in op.mesh_axes)
                key = mesh.name, op.collective, axes, op.group_size
            else:
                ends = f"{meshes[op.peer_mesh].name}->{mesh.name}"
                key = mesh.name, "send", ends, len(mesh.device_ids)
            add_traffic(sums, key, count, (op.payload_bytes, row.wire_bytes, row.duration_ps))

    def result(
        self, timings_s: Mapping[str, float], pipeline: PipelineResult | None = None
    ) -> Result:
        """Return the result of the step."""
        return Result(
            system=self.system.name,
            time_s=seconds(self.finish),
            devices=Devices(self._lanes, self.works),
            collectives=tuple(
                CollectiveTotal(kind, mesh, axes, size, count, payload, sent, seconds(duration))
                for (mesh, kind, axes, size), (count, payload, sent, duration) in sorted(
                    self._traffic.items()
                )
            ),
            unmodelled_ops=tuple(
                sorted({row.op.op for row in self.lowering.rows if not row.op.modelled})
            ),
            branches=tuple(dict.fromkeys(self.lowering.branches)),
            lanes=tuple(self._lanes),
            timings_s=timings_s,
            meshes=self.program.meshes,
            pipeline=pipeline,
        )


def _slowed_ps(slowdown: float, delay_ps: int, both_ps: int) -> int:
    """Return the time that kernels lose, of delays in ``both_ps`` of overlap.

    In the time that is left, kernels run beside collectives. Where these are fewer than a
    collective could slow, the stream waits for its end, in which part of the delay lies.
    """
    return min(delay_ps, round((slowdown - 1.0) * max(both_ps - delay_ps, 0)))


def memory_over_time(
    memory: RankMemory, issued: Ints, during: Ints, end: int, after: int, param_bytes: int
) -> DeviceMemory:
    """Return the memory of a device over time.

    Parameters
    ----------
    memory : RankMemory
    issued, during : int64 arrays (n,)
        The time at which each op or unit is issued, and the most bytes that are live while it runs.
    end, after : int
        The end of the last op, and the bytes that are left then.
    param_bytes : int
        The bytes of weights and constants.
    """
    when, live = curve(memory.resident_bytes, issued, during, end, after)
    course = tuple(zip(all_seconds(when), live.tolist(), strict=True))
    return DeviceMemory(course, memory.account, param_bytes)


def add_traffic(sums: Traffic, key: TrafficKey, count: int, each: tuple[int, int, int]) -> None:
    """Add executions, each of so many bytes of results, bytes on the wire and picoseconds."""
    table = sums.setdefault(key, [0, 0, 0, 0])
    for i, value in enumerate((1, *each)):
        table[i] += value * count
