# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Carry the messages between the ranks of an MPI job.

``MPI_Allreduce`` promises no order of summation and knows no ``bfloat16``: here terms travel as
bytes and every rank reduces its part with the reference of all engines
(:mod:`tvm_distir.core.collectives.meaning`), so the bits are the same everywhere.

Ranks exchange messages pairwise on a separate communicator of the run: the groups of a call are
part of its header. With a communicator per group, ranks that call over different groups would
wait for each other; so each sees what the other called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvm_distir.core.collectives import Transfer
from tvm_distir.execution.runtime.collectives.fabric import Aborted, worker_failed
from tvm_distir.execution.runtime.collectives.message_texts import (
    MessageMeaning,
    array_head,
    read_array_head,
)
from tvm_distir.execution.runtime.collectives.posted_collectives import Posted
from tvm_distir.execution.runtime.collectives.transfers import MessageKey
from tvm_distir.execution.runtime.engines.job_fabric import JobFabric
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import DistIRError, EngineError

from .polling import Deadline
from .world import ARRAYS, MESSAGES, World, as_bytes

if TYPE_CHECKING:
    from mpi4py import MPI


class MpiFabric(JobFabric):
    """A fabric of the ranks of a run in an MPI job.

    Parameters
    ----------
    world : World
    ranks : sequence of int
        Device ids; the i-th smallest is process i.
    entry : str
        The entry function of this rank, for messages.

    Attributes
    ----------
    is_origin : bool
        Whether the first failure began in this process.
    """

    location = "engine mpi"

    def __init__(self, world: World, ranks: Sequence[int], entry: str = location) -> None:
        super().__init__(ranks, world.rank, world.size, world.local_rank)
        self._entry, self._world = entry, world
        self.is_origin = False

    def fail(self, rank: int, error: BaseException) -> None:
        """Record the first failure and send it to all ranks."""
        if self.failure is not None or isinstance(error, Aborted):
            return
        self.failure, self.is_origin = (rank, error), True
        known = isinstance(error, DistIRError)
        self._world.broadcast_failure(error if known else worker_failed(error, rank, self._entry))

    def check(self) -> None:
        """Raise :class:`Aborted` when a rank has failed."""
        if self.failure is None:
            heard = self._world.received_failure()
            if heard is None:
                return
            self.failure = (self.ranks[heard[0]] if heard[0] < len(self.ranks) else -1, heard[1])
        raise Aborted

    def exchange_texts(self, text: bytes, describe: Callable[[list[int]], str]) -> list[bytes]:
        """Exchange a few bytes with all processes; returns those of each."""
        return self._world.exchange(text, self.check, describe)

    def send_array(self, process: int, array: Array) -> None:
        """Send an array to a process; does not wait."""
        self._world.post(process, ARRAYS, array_head(None, array), as_bytes(array))

    def receive_array(
        self, process: int, shape: tuple[int, ...], dtype: np.dtype[np.generic], label: str
    ) -> Array:
        """Wait for the next array of a process."""
        return self._next(process, ARRAYS, label)[1]

    def _send(self, route: MessageKey, meaning: MessageMeaning, part: Array) -> list[MPI.Request]:
        tag, _, destination = route
        head = array_head(meaning, part)
        return self._world.post(self.process(destination), MESSAGES + tag, head, as_bytes(part))

    def _receive(
        self, route: MessageKey, label: str, expected: tuple[Transfer, Array] | None
    ) -> tuple[MessageMeaning, Array]:
        tag, source, _ = route
        words = label if tag < 0 else f"{label} from rank {source}"
        return self._next(self.process(source), MESSAGES + tag, words)

    def _await_sent(self, posted: Posted) -> None:
        self._world.finish(posted.sent, self.check, lambda: posted.words)

    def _next(self, process: int, tag: int, label: str) -> tuple[MessageMeaning, Array]:
        """Wait for the next array of a process.

        Raises
        ------
        EngineError
            DIST0610 when none can come, because its rank has run to its end.
        """
        world, deadline = self._world, Deadline(self._world.timeout_s)
        message = world.poll(process, tag)
        while message is None:
            has_ended = world.has_ended(process)
            message = world.poll(process, tag)
            if message is None and has_ended:
                problem = f"rank {self.rank} waits in {label}; process {process} has ended"
                remedy = (
                    "Make every rank of a group call its collectives, and give each send a receive."
                )
                raise EngineError("DIST0610", problem, location="ranks", remedy=remedy)
            if message is None:
                world.turn(deadline, self.check, lambda: label)
        head, data, rest = message
        meaning, shape, dtype = read_array_head(head)
        out = np.empty(shape, dtype)
        if rest:
            world.finish(world.receive_rest(process, tag, as_bytes(out)), self.check, lambda: label)
        else:
            as_bytes(out)[:] = data
        return meaning, out
