# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the collectives that a run executed, and their bytes."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_distir.core.collectives import sent_bytes
from tvm_distir.core.ir.operators import COLLECTIVES


@dataclass(frozen=True)
class CollectiveCount:
    """Collectives of the same kind along the same mesh axes, as each device executed them.

    Attributes
    ----------
    kind : str
        Op name; ``send`` counts a transfer between two meshes.
    mesh_axis : str
        Axis names joined by ``","``; ``"mesh0->mesh1"`` for a transfer.
    group_size : int
        Ranks per group; for a transfer, the destination ranks.
    count : int
        Executions per device.
    bytes_per_device : int
        The sum over the executions of the bytes of a device's result.
    wire_bytes_per_device : int
        Sum of :func:`tvm_distir.core.collectives.volume.sent_bytes`; for a transfer, the bytes that
        leave a device, summed over devices and divided by the destination ranks, rounded up.
    """

    kind: str
    mesh_axis: str
    group_size: int
    count: int
    bytes_per_device: int
    wire_bytes_per_device: int


class CollectiveCounter:
    """Adds up executed collectives by (kind, axes, group size)."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, int], list[int]] = {}

    def _add(self, key: tuple[str, str, int], result_bytes: int, sent: int) -> None:
        entry = self._sums.setdefault(key, [0, 0, 0])
        entry[0] += 1
        entry[1] += result_bytes
        entry[2] += sent

    def collective(self, kind: str, axes: str, group_size: int, result_bytes: int) -> None:
        """Count an execution; ops without traffic are not counted."""
        if kind in COLLECTIVES:
            sent = sent_bytes(kind, result_bytes, group_size)
            self._add((kind, axes, group_size), result_bytes, sent)

    def transfer(self, axes: str, ranks: int, result_bytes: int, moved_bytes: int) -> None:
        """Count a transfer between meshes."""
        self._add(("send", axes, ranks), result_bytes, -(-moved_bytes // ranks))

    def counts(self) -> tuple[CollectiveCount, ...]:
        """Return all sums, sorted by kind, axis and group size."""
        return tuple(CollectiveCount(*key, *sums) for key, sums in sorted(self._sums.items()))
