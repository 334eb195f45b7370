# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the cost of redistribution steps, and compute it in bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tvm_distir.core.collectives.volume import sent_bytes
from tvm_distir.core.ir.operators.names import LOCAL_STEPS

LAUNCH_BYTES = 64
"""Cost of starting a collective, in bytes on the wire."""
EXCHANGE_EXTRA = 8
"""Extra cost of an exchange, so that plain collectives win ties."""
PLAIN_MOVES = ("all_gather", "all_to_all")
"""The collectives that move blocks without a reduction."""

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


def step_cost(
    costs: StepCosts,
    kind: str,
    axes: tuple[int, ...],
    payload_bytes: int,
    groups: Callable[[tuple[int, ...]], Groups],
) -> int:
    """Return the cost of a step along mesh axes, whose groups ``groups`` returns.

    Of what an exchange over several axes sends, each axis carries as much as in a plain collective
    along it alone, and no links of the other axes help.
    """
    cost = costs.step(kind, payload_bytes, groups(axes))
    if kind != "exchange" or len(axes) == 1:
        return cost
    plain = [costs.step(x, payload_bytes, groups((axis,))) for x in PLAIN_MOVES for axis in axes]
    return max(cost, max(plain) + EXCHANGE_EXTRA)


class RingCosts:
    """Costs in bytes that a rank sends, plus :data:`LAUNCH_BYTES` per collective."""

    def step(self, kind: str, payload_bytes: int, groups: Groups) -> int:
        """Implement :class:`StepCosts`."""
        size = len(groups[0])
        if size == 1:
            return 0
        if kind in LOCAL_STEPS:
            return 1
        sent: int = sent_bytes(kind, payload_bytes, size)
        return sent + LAUNCH_BYTES + EXCHANGE_EXTRA * (kind == "exchange")

    def floor(self, received_bytes: int) -> int:
        """Implement :class:`StepCosts`."""
        return received_bytes + LAUNCH_BYTES * (received_bytes > 0)
