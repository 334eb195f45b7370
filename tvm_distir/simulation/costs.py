# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What each op of a program costs on a system, in integer picoseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import SimulationError
from ..program import Op, Program
from ..system import System, wire_bytes

PICOSECONDS = 10**12
_LARGEST_S = (1 << 62) / PICOSECONDS

COMPUTE, COMM, SEND, RECV = range(4)
STREAMS = ("compute", "comm", "send", "recv")
"""Streams of a device. Compute, collectives and sends run in order of issue, each on its own
stream; a receive only waits for its send."""


@dataclass(frozen=True)
class OpRow:
    """An op of a function, with its cost.

    Attributes
    ----------
    function : str
    op : Op
    stream : int
        Index into :data:`STREAMS`.
    duration_ps : int
        On the slowest of the groups, for a collective.
    bound_by : str
        ``compute``, ``memory``, ``launch``, or ``network``.
    wire_bytes : int
        Bytes that each device sends.
    """

    function: str
    op: Op
    stream: int
    duration_ps: int
    bound_by: str
    wire_bytes: int = 0


class OpCosts:
    """Costs of the ops of a program on a system; equal ops are computed once."""

    def __init__(self, program: Program, system: System) -> None:
        self.program, self.system = program, system
        self._collectives: dict[tuple[str, int, tuple[int, ...], int], tuple[int, ...]] = {}
        self._computes: dict[tuple[int, int, str, str], tuple[int, str]] = {}

    def row(self, function: str, number: int) -> OpRow:
        """Cost of the op ``number`` of a function (not a call or view)."""
        op = self.program.functions[function].ops[number]
        place = f"{function}/{op.name} ({op.op})"
        if op.kind == "collective":
            wire = wire_bytes(op.collective, op.payload_bytes, op.group_size)
            slowest = max(self.group_durations_ps(op, place))
            return OpRow(function, op, COMM, slowest, "network", wire)
        if op.kind == "wait":
            return OpRow(function, op, COMPUTE, 0, "network")
        if op.kind == "transfer":
            stream = SEND if op.collective == "send" else RECV
            return OpRow(
                function, op, stream, self._transfer_ps(op, place), "network", op.wire_bytes
            )
        moved = op.bytes_read + op.bytes_written
        key = (op.flops, moved, op.kernel_class, op.dtype)
        if key not in self._computes:
            found = self.system.roofline(op.flops, moved, op.kernel_class, op.dtype)
            self._computes[key] = picoseconds(found.time_s, place), found.bound_by
        return OpRow(function, op, COMPUTE, *self._computes[key])

    def group_durations_ps(self, op: Op, place: str) -> tuple[int, ...]:
        """Duration of a collective in each of the groups of its mesh, all running at once."""
        key = (op.collective, op.mesh, op.mesh_axes, op.payload_bytes)
        if key not in self._collectives:
            groups = self.program.meshes[op.mesh].groups(op.mesh_axes)
            sharing = self.system.nic_sharing(groups)
            times: dict[tuple[int, ...], int] = {}
            size = self.system.intra_node.devices_per_node
            for group in groups:
                nodes = tuple(device // size for device in group)
                shape = tuple(node - nodes[0] for node in nodes)
                if shape not in times:
                    time_s = self.system.collective_time_s(
                        op.collective, op.payload_bytes, group, sharing
                    )
                    times[shape] = picoseconds(time_s, place)
                self._collectives[key] = (
                    *self._collectives.get(key, ()),
                    times[shape],
                )
        return self._collectives[key]

    def _transfer_ps(self, op: Op, place: str) -> int:
        """Duration of a transfer, every device paired with another one of the other mesh."""
        if not op.wire_bytes:
            return 0
        here = self.program.meshes[op.mesh].device_ids
        there = self.program.meshes[op.peer_mesh].device_ids
        pairs = pair_up(here, there)
        sharing = self.system.nic_sharing(pairs)
        times_s = [
            self.system.collective_time_s(op.collective, op.wire_bytes, pair, sharing)
            for pair in pairs
        ]
        return picoseconds(max(times_s, default=0.0), place)


def pair_up(here: Sequence[int], there: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of devices of two meshes, the shorter side repeated in blocks.

    A device that belongs to both is paired with the next of the others.
    """
    count = max(len(here), len(there))
    pairs: list[tuple[int, int]] = []
    for i in range(count):
        one, start = here[i * len(here) // count], i * len(there) // count
        turned = (there[(start + k) % len(there)] for k in range(len(there)))
        other = next((device for device in turned if device != one), None)
        if other is not None:
            pairs.append((one, other))
    return pairs


def picoseconds(time_s: float, place: str) -> int:
    """Round seconds to picoseconds.

    Raises
    ------
    SimulationError
        DIST0721 for what is not finite or does not fit.
    """
    if not math.isfinite(time_s) or not 0 <= time_s <= _LARGEST_S:
        raise SimulationError(
            "DIST0721",
            f"it would take {time_s:.3g} s",
            place=place,
            remedy="Check the numbers of the system and the sizes of the program.",
        )
    return round(time_s * PICOSECONDS)
