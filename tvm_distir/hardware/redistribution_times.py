# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the times of redistribution steps on a system."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm_distir.core.ir.operators import LOCAL_STEPS
from tvm_distir.core.redistribution import EXCHANGE_EXTRA, PLAIN_MOVES

from .systems.clock import PICOSECONDS, Clock
from .systems.system import System


class RedistributionTimes:
    """Costs in picoseconds of the slowest group, by a system's bandwidths and latencies."""

    def __init__(self, system: System) -> None:
        self.clock = Clock(system)
        near, far = system.intra_node, system.inter_node
        per_node = far.nics_per_node * far.bandwidth_per_nic_GBps
        # Traffic inside a node and out of it may overlap: together no faster than this.
        self._fastest_bytes_per_s = 1e9 * (near.bandwidth_GBps + per_node)

    def step(self, kind: str, payload_bytes: int, groups: Sequence[Sequence[int]]) -> int:
        """Implement :class:`~tvm_distir.core.redistribution.costs.StepCosts`."""
        if len(groups[0]) == 1:
            return 0
        if kind in LOCAL_STEPS:
            return 1
        layout = self.clock.layout(groups)
        spent_ps = self.clock.collective_ps(kind, payload_bytes, layout)
        if kind != "exchange":
            return spent_ps
        # Frameworks use a plain collective where one does it: of as many bytes none costs more.
        size = len(groups[0])
        result_bytes = -(-payload_bytes * size // (size - 1))
        plain = (self.clock.collective_ps(x, result_bytes, layout) for x in PLAIN_MOVES)
        return max(spent_ps, *plain) + EXCHANGE_EXTRA

    def floor(self, received_bytes: int) -> int:
        """Implement :class:`~tvm_distir.core.redistribution.costs.StepCosts`."""
        return math.floor(PICOSECONDS * received_bytes / self._fastest_bytes_per_s)
