# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the cost of redistribution steps, in bytes or in the times of a system."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from tvm_distir.core.collectives.volume import wire_bytes
from tvm_distir.core.ir.names import LOCAL_STEPS
from tvm_distir.hardware import PICOSECONDS, Clock, GroupLayout, System

LAUNCH_BYTES = 64
"""Cost of starting a collective, in bytes on the wire."""
EXCHANGE_EXTRA = 8
"""Extra cost of an exchange, so that plain collectives win ties."""

Groups = Sequence[Sequence[int]]


class StepCosts(Protocol):
    """Integer costs, whose sums are exact in any order."""

    def step(self, kind: str, payload_bytes: int, groups: Groups) -> int:
        """Return the cost of a step.

        Parameters
        ----------
        kind : str
        payload_bytes : int
            Bytes of a rank's (padded) result; of an exchange, the most that a rank receives.
        groups : sequence of sequence of int
            Device ids of all groups, which run at once.
        """
        ...

    def floor(self, received_bytes: int) -> int:
        """Return a lower bound of the cost of steps in which a rank receives so many bytes."""
        ...


class RingCosts:
    """Costs in bytes that a rank sends, plus :data:`LAUNCH_BYTES` per collective."""

    def step(self, kind: str, payload_bytes: int, groups: Groups) -> int:
        """Implement :class:`StepCosts`."""
        size = len(groups[0])
        if size == 1:
            return 0
        if kind in LOCAL_STEPS:
            return 1
        sent: int = wire_bytes(kind, payload_bytes, size)
        return sent + LAUNCH_BYTES + EXCHANGE_EXTRA * (kind == "exchange")

    def floor(self, received_bytes: int) -> int:
        """Implement :class:`StepCosts`."""
        return received_bytes


class SystemCosts:
    """Costs in picoseconds of the slowest group, by a system's bandwidths and latencies."""

    def __init__(self, system: System) -> None:
        self.clock = Clock(system)
        self._layouts: dict[tuple[tuple[int, ...], ...], GroupLayout] = {}
        near, far = system.intra_node, system.inter_node
        per_node = far.nics_per_node * far.bandwidth_per_nic_GBps
        # Traffic inside a node and out of it may overlap: together no faster than this.
        self._fastest_bytes_per_s = 1e9 * (near.bandwidth_GBps + per_node)

    def step(self, kind: str, payload_bytes: int, groups: Groups) -> int:
        """Implement :class:`StepCosts`."""
        if len(groups[0]) == 1:
            return 0
        if kind in LOCAL_STEPS:
            return 1
        key = tuple(map(tuple, groups))
        if key not in self._layouts:
            self._layouts[key] = self.clock.system.layout(key)
        layout = self._layouts[key]
        spent_ps = self.clock.collective_ps(kind, payload_bytes, layout)
        if kind != "exchange":
            return spent_ps
        # Frameworks gather where a gather does it: an exchange of as many bytes costs as much.
        size = len(groups[0])
        gathered_bytes = -(-payload_bytes * size // (size - 1))
        gather_ps = self.clock.collective_ps("all_gather", gathered_bytes, layout)
        return max(spent_ps, gather_ps) + EXCHANGE_EXTRA

    def floor(self, received_bytes: int) -> int:
        """Implement :class:`StepCosts`."""
        return math.floor(PICOSECONDS * received_bytes / self._fastest_bytes_per_s)
