# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Implement the fabric of threads and of processes by the native library."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from tvm_distir.core import Transfer
from tvm_distir.support import DistIRError

from . import native_library as native
from .fabric import WorkerError, failure_text
from .transfers import Route, Transfers

Array = npt.NDArray[Any]


class NativeFabric(Transfers):
    """A fabric of the ranks of a run, in the native library.

    Parameters
    ----------
    ranks : sequence of int
        Ranks that take part.
    timeout_s : float
        The time for which a rank waits for another rank that is busy computing.
    shared : bool
        Whether other processes can take part, by :meth:`open` of its ``native.descriptor``.
    """

    def __init__(self, ranks: Sequence[int], timeout_s: float, shared: bool = False) -> None:
        self._begin(native.CclFabric(sorted(ranks), timeout_s, shared))

    @classmethod
    def open(cls, descriptor: int) -> NativeFabric:
        """Open the fabric of another process."""
        fabric = cls.__new__(cls)
        fabric._begin(native.CclFabric.open(descriptor))
        return fabric

    def _begin(self, fabric: native.CclFabric) -> None:
        super().__init__()
        self.native = fabric
        self._lock = threading.Lock()
        self._errors: dict[int, BaseException] = {}

    @property
    def failure(self) -> tuple[int, BaseException] | None:
        """Return the first rank that failed (-1: none of them), and its error."""
        first = self.native.failure()
        if first is None:
            return None
        rank, cause = first
        if rank in self._errors:
            return rank, self._errors[rank]
        return rank, WorkerError(cause) if isinstance(cause, str) else cause

    def worker(self, rank: int) -> Any:
        """Return the context in which the calling thread is the worker ``rank``."""
        return self.native.worker(rank)

    def fail(self, rank: int, error: BaseException) -> None:
        """Record the first failure and wake every waiting rank."""
        with self._lock:
            self._errors.setdefault(rank, error)
        self.native.fail(rank, error if isinstance(error, DistIRError) else failure_text(error))

    def finish(self, rank: int) -> None:
        """Record that a rank has run to its end."""
        self.native.finish(rank)

    def _post(self, route: Route, message: tuple[Transfer, Array]) -> None:
        transfer, part = message
        flat = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
        label = pickle.dumps((transfer, part.shape, part.dtype))
        native.send(tvm_ffi.from_dlpack(flat), route[0], route[2], label)

    def _take(self, route: Route, what: str) -> tuple[Transfer, Array]:
        tag, source, _ = route
        label, size_bytes = native.await_message(tag, source, what)
        transfer, shape, dtype = pickle.loads(label)
        flat = np.empty(size_bytes, np.uint8)
        native.take_message(tag, source, tvm_ffi.from_dlpack(flat))
        return transfer, flat.view(dtype).reshape(shape)

    def executed(self, rank: int) -> list[native.Executed]:
        """Return collectives a rank executed, known once it has ended."""
        return [*self.native.executed(rank), *self._exchanged.get(rank, [])]

    def progress(self) -> int:
        """Return a number that grows while ranks meet or post messages."""
        return self.native.progress()
