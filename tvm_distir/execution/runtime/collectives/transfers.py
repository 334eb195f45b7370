# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Transfer tiles between meshes and within a mesh, over messages of a fabric."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from typing import Any

from tvm_distir.core.collectives import Collective, Transfer, counted_bytes
from tvm_distir.core.ir import local_shape
from tvm_distir.support import EngineError

from . import native_library as native
from .array_operations import NUMPY, Arrays, Operand

MessageKey = tuple[int, int, int]
"""Tag, source rank, destination rank."""
Groups = tuple[tuple[int, ...], ...]
ONE_MEANING = "Give every transfer a unique tag, and its sender and receiver the same shape."


class Transfers(ABC):
    """Transfers between meshes, tile by tile, over messages that a subclass carries.

    Attributes
    ----------
    arrays : Arrays
        The operations on the arrays that move.
    """

    arrays: Arrays[Any] = NUMPY

    def __init__(self) -> None:
        # Counts, as a job has many steps.
        self._received = defaultdict[int, Counter[tuple[Transfer, int]]](Counter)
        self._executed = defaultdict[int, Counter[tuple[str, Groups, int]]](Counter)

    @abstractmethod
    def _post(self, route: MessageKey, message: tuple[Any, Any]) -> list[Any]:
        """Send a message; returns what :meth:`_await_sent` waits for, if anything."""

    @abstractmethod
    def _take(
        self, route: MessageKey, label: str, expected: tuple[Transfer, Operand] | None = None
    ) -> tuple[Any, Any]:
        """Wait for a message; returns its meaning and its array.

        ``expected`` is a transfer and an array of the shape and type of the tile, for messages that
        do not tell them.
        """

    def send(self, rank: int, transfer: Transfer, x: Operand) -> None:
        """Post the tiles this rank owes; does not wait."""
        for tile in transfer.tiles():
            if tile.src == rank:
                part = self.arrays.copy(x[tile.src_slices()])
                self._post((transfer.tag, rank, tile.dst), (transfer, part))

    def receive(self, rank: int, transfer: Transfer, dtype: Any) -> Operand:
        """Wait for the tiles of a transfer and return this rank's (zero-padded) part.

        Raises
        ------
        EngineError
            DIST0611 when the sender meant another transfer or type, else as ``collective``.
        """
        out = self._collected(rank, transfer, dtype)
        self._received[rank][transfer, dtype.itemsize] += 1
        return out

    def _collected(self, rank: int, transfer: Transfer, dtype: Any) -> Operand:
        size = [int(n) for n in local_shape(transfer.shape, transfer.dst[2], transfer.dst[0])]
        out = self.arrays.zeros(size, dtype)
        for tile in transfer.tiles():
            if tile.dst != rank:
                continue
            route, box = (transfer.tag, tile.src, rank), out[tile.dst_slices()]
            promised, part = self._take(route, f"receive of {transfer.text()}", (transfer, box))
            if promised != transfer or part.dtype != dtype:
                raise EngineError(
                    "DIST0611",
                    f"rank {rank} expects {transfer.text()} of {dtype}{list(transfer.shape)}, "
                    f"rank {tile.src} sent {part.dtype}{list(promised.shape)}",
                    remedy=ONE_MEANING,
                )
            out[tile.dst_slices()] = part
        return out

    def received(self, rank: int) -> list[tuple[Transfer, int]]:
        """Return transfers a rank received, each with the bytes of an element."""
        return list(self._received[rank].elements())

    def _count(self, rank: int, call: Collective, result: Operand) -> None:
        """Note that a rank has executed a collective."""
        self._executed[rank][call.name, call.groups, counted_bytes(call, result)] += 1

    def executed(self, rank: int) -> list[native.Executed]:
        """Return collectives a rank executed, known once it has ended."""
        return [native.Executed(*call, count) for call, count in self._executed[rank].items()]
