# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Implement the fabric of threads by the native library."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tvm_ffi

from tvm_distir.core.collectives import Collective, Transfer
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import DistIRError

from . import native_library as native
from .fabric import WorkerError, failure_text
from .message_texts import MessageMeaning, array_head, read_array_head
from .progress_threads import ProgressThread
from .transfers import MessageKey, Transfers

_EXCHANGE_TAG = -1
"""Tag of all exchanges: their messages on the same route arrive in the order they were sent."""


class NativeFabric(Transfers):
    """A fabric of the ranks of a run, in the native library.

    Parameters
    ----------
    ranks : sequence of int
        Ranks that take part.
    timeout_s : float
        The time for which a rank waits for another rank that is busy computing.

    Attributes
    ----------
    most_in_flight : int
        The most collectives that a rank had started and not completed at once.
    """

    def __init__(self, ranks: Sequence[int], timeout_s: float) -> None:
        super().__init__()
        self._ranks, self._timeout_s = sorted(ranks), timeout_s
        self.native = native.CclFabric(self._ranks, timeout_s)
        self._lock = threading.Lock()
        self._errors: dict[int, BaseException] = {}
        self._second: native.CclFabric | None = None
        self._ended: set[int] = set()
        self._threads: dict[int, ProgressThread] = {}
        self.most_in_flight = 0

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

    @contextmanager
    def worker(self, rank: int) -> Iterator[None]:
        """Enter a context in which the calling thread is the worker ``rank``."""
        with self.native.worker(rank):
            try:
                yield
            except BaseException as err:
                self.fail(rank, err)  # its progress thread may wait for others
                raise
            finally:
                thread = self._threads.pop(rank, None)
                if thread is not None:
                    thread.end()
                    self.most_in_flight = max(self.most_in_flight, thread.most_in_flight)

    def fail(self, rank: int, error: BaseException) -> None:
        """Record the first failure and wake every waiting rank."""
        with self._lock:
            self._errors.setdefault(rank, error)
            second = self._second
        cause = error if isinstance(error, DistIRError) else failure_text(error)
        self.native.fail(rank, cause)
        if second is not None:
            second.fail(rank, cause)

    def finish(self, rank: int) -> None:
        """Record that a rank has run to its end."""
        with self._lock:
            self._ended.add(rank)
            second = self._second
        self.native.finish(rank)
        if second is not None:
            second.finish(rank)

    # Starts and completions -----------------------------------------------------------------

    def start(self, rank: int, address: int, collective: Callable[[], None]) -> None:
        """Start a collective on the progress thread of a rank.

        Parameters
        ----------
        rank : int
        address : int
            The address of the result, by which :meth:`complete` knows the collective.
        collective : callable
            Calls the native function.
        """
        second = self._second_fabric()
        if rank not in self._threads:
            self._threads[rank] = ProgressThread(second, rank)

        def run() -> None:
            try:
                collective()
            except BaseException as err:
                rank_failed, cause = second.failure() or (rank, failure_text(err))
                if rank_failed == rank:
                    self._errors.setdefault(rank, err)
                self.native.fail(rank_failed, cause)
                raise

        self._threads[rank].start(address, run)

    def complete(self, rank: int, address: int) -> None:
        """Wait for the collective of an address, and raise what it raised; nothing without one."""
        if rank in self._threads:
            self._threads[rank].complete(address)

    def _second_fabric(self) -> native.CclFabric:
        """Return the fabric of the progress threads, which knows what happened before."""
        with self._lock:
            if self._second is None:
                self._second = native.CclFabric(self._ranks, self._timeout_s)
                for rank in self._ended:
                    self._second.finish(rank)
                first = self.native.failure()
                if first is not None:
                    self._second.fail(*first)
            return self._second

    # Messages -------------------------------------------------------------------------------

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
            _EXCHANGE_TAG, args["shape"], (shape, group, before), (shape, group, after)
        )
        self.send(rank, transfer, x)
        out: Array = self._collected(rank, transfer, x.dtype)
        self._count(rank, call, out)
        return out

    def _post(self, route: MessageKey, message: tuple[MessageMeaning, Array]) -> list[object]:
        meaning, part = message
        flat = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
        native.send(tvm_ffi.from_dlpack(flat), route[0], route[2], array_head(meaning, part))
        return []

    def _take(
        self, route: MessageKey, message_label: str, expected: tuple[Transfer, Array] | None = None
    ) -> tuple[MessageMeaning, Array]:
        tag, source, _ = route
        label, size_bytes = native.await_message(tag, source, message_label)
        meaning, shape, dtype = read_array_head(label)
        flat = np.empty(size_bytes, np.uint8)
        native.take_message(tag, source, tvm_ffi.from_dlpack(flat))
        return meaning, flat.view(dtype).reshape(shape)

    def executed(self, rank: int) -> list[native.Executed]:
        """Return collectives a rank executed, known once it has ended."""
        second = [] if self._second is None else self._second.executed(rank)
        return [*self.native.executed(rank), *second, *super().executed(rank)]

    def progress(self) -> int:
        """Return a number that grows while ranks meet or post messages."""
        return self.native.progress() + (0 if self._second is None else self._second.progress())
