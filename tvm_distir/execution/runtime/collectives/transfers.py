# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Transfer tiles between meshes and within a mesh, over messages of a fabric."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.core.collectives import Collective, Transfer, counted_bytes
from tvm_distir.core.ir import local_shape
from tvm_distir.support import EngineError

from . import native_library as native

Array = npt.NDArray[Any]
Route = tuple[int, int, int]
"""Tag, source rank, destination rank."""
EXCHANGE_TAG = -1
"""Tag of all exchanges: their messages on the same route arrive in the order they were sent."""


class Transfers(ABC):
    """Transfers between meshes, tile by tile, over messages that a subclass carries."""

    def __init__(self) -> None:
        self._received: dict[int, list[tuple[Transfer, int]]] = {}
        self._executed_as_messages: dict[int, list[native.Executed]] = {}

    @abstractmethod
    def _post(self, route: Route, message: tuple[Any, Array]) -> None: ...

    @abstractmethod
    def _take(self, route: Route, label: str) -> tuple[Any, Array]: ...

    def send(self, rank: int, transfer: Transfer, x: Array) -> None:
        """Post the tiles this rank owes; does not wait."""
        for tile in transfer.tiles():
            if tile.src == rank:
                part = x[tile.src_slices()].copy()
                self._post((transfer.tag, rank, tile.dst), (transfer, part))

    def receive(self, rank: int, transfer: Transfer, dtype: np.dtype[Any]) -> Array:
        """Wait for the tiles of a transfer and return this rank's (zero-padded) part.

        Raises
        ------
        EngineError
            DIST0611 when the sender meant another transfer or type, else as ``collective``.
        """
        out = self._collected(rank, transfer, dtype)
        self._received.setdefault(rank, []).append((transfer, dtype.itemsize))
        return out

    def _collected(self, rank: int, transfer: Transfer, dtype: np.dtype[Any]) -> Array:
        size = [int(n) for n in local_shape(transfer.shape, transfer.dst[2], transfer.dst[0])]
        out = np.zeros(size, dtype)
        for tile in transfer.tiles():
            if tile.dst != rank:
                continue
            route = (transfer.tag, tile.src, rank)
            promised, part = self._take(route, f"receive of {transfer.text()}")
            if promised != transfer or part.dtype != dtype:
                raise EngineError(
                    "DIST0611",
                    f"rank {rank} expects {transfer.text()} of {dtype}{list(transfer.shape)}, "
                    f"rank {tile.src} sent {part.dtype}{list(promised.shape)}",
                    remedy="Give every transfer a unique tag, and its sender and receiver the "
                    "same shape.",
                )
            out[tile.dst_slices()] = part
        return out

    def received(self, rank: int) -> list[tuple[Transfer, int]]:
        """Return transfers a rank received, each with the bytes of an element."""
        return self._received.get(rank, [])

    def exchange(self, rank: int, call: Collective, x: Array) -> Array:
        """Post the tiles that others lack, take those that this rank lacks.

        Raises
        ------
        EngineError
            As :meth:`receive`.
        """
        group, args = call.group_of(rank), dict(call.args)
        (shape, _, before), (_, _, after) = args["src"], args["dst"]
        transfer = Transfer(
            EXCHANGE_TAG, args["shape"], (shape, group, before), (shape, group, after)
        )
        self.send(rank, transfer, x)
        out = self._collected(rank, transfer, x.dtype)
        size = counted_bytes(call, out)
        done = native.Executed(call.name, call.groups, size, 1)
        self._executed_as_messages.setdefault(rank, []).append(done)
        return out
