# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the steps of a redistribution cost: by bytes alone, or by the times of a system."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from ...system import System, wire_bytes
from .steps import LOCAL_KINDS

LAUNCH_BYTES = 64
"""Price of starting a collective, in bytes on the wire."""
EXCHANGE_EXTRA = 8
"""What an exchange costs more: of equally cheap ways that of plain collectives is taken."""
PICO = 10**12

Groups = Sequence[Sequence[int]]


class Costs(Protocol):
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
    """Bytes that one rank sends, plus :data:`LAUNCH_BYTES` per collective.

    Notes
    -----
    With k ranks and b bytes of result: all-reduce 2 b (k-1)/k, reduce-scatter b (k-1), all-gather
    and all-to-all b (k-1)/k. Source: Thakur, Rabenseifner, Gropp (2005), "Optimization of
    Collective Communication Operations in MPICH", bandwidth terms.
    """

    def step(self, kind: str, payload_bytes: int, groups: Groups) -> int:
        """See :class:`Costs`."""
        size = len(groups[0])
        if size == 1:
            return 0
        if kind in LOCAL_KINDS:
            return 1
        sent: int = wire_bytes(kind, payload_bytes, size)
        return sent + LAUNCH_BYTES + EXCHANGE_EXTRA * (kind == "exchange")

    def floor(self, received_bytes: int) -> int:
        """See :class:`Costs`."""
        return received_bytes


class SystemCosts:
    """Picoseconds by a system's bandwidths and latencies, of the slowest group."""

    def __init__(self, system: System) -> None:
        self.system = system
        near, far = system.intra_node, system.inter_node
        per_node = far.nics_per_node * far.bandwidth_per_nic_GBps
        # Traffic inside a node and out of it may overlap: together no faster than this.
        self._fastest_bytes_per_s = 1e9 * (near.bandwidth_GBps + per_node)

    def step(self, kind: str, payload_bytes: int, groups: Groups) -> int:
        """See :class:`Costs`."""
        if len(groups[0]) == 1:
            return 0
        if kind in LOCAL_KINDS:
            return 1
        sharing = self.system.nic_sharing(groups)
        times = [
            self.system.collective_time_s(kind, payload_bytes, group, sharing) for group in groups
        ]
        return round(PICO * max(times)) + EXCHANGE_EXTRA * (kind == "exchange")

    def floor(self, received_bytes: int) -> int:
        """See :class:`Costs`."""
        return math.floor(PICO * received_bytes / self._fastest_bytes_per_s)
