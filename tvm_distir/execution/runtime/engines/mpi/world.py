# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Exchange messages between the processes of an MPI job.

MPI itself knows neither timeouts nor the failure of a peer. All waiting here polls instead: for
the message, for word of a failure, for the deadline.
"""

from __future__ import annotations

import functools
import json
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tvm_distir.execution.runtime.collectives.fabric import too_late
from tvm_distir.execution.runtime.collectives.message_texts import error_text, read_error
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import EngineError

from .library import load_mpi
from .polling import Deadline
from .shared_memory import unlink_segments

if TYPE_CHECKING:
    from types import TracebackType

    from mpi4py import MPI

Bytes = npt.NDArray[np.uint8]

EAGER_BYTES = 1 << 14
"""Data up to this size travels with its header."""

CHUNK_BYTES = 1 << 28
"""Larger data is sent in messages of this size: MPI counts with 32 bits."""

FAILURE, CONTROL, ARRAYS, MESSAGES = 1, 2, 3, 16
"""Tags; messages of transfer t have the tag ``MESSAGES + t``."""

_HEAD = struct.Struct("<IQ")  # bytes of the header, bytes of the data


_abandoned: list[MPI.Request] = []
"""Requests of failed runs: MPI may still use their buffers."""


def as_bytes(array: Array) -> Bytes:
    """Return the elements of a contiguous array as bytes, without a copy."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class World:
    """The processes of an MPI job, on separate communicators.

    Construction is collective: all processes of the job must do it.

    Parameters
    ----------
    timeout_s : float
        The time for which a process waits for another process.
    """

    def __init__(self, timeout_s: float) -> None:
        self._mpi = load_mpi()
        self.timeout_s = timeout_s
        everyone = self._mpi.COMM_WORLD
        self.rank, self.size = int(everyone.Get_rank()), int(everyone.Get_size())
        self._comm = self._duplicate(everyone)
        host = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        self.local_size, self.local_rank = int(host.Get_size()), int(host.Get_rank())
        if host.Get_rank() == 0:
            unlink_segments()
        host.Barrier()
        self._sending: deque[MPI.Request] = deque()

    def _duplicate(self, everyone: MPI.Intracomm) -> MPI.Intracomm:
        comm, request = everyone.Idup()
        deadline = Deadline(self.timeout_s)
        while not request.Test():
            if deadline.is_over:
                _abandoned.append(request)
                raise EngineError(
                    "DIST0613",
                    f"process {self.rank} waited {self.timeout_s:g} s for the other "
                    f"{self.size - 1} to start the run",
                    location="engine mpi",
                    remedy="Call run in every process of the job, in the same order.",
                )
            deadline.pause()
        return comm

    @property
    def others(self) -> list[int]:
        """Return all other processes."""
        return [r for r in range(self.size) if r != self.rank]

    # Failures -------------------------------------------------------------------------------

    def broadcast_failure(self, error: BaseException) -> None:
        """Send a failure to every other process; does not wait."""
        text = json.dumps([self.rank, error_text(error)]).encode()
        data = np.frombuffer(text, np.uint8)
        for other in self.others:
            self._sending.append(self._comm.Isend(data, other, FAILURE))

    def received_failure(self) -> tuple[int, BaseException] | None:
        """Return the failure that another process reported, with its number."""
        status = self._mpi.Status()
        if not self._comm.Iprobe(self._mpi.ANY_SOURCE, FAILURE, status):
            return None
        data = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
        self._comm.Recv(data, status.Get_source(), FAILURE)
        rank, text = json.loads(data.tobytes())
        return int(rank), read_error(text)

    def abandon(self) -> None:
        """Abandon the communicator after a failure; pending messages keep their memory."""
        deadline = Deadline(min(self.timeout_s, 2.0))
        while self._sending and not deadline.is_over:
            self._reap()
            deadline.pause()
        _abandoned.extend(self._sending)
        self._sending.clear()

    # Messages -------------------------------------------------------------------------------

    def _reap(self) -> None:
        while self._sending and self._sending[0].Test():
            self._sending.popleft()

    def post(self, peer: int, tag: int, head: bytes, data: Bytes) -> list[MPI.Request]:
        """Send a header and data; does not wait.

        Returns
        -------
        list of Request
            Those of data that does not travel with its header. It must not change until they are
            done, or until it was received.
        """
        self._reap()
        first = _HEAD.pack(len(head), data.nbytes) + head
        if data.nbytes <= EAGER_BYTES:
            first += data.tobytes()
        self._sending.append(self._comm.Isend(np.frombuffer(first, np.uint8), peer, tag))
        if data.nbytes <= EAGER_BYTES:
            return []
        requests = [self._comm.Isend(piece, peer, tag) for piece in _pieces(data)]
        self._sending.extend(requests)
        return requests

    def poll(self, peer: int, tag: int) -> tuple[bytes, Bytes, int] | None:
        """Return a peer's next message, if any: header, data, number of following bytes."""
        status = self._mpi.Status()
        if not self._comm.Iprobe(peer, tag, status):
            return None
        buffer = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
        self._comm.Recv(buffer, peer, tag)
        head_bytes, data_bytes = _HEAD.unpack(buffer[: _HEAD.size].tobytes())
        start = _HEAD.size + head_bytes
        data = buffer[start:]
        return buffer[_HEAD.size : start].tobytes(), data, data_bytes - data.nbytes

    def has_ended(self, peer: int) -> bool:
        """Return whether a peer waits for the end of the run and sends nothing more."""
        return bool(self._comm.Iprobe(peer, CONTROL))

    def receive_rest(self, peer: int, tag: int, out: Bytes) -> list[MPI.Request]:
        """Begin to receive data that follows its header; returns requests for :meth:`finish`."""
        return [self._comm.Irecv(piece, peer, tag) for piece in _pieces(out)]

    def finish(
        self,
        requests: Sequence[MPI.Request],
        check: Callable[[], None],
        describe: Callable[[], str],
    ) -> None:
        """Wait for requests.

        Parameters
        ----------
        requests : sequence
        check : callable
            Raises when there is no sense in waiting on.
        describe : callable
            Words for what is waited for.
        """
        pending = list(requests)
        deadline = Deadline(self.timeout_s)
        try:
            while True:
                pending = [r for r in pending if not r.Test()]
                if not pending:
                    return
                self.turn(deadline, check, describe)
        except BaseException:
            _abandoned.extend(pending)
            raise

    def turn(
        self, deadline: Deadline, check: Callable[[], None], describe: Callable[[], str]
    ) -> None:
        """Check for failures and the timeout in a waiting loop, then pause.

        Raises
        ------
        EngineError
            DIST0613 after the deadline, or what ``check`` raises.
        """
        self._reap()
        check()
        if deadline.is_over:
            raise too_late(f"waited {self.timeout_s:g} s in {describe()}", f"process {self.rank}")
        deadline.pause()

    def exchange(
        self, text: bytes, check: Callable[[], None], describe: Callable[[list[int]], str]
    ) -> list[bytes]:
        """Exchange a few bytes with all processes; returns those of each."""
        for other in self.others:
            self.post(other, CONTROL, text, np.empty(0, np.uint8))
        got = {self.rank: text}
        deadline = Deadline(self.timeout_s)
        while len(got) < self.size:
            before = len(got)
            for other in self.others:
                message = None if other in got else self.poll(other, CONTROL)
                if message is not None:
                    got[other] = message[0]
            if len(got) == before:
                missing = [r for r in self.others if r not in got]
                self.turn(deadline, check, functools.partial(describe, missing))
        return [got[i] for i in range(self.size)]


def _pieces(data: Bytes) -> Iterator[Bytes]:
    for start in range(0, data.nbytes, CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


_current: list[World] = []


def world(timeout_s: float) -> World:
    """Return the communicators of this process; made anew after a failure."""
    if not _current:
        _current.append(World(timeout_s))
        _abort_when_dying(_current[0])
    _current[0].timeout_s = timeout_s
    return _current[0]


def forget_world() -> None:
    """Discard the communicators after a failure; the next run gets new ones."""
    while _current:
        _current.pop().abandon()


LAST_WORDS_S = 0.2
"""Time the launcher gets to hand on what a dying process printed, before it kills the others."""


def _abort_when_dying(here: World) -> None:
    """End the job when an exception ends this process; else the others would wait."""
    if here.size == 1 or getattr(sys.excepthook, "ends_job", False):
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(LAST_WORDS_S)
        load_mpi().COMM_WORLD.Abort(getattr(error, "exit_code", 1))

    hook.ends_job = True  # type: ignore[attr-defined]
    sys.excepthook = hook
