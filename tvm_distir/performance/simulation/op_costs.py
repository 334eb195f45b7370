# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the cost of each op of a program on a system, in integer picoseconds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tvm_distir.core.collectives import sent_bytes
from tvm_distir.hardware import Clock, GroupLayout, System, picoseconds
from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.program.parts import Function, Op
from tvm_distir.performance.program.pipeline_program import Edge
from tvm_distir.performance.program.program import Program
from tvm_distir.support import memoized

from .kernel_sizes import sizes_of

COMPUTE, COMM, SEND, STORE, FETCH, RECV = range(6)
"""Places in :data:`tvm_distir.performance.traces.records.STREAMS`."""

HOST, GRADIENTS = "host", "gradients"
HOSTS = {HOST: "python_launch_us", "unit": "unit_overhead_us", "step": "step_overhead_us"}
"""Kernel classes of what the host does, and the constant of each."""
SLOWDOWN = "slowdown"
"""Kind of the op of a row that delays kernels beside a started collective; no program has it."""


@dataclass(frozen=True)
class OpRow:
    """Op of a function with its cost.

    Attributes
    ----------
    function : str
    op : Op
    stream : int
        ``COMPUTE`` to ``RECV``.
    duration_ps : int
        The duration; for a collective, that of the slowest group.
    bound_by : str
        ``compute``, ``memory``, ``launch``, or ``network``.
    wire_bytes : int
        Bytes that each device sends.
    issue_ps : int
        The time that the host takes to issue it. The host issues ops in program order, and none
        starts before it is issued.
    host_waits : bool
        Whether the host issues nothing more until it ends.
    """

    function: str
    op: Op
    stream: int
    duration_ps: int
    bound_by: str
    wire_bytes: int = 0
    issue_ps: int = 0
    host_waits: bool = False


class MessageStep(NamedTuple):
    """A transfer or collective that a message takes.

    Attributes
    ----------
    kind : str
        ``send``, ``recv`` or ``all_gather``.
    size_bytes : int, or int64 array of many messages
    layout : GroupLayout
        The layout of the devices that take part.
    """

    kind: str
    size_bytes: Any
    layout: GroupLayout


def host_time_s(system: System, kernel_class: str, count: Any) -> Any:
    """Return the seconds that the host takes for a number of pieces of its work, or for many."""
    return count * system.constant(HOSTS[kernel_class]) * 1e-6


def overlap_slowdown(system: System) -> float:
    """Return how many times as long kernels take beside a started collective."""
    return system.constant("overlap_slowdown") or 1.0


def overlap_delay_ps(system: System, duration_ps: Any) -> Any:
    """Return the picoseconds that kernels lose beside a collective, or beside many.

    Kernels run at ``1 / overlap_slowdown`` of their speed during the whole collective.
    """
    return np.rint(duration_ps * (1.0 - 1.0 / overlap_slowdown(system))).astype(np.int64)


def launched(fn: Function) -> Iterator[int]:
    """Yield the numbers of the kernels that the host launches in a function itself.

    Host and device meet over these: the host of a function waits at its end, so it takes what it
    issues beyond the time of the kernels.
    """
    for number, op in enumerate(fn.ops):
        if op.kind == "compute" and op.kernel_class not in HOSTS:
            yield number


class OpCosts:
    """Costs of the ops of a program on a system.

    Attributes
    ----------
    program : Program
        The program, on whose meshes systems of different networks share no node.
    systems : list of System
        The system of each mesh.
    clocks : list of Clock
        Their clocks.
    """

    def __init__(self, program: Program, system: System) -> None:
        self.systems = system.of_ranks([len(mesh.device_ids) for mesh in program.meshes] or [1])
        if not system.has_one_network:
            program = replace(program, meshes=_on_own_nodes(program.meshes, self.systems))
        self.program = program
        clocks = {id(known): Clock(known) for known in self.systems}
        self.clocks = [clocks[id(known)] for known in self.systems]

    def row(self, function: str, number: int) -> OpRow:
        """Return the cost of the op ``number`` of a function (not a call or view)."""
        op = self.program.functions[function].ops[number]
        location = f"{function}/{op.name} ({op.op})"
        if op.kind == "collective":
            sent = sent_bytes(op.collective, op.payload_bytes, op.group_size)
            layout = self.layout(op.mesh, op.mesh_axes)
            slowest = self.clocks[op.mesh].collective_ps(
                op.collective, op.payload_bytes, layout, location, op.kernel_class == GRADIENTS
            )
            return OpRow(function, op, COMM, slowest, "network", sent)
        if op.kind == "wait":
            return OpRow(function, op, COMPUTE, 0, "network")
        if op.kind == "transfer":
            stream = SEND if op.collective == "send" else RECV
            return OpRow(
                function, op, stream, self._transfer_ps(op, location), "network", op.wire_bytes
            )
        if op.kind == "copy":
            mesh = self.program.functions[function].mesh
            copy_ps = self.host_copy_ps(op.payload_bytes, mesh, location)
            stream = STORE if op.collective == "store" else FETCH
            return OpRow(function, op, stream, copy_ps, "network", op.payload_bytes)
        if op.kernel_class in HOSTS:
            return OpRow(function, op, COMPUTE, self._host_ps(function, op, location), "host")
        return OpRow(function, op, COMPUTE, *self._kernel(function, op, location))

    def slowdown(self, started: OpRow) -> OpRow | None:
        """Return what a started collective costs the kernels beside it; None for nothing.

        The compute stream spends this time behind the start. Kernels that run until the
        collective ends are as late as with a lower speed meanwhile, and kernels that wait for it
        earlier are not late: they wait for its end anyway.
        """
        delay_ps = int(overlap_delay_ps(self.systems[started.op.mesh], started.duration_ps))
        if not delay_ps:
            return None
        op = started.op._replace(
            kind=SLOWDOWN, op=f"slowed by {started.op.collective}", inputs=(), outputs=()
        )
        return OpRow(started.function, op, COMPUTE, delay_ps, "network")

    def _kernel(self, function: str, op: Op, location: str) -> tuple[int, str]:
        """Return the time of a compute op, as measured where it was, and its bound."""
        moved = op.bytes_read + op.bytes_written
        sizes, clock = None, self.clocks[self.program.functions[function].mesh]
        if clock.system.kernel_tables:
            values = self.program.functions[function].values
            sizes = sizes_of(
                op,
                op.flops,
                [values[v].shape for v in op.inputs],
                [values[v].shape for v in op.outputs],
                [values[v].dtype for v in op.inputs],
            )
        time = clock.kernel(op.flops, moved, op.kernel_class, op.dtype, location, sizes)
        return op.measured_ps or time.duration_ps, time.bound_by

    def _host_ps(self, function: str, op: Op, location: str) -> int:
        """Return the time of the host beyond that of the kernels that it launches."""
        fn = self.program.functions[function]
        spent_s = host_time_s(self.systems[fn.mesh], op.kernel_class, op.flops)
        spent_ps = picoseconds(spent_s, location)
        if op.kernel_class != HOST:
            return spent_ps
        busy_ps = sum(
            self._kernel(function, fn.ops[number], location)[0] for number in launched(fn)
        )
        return max(spent_ps - busy_ps, 0)

    def group_durations_ps(self, op: Op, location: str) -> tuple[int, ...]:
        """Return the duration of a collective in each group of its mesh, all running at once."""
        layout = self.layout(op.mesh, op.mesh_axes)
        clock = self.clocks[op.mesh]
        return clock.group_durations_ps(op.collective, op.payload_bytes, layout, location)

    def edge_ps(self, edge: Edge, first: int, second: int) -> tuple[int, int]:
        """Return the durations of the two ends of a message between ranks of a pipeline."""
        location = f"edge {edge.source} to {edge.target}"
        ends = self.message_steps(edge.wire_bytes, edge.bytes[1], edge.split, first, second)
        link, inside = self.link_clock(first, second), self.clocks[second]
        sent, received = (
            sum(
                (inside if step.kind == "all_gather" else link).transfer_ps(*step, location)
                for step in steps
            )
            for steps in ends
        )
        return sent, received

    def message_steps(
        self, wire_bytes: tuple[Any, Any], result_bytes: Any, split: int, source: int, target: int
    ) -> tuple[list[MessageStep], list[MessageStep]]:
        """Return the steps that the two ends of a message between ranks wait for.

        Parameters
        ----------
        wire_bytes : pair of int, or of int64 arrays of many messages
            The most bytes that a device sends, and receives.
        result_bytes : int or int64 array
            The bytes of a device's tensor where the message arrives.
        split : int
            The number of parts of the message, which are gathered where it arrives, along the last
            axes; 1 for a message without parts.
        source, target : int
            The ranks that send and receive.
        """
        sent, received = (-(-size // split) for size in wire_bytes)
        sends = [MessageStep("send", sent, self.pair_layout(source, target))]
        if split > 1:
            layout = self.parts_layout(target, split)
            sends.append(MessageStep("all_gather", result_bytes, layout))
        return sends, [MessageStep("recv", received, self.pair_layout(target, source))]

    def host_copy_ps(self, size_bytes: int, mesh: int, location: str) -> int:
        """Return the duration of a copy between a device of a mesh and its host's memory."""
        return picoseconds(self.systems[mesh].host_copy_time_s(size_bytes), location)

    @memoized
    def link_clock(self, mesh: int, peer: int) -> Clock:
        """Return the clock of messages between meshes: of the slower network, if they differ."""
        clocks = self.clocks[mesh], self.clocks[peer]
        return min(clocks, key=lambda clock: clock.system.node_bandwidth_bytes_per_s(1, 1))

    @memoized
    def layout(self, mesh: int, axes: tuple[int, ...]) -> GroupLayout:
        """Return the layout on the nodes of groups along axes of a mesh."""
        return self.systems[mesh].layout(self.program.meshes[mesh].group_table(axes))

    @memoized
    def parts_layout(self, mesh: int, parts: int) -> GroupLayout:
        """Return the layout of devices of a mesh that gather so many parts of a message."""
        ids = self.program.meshes[mesh].device_ids
        return self.systems[mesh].layout([ids[k : k + parts] for k in range(0, len(ids), parts)])

    @memoized
    def pair_layout(self, mesh: int, peer: int) -> GroupLayout:
        """Return the layout of the devices of two meshes, paired with each other."""
        source, target = (self.program.meshes[number].device_ids for number in (mesh, peer))
        return self.link_clock(mesh, peer).transfer_layout(source, target)

    def _transfer_ps(self, op: Op, location: str) -> int:
        """Return the duration of a transfer in which devices of two meshes are paired."""
        layout = self.pair_layout(op.mesh, op.peer_mesh)
        clock = self.link_clock(op.mesh, op.peer_mesh)
        return clock.transfer_ps(op.collective, op.wire_bytes, layout, location)


def _on_own_nodes(meshes: Sequence[Mesh], systems: Sequence[System]) -> tuple[Mesh, ...]:
    """Return meshes of which those of another system than the one before begin with a node."""
    per_node = math.lcm(*(system.intra_node.devices_per_node for system in systems))
    shift, result = 0, list(meshes[:1])
    for number, mesh in enumerate(meshes[1:], 1):
        if systems[number] != systems[number - 1]:
            node = max(result[-1].device_ids) // per_node + 1
            shift = node * per_node - min(mesh.device_ids)
        result.append(replace(mesh, device_ids=tuple(id + shift for id in mesh.device_ids)))
    return tuple(result)
