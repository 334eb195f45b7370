# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the collectives and transfers that ranks executed, per mesh axis."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm_distir.core.collectives import Transfer
from tvm_distir.core.ir import local_shape
from tvm_distir.execution.runtime.collectives.native_library import Executed
from tvm_distir.execution.runtime.program.axis_table import AxisTable
from tvm_distir.execution.runtime.program.counts import CollectiveCount, CollectiveCounter
from tvm_distir.execution.runtime.program.io_layout import Entries


def count_transfer(
    counter: CollectiveCounter, axes: str, transfer: Transfer, element_bytes: int
) -> None:
    """Count an execution of a transfer."""
    part = [int(n) for n in local_shape(transfer.shape, transfer.dst[2], transfer.dst[0])]
    moved = sum(tile.elements for tile in transfer.tiles() if tile.src != tile.dst)
    result_bytes = math.prod(part) * element_bytes
    counter.transfer(axes, len(transfer.dst[1]), result_bytes, moved * element_bytes)


def count_executed(
    table: AxisTable,
    entries: Entries,
    executed: Callable[[int], list[Executed]],
    received: Callable[[int], list[tuple[Transfer, int]]],
) -> tuple[CollectiveCount, ...]:
    """Count a run from the executions of the first rank of every mesh.

    Parameters
    ----------
    table : AxisTable
    entries : sequence of EntryFunction
        The entry functions.
    executed, received : callable
        The collectives that a rank executed, and the transfers that it received, each with the
        bytes of an element.
    """
    counter = CollectiveCounter()
    for entry in entries:
        # Entries may share a mesh: what runs on it is counted by that of its first device.
        rank = entry.ranks[0]
        for done in executed(rank):
            if done.groups[0][0] not in entry.ranks:
                continue
            axes = table.name(done.groups)
            for _ in range(done.count):
                counter.collective(done.kind, axes, len(done.groups[0]), done.result_bytes)
        for transfer, element_bytes in received(rank):
            if transfer.dst[1][0] in entry.ranks:
                axes = table.transfer_name(transfer)
                count_transfer(counter, axes, transfer, element_bytes)
    return counter.counts()
