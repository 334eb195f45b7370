# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Exchange tiles and run shared collectives between entries of the engine ``virtual``."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tvm_distir.core.collectives import Collective, Transfer, apply_groups
from tvm_distir.core.ir import local_shape
from tvm_distir.execution.runtime.program.axis_table import Groups
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import EngineError

MessageKey = tuple[int, tuple[int, ...], tuple[int, ...], int, int]
"""Tag, device ids of both meshes, source rank, destination rank."""


class MessageQueues:
    """Queues of tiles in transit, in order of sending on every route."""

    def __init__(self) -> None:
        self._messages: dict[MessageKey, deque[tuple[Transfer, Array]]] = {}

    @staticmethod
    def _route(transfer: Transfer, src: int, dst: int) -> MessageKey:
        return transfer.tag, transfer.src[1], transfer.dst[1], src, dst

    def post(self, transfer: Transfer, sent: Mapping[int, Array]) -> None:
        """Post the tiles that some ranks owe, given what each of them holds."""
        for tile in transfer.tiles():
            if tile.src in sent:
                messages = self._messages.setdefault(
                    self._route(transfer, tile.src, tile.dst), deque()
                )
                messages.append((transfer, sent[tile.src][tile.src_slices()]))

    def is_there(self, transfer: Transfer, ranks: Sequence[int]) -> bool:
        """Return whether all tiles for some ranks have been posted."""
        return all(
            self._messages.get(self._route(transfer, tile.src, tile.dst))
            for tile in transfer.tiles()
            if tile.dst in ranks
        )

    def take(
        self, transfer: Transfer, ranks: Sequence[int], dtype: np.dtype[np.generic], location: str
    ) -> dict[int, Array]:
        """Take the tiles for some ranks; returns their (zero-padded) parts.

        Raises
        ------
        EngineError
            DIST0611 when the sender meant another transfer.
        """
        size = [int(n) for n in local_shape(transfer.shape, transfer.dst[2], transfer.dst[0])]
        out = {rank: np.zeros(size, dtype) for rank in ranks}
        for tile in transfer.tiles():
            if tile.dst not in out:
                continue
            promised, part = self._messages[self._route(transfer, tile.src, tile.dst)].popleft()
            if promised != transfer:
                raise EngineError(
                    "DIST0611",
                    f"{transfer.text()}: the send has shape {promised.shape}, the receive "
                    f"{transfer.shape}, or their placements differ",
                    location=location,
                    remedy="Give every transfer a unique tag.",
                )
            out[tile.dst][tile.dst_slices()] = part
        return out


@dataclass
class Rendezvous:
    """A collective of ranks that run several entries.

    Attributes
    ----------
    call : Collective
    operands : dict of rank to array
        The operands of the ranks that have arrived.
    results : dict of rank to array
        Empty until all ranks have arrived.
    """

    call: Collective
    operands: dict[int, Array] = field(default_factory=dict)
    results: dict[int, Array] = field(default_factory=dict)


class RendezvousTable:
    """Collectives on meshes whose devices run several entries: the last to come does the work."""

    def __init__(self) -> None:
        self._open: dict[Groups, list[Rendezvous]] = {}

    def join(self, call: Collective, operands: Mapping[int, Array], location: str) -> Rendezvous:
        """Add the operands of an entry's ranks.

        Raises
        ------
        EngineError
            DIST0611 when another entry calls another collective.
        """
        pending = self._open.setdefault(call.groups, [])
        rendezvous = next((m for m in pending if not operands.keys() & m.operands.keys()), None)
        if rendezvous is None:
            rendezvous = Rendezvous(call)
            pending.append(rendezvous)
        if rendezvous.call != call:
            raise EngineError(
                "DIST0611",
                f"ranks {sorted(operands)} call {call.text()} while ranks "
                f"{sorted(rendezvous.operands)} call {rendezvous.call.text()}",
                location=location,
                remedy="Make all ranks of a mesh call the same collectives in the same order.",
            )
        rendezvous.operands.update(operands)
        if len(rendezvous.operands) == sum(len(group) for group in call.groups):
            pending.remove(rendezvous)
            rendezvous.results.update(apply_groups(call, rendezvous.operands))
        return rendezvous
