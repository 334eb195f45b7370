# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the steps of a redistribution cost: by bytes alone, or by the times of a system."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from tvm_distir.core.cost_model.clock import PICOSECONDS, Clock
from tvm_distir.core.cost_model.model import System
from tvm_distir.core.cost_model.network import GroupLayout, wire_bytes
from tvm_distir.core.ir.names import LOCAL_STEPS

LAUNCH_BYTES = 64
"""Price of starting a collective, in bytes on the wire."""
EXCHANGE_EXTRA = 8
"""What an exchange costs more: of equally cheap ways that of plain collectives is taken."""

Groups = Sequence[Sequence[int]]


class StepCosts(Protocol):
    """Prices, as integers: sums are exact in any order."""

    def step(self, kind: str, payload_bytes: int, groups: Groups) -> int:
        """Price of one step.

        Parameters
        ----------
        kind : str
        payload_bytes : int
            Bytes of one rank's (padded) result; of an exchange, the most that a rank receives.
        groups : sequence of sequence of int
            Device ids of all groups, which run at once.
        """
        ...

    def floor(self, received_bytes: int) -> int:
        """Return a price that no steps go below in which a rank receives so many bytes."""
        ...


class RingCosts:
    """Bytes that one rank sends, plus :data:`LAUNCH_BYTES` per collective."""

    def step(self, kind: str, payload_bytes: int, groups: Groups) -> int:
        """See :class:`StepCosts`."""
        size = len(groups[0])
        if size == 1:
            return 0
        if kind in LOCAL_STEPS:
            return 1
        sent: int = wire_bytes(kind, payload_bytes, size)
        return sent + LAUNCH_BYTES + EXCHANGE_EXTRA * (kind == "exchange")

    def floor(self, received_bytes: int) -> int:
        """See :class:`StepCosts`."""
        return received_bytes


class SystemCosts:
    """Picoseconds by a system's bandwidths and latencies, of the slowest group."""

    def __init__(self, system: System) -> None:
        self.clock = Clock(system)
        self._layouts: dict[tuple[tuple[int, ...], ...], GroupLayout] = {}
        near, far = system.intra_node, system.inter_node
        per_node = far.nics_per_node * far.bandwidth_per_nic_GBps
        # Traffic inside a node and out of it may overlap: together no faster than this.
        self._fastest_bytes_per_s = 1e9 * (near.bandwidth_GBps + per_node)

    def step(self, kind: str, payload_bytes: int, groups: Groups) -> int:
        """See :class:`StepCosts`."""
        if len(groups[0]) == 1:
            return 0
        if kind in LOCAL_STEPS:
            return 1
        key = tuple(map(tuple, groups))
        if key not in self._layouts:
            self._layouts[key] = self.clock.system.layout(key)
        layout = self._layouts[key]
        spent_ps = self.clock.collective_ps(kind, payload_bytes, layout)
        return spent_ps + EXCHANGE_EXTRA * (kind == "exchange")

    def floor(self, received_bytes: int) -> int:
        """See :class:`StepCosts`."""
        return math.floor(PICOSECONDS * received_bytes / self._fastest_bytes_per_s)
