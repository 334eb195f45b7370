# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run collectives between the ranks of an MPI job.

``MPI_Allreduce`` promises no order of summation and knows no ``bfloat16``: here terms travel as
bytes and every rank reduces its part with the reference of all engines
(:mod:`tvm_distir.core.collectives.meaning`), so the bits are the same everywhere.

Ranks exchange messages pairwise on a separate communicator of the run: the group of a call is
part of its header. With a communicator per group, ranks that call over different groups would
wait for each other; so each sees what the other called.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.core.collectives import Collective, apply_local
from tvm_distir.core.ir.operators import LOCAL_OPS
from tvm_distir.execution.runtime.collectives.fabric import Aborted, call_words, worker_failed
from tvm_distir.execution.runtime.collectives.message_steps import StepMessages, message_steps
from tvm_distir.execution.runtime.collectives.native_library import Executed
from tvm_distir.execution.runtime.collectives.posted_collectives import PostedCollectives
from tvm_distir.execution.runtime.collectives.transfers import Route
from tvm_distir.support import DistIRError, EngineError

from .messages import Messages
from .polling import Deadline
from .world import ARRAYS, COLLECTIVE, MESSAGES, World, as_bytes

Array = npt.NDArray[Any]
_EMPTY = np.empty(0, np.uint8)


class MpiFabric(PostedCollectives):
    """A fabric of the ranks of a run, of which this process is one.

    Parameters
    ----------
    world : World
    ranks : sequence of int
        Device ids; the i-th smallest is process i.
    place : str
        The place of this rank, for messages.
    """

    def __init__(self, world: World, ranks: Sequence[int], place: str = "engine mpi") -> None:
        super().__init__()
        self._place = place
        self._world = world
        self.ranks = sorted(ranks)
        self._process = {rank: i for i, rank in enumerate(self.ranks)}
        self._executed: list[Executed] = []
        self._local_messages: dict[Route, deque[tuple[Any, Array]]] = {}
        self._headers: dict[tuple[Any, ...], bytes] = {}
        self.failure: tuple[int, BaseException] | None = None
        self.is_origin = False
        self.messages = Messages(world, self.rank, self.check)

    @property
    def rank(self) -> int | None:
        """Return the device id of this process; None for a surplus process."""
        here = self._world.rank
        return self.ranks[here] if here < len(self.ranks) else None

    def process(self, rank: int) -> int:
        """Return the process that is a rank."""
        return self._process[rank]

    # What the engine needs ------------------------------------------------------------------

    @contextmanager
    def worker(self, rank: int) -> Iterator[None]:
        """Enter a context in which the calling thread is the worker ``rank``."""
        yield

    def fail(self, rank: int, error: BaseException) -> None:
        """Record the first failure and send it to all ranks."""
        if self.failure is not None or isinstance(error, Aborted):
            return
        self.failure, self.is_origin = (rank, error), True
        self._world.broadcast_failure(_sendable(error, rank, self._place))

    def finish(self, rank: int) -> None:
        """Do nothing: the end of a run is agreed on by :meth:`World.exchange`."""

    def check(self) -> None:
        """Raise :class:`Aborted` when a rank has failed."""
        if self.failure is None:
            heard = self._world.received_failure()
            if heard is None:
                return
            self.failure = (self.ranks[heard[0]] if heard[0] < len(self.ranks) else -1, heard[1])
        raise Aborted

    def executed(self, rank: int) -> list[Executed]:
        """Return collectives this process executed."""
        return [*self._executed, *self._executed_as_messages.get(rank, [])]

    # What inputs and results need -----------------------------------------------------------

    @property
    def place(self) -> str:
        """Return the engine, for messages."""
        return "engine mpi"

    @property
    def size(self) -> int:
        """Return the number of processes of the job."""
        return self._world.size

    def exchange_texts(self, text: bytes, describe: Callable[[list[int]], str]) -> list[bytes]:
        """Exchange a few bytes with all processes; returns those of each."""
        return self._world.exchange(text, self.check, describe)

    def send_array(self, process: int, array: Array) -> None:
        """Send an array to a process; does not wait."""
        self.messages.post_array(process, ARRAYS, None, array)

    def receive_array(
        self, process: int, shape: tuple[int, ...], dtype: np.dtype[Any], label: str
    ) -> Array:
        """Wait for the next array of a process."""
        return self.messages.take_array(process, ARRAYS, label)[1]

    def share(
        self, rank: int, array: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array:
        """Return a rank's array on every process; only that rank gives it."""
        if array is None:
            return self.receive_array(self.process(rank), shape, dtype, f"output of rank {rank}")
        for other in self._world.others:
            self.send_array(other, array)
        return array

    # Collectives ----------------------------------------------------------------------------

    def collective(self, rank: int, call: Collective, x: Array | None) -> Array:
        """Take part in a collective; returns this rank's result.

        Raises
        ------
        EngineError
            DIST0611 when the ranks of the group called different collectives, DIST0613 after
            the timeout.
        """
        group = call.group_of(rank)
        if call.name in LOCAL_OPS:
            return apply_local(call, x, group.index(rank), len(group))
        if x is None:
            raise EngineError("DIST0611", f"{call.text()} has no operand", remedy="Give one.")
        x = np.ascontiguousarray(x).reshape(x.shape)
        steps = message_steps(call, group.index(rank), x)
        step = next(steps)
        result: Array | None = None
        while result is None:
            try:
                step = steps.send(self._swap(rank, call, x, step))
            except StopIteration as stop:
                result = stop.value
        self._executed.append(Executed(call.name, call.groups, result.nbytes, 1))
        return result

    def _swap(self, rank: int, call: Collective, x: Array, step: StepMessages) -> dict[int, Array]:
        """Exchange headers with the full group, and data with some of it; returns what came."""
        group, head = call.group_of(rank), self._header(call, x)
        requests: list[Any] = []
        for i, peer in enumerate(group):
            if peer != rank:
                data = as_bytes(step.parts[i]) if i in step.parts else _EMPTY
                requests += self._world.post(self._process[peer], COLLECTIVE, head, data)
        got = {i: np.empty(shape, x.dtype) for i, shape in step.shapes.items() if group[i] != rank}
        mine = group.index(rank)
        if mine in step.shapes:
            got[mine] = step.parts[mine]
        missing = [r for r in group if r != rank]
        deadline = Deadline(self._world.timeout_s)
        while missing:
            before = len(missing)
            for peer in list(missing):
                message = self.messages.next(
                    self._process[peer], COLLECTIVE, lambda: _waits(call, missing)
                )
                if message is None:
                    continue
                missing.remove(peer)
                self._compare(rank, head, peer, message[0], group)
                at = group.index(peer)
                out = as_bytes(got[at]) if at in got else _EMPTY
                requests += self.messages.take_data(self._process[peer], COLLECTIVE, message, out)
            if len(missing) == before:
                self._world.turn(deadline, self.check, lambda: _waits(call, missing))
        # Sends too: the operand is memory of the program, which is used again after the call.
        self._world.finish(requests, self.check, lambda: _waits(call, group))
        return got

    def _header(self, call: Collective, x: Array) -> bytes:
        key = (call, x.shape, x.dtype)
        if key not in self._headers:
            digest = hashlib.sha256(repr((call, x.shape, str(x.dtype))).encode()).digest()
            self._headers[key] = (
                digest + f"{call_words(call, x)} over {list(map(list, call.groups))}"[:500].encode()
            )
        return self._headers[key]

    def _compare(
        self, rank: int, content: bytes, peer: int, other: bytes, group: Sequence[int]
    ) -> None:
        if content == other:
            return
        mine, theirs = (
            head[hashlib.sha256().digest_size :].decode(errors="replace")
            for head in (content, other)
        )
        raise EngineError(
            "DIST0611",
            f"rank {peer} called {theirs} while rank {rank} called {mine}",
            place=f"group {list(group)}",
            remedy="Make all ranks of a group call the same collectives in the same order.",
        )

    # Messages --------------------------------------------------------------------------------

    def _post(self, route: Route, message: tuple[Any, Array]) -> None:
        tag, source, destination = route
        if source == destination:
            self._local_messages.setdefault(route, deque()).append(message)
            return
        transfer, part = message
        self.messages.post_array(self._process[destination], MESSAGES + tag, transfer, part)

    def _take(self, route: Route, label: str) -> tuple[Any, Array]:
        tag, source, destination = route
        if source == destination:
            return self._local_messages[route].popleft()
        process = self._process[source]
        return self.messages.take_array(process, MESSAGES + tag, f"{label} from rank {source}")


def _waits(call: Collective, missing: Sequence[int]) -> str:
    word = "ranks" if len(missing) > 1 else "rank"
    return f"{call.text()} for {word} {', '.join(map(str, missing))}"


def _sendable(error: BaseException, rank: int, place: str) -> BaseException:
    """Return the error as others can load it: ours as they are, others as DIST0612."""
    if isinstance(error, DistIRError):
        return error
    return worker_failed(error, rank, place)
