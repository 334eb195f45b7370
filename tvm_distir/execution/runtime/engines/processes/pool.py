# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Manage the worker processes, which are started on demand and reused by later runs."""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tvm_distir.execution.runtime.engines.fork import end_text
from tvm_distir.support import EngineError

from .wire import Closed, Message, receive, send

_START_S = 120.0
_LAST_WORDS_S = 5.0
_SEND_S = 30.0
_SERVER = "tvm_distir.execution.runtime.engines.processes.server"


@dataclass
class Worker:
    """A worker process.

    Attributes
    ----------
    rank : int
    pid : int
    channel : socket
    """

    rank: int
    pid: int
    channel: socket.socket


class Pool:
    """A server and its workers, at most a worker per rank."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._workers: dict[int, Worker] = {}
        self._ends: dict[int, int] = {}
        self._owner = os.getpid()

    def workers(self, ranks: Iterable[int]) -> dict[int, Worker]:
        """Return the ready workers for these ranks; those missing are started.

        Raises
        ------
        EngineError
            DIST0615 when they cannot be started.
        """
        if self._owner != os.getpid():
            self._begin()  # a fork of the controller must leave the controller's workers alone
        requested = list(ranks)
        self._forget_ended()
        missing = [rank for rank in requested if rank not in self._workers]
        try:
            if missing and self._channel is None:
                self._start_server()
            for rank in missing:
                self._start_worker(rank)
        except (Closed, OSError) as err:
            self.close()
            raise EngineError(
                "DIST0615",
                f"the server of the worker processes does not start: {err or 'it ended'}",
                place="engine processes",
                remedy="Check its output on stderr, or use the engine threads, which needs no "
                "processes.",
            ) from err
        return {rank: self._workers[rank] for rank in requested}

    def _start_server(self) -> None:
        local_end, peer_end = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
        with peer_end:
            self._server = subprocess.Popen(
                [sys.executable, "-m", _SERVER, str(peer_end.fileno())],
                pass_fds=[peer_end.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                # The controller decides what a Ctrl-C at the terminal means.
                start_new_session=True,
            )
        self._channel = local_end
        self._ends.clear()

    def _start_worker(self, rank: int) -> None:
        local_end, peer_end = socket.socketpair()
        with peer_end:
            send(self._server_channel(), {"rank": rank}, [peer_end.fileno()])
        deadline_s = time.monotonic() + _START_S
        while rank not in self._workers:
            message = self._read_server(deadline_s - time.monotonic())
            if message is None:
                raise OSError(f"no worker within {_START_S:g} s")
            if message.get("rank") == rank:
                local_end.settimeout(_SEND_S)
                self._workers[rank] = Worker(rank, int(message["pid"]), local_end)

    def _server_channel(self) -> socket.socket:
        if self._channel is None:
            raise Closed
        return self._channel

    def _read_server(self, wait_s: float) -> Message | None:
        """Read the server's next message; None when there is none in time."""
        channel = self._server_channel()
        with selectors.DefaultSelector() as selector:
            selector.register(channel, selectors.EVENT_READ)
            if not selector.select(max(wait_s, 0.0)):
                return None
        message, _ = receive(channel)
        if "ended" in message:
            self._ends[int(message["ended"])] = int(message["status"])
        return message

    def _forget_ended(self) -> None:
        """Drop the workers that ended since the last run, or all with the server."""
        if self._channel is None:
            return
        try:
            while self._read_server(0.0) is not None:
                pass
        except Closed:
            self.close()
        for worker in list(self._workers.values()):
            if worker.pid in self._ends:
                self.forget(worker)

    def how_it_ended(self, worker: Worker) -> str:
        """Describe how a worker with a closed channel ended, and forget it."""
        deadline_s = time.monotonic() + _LAST_WORDS_S
        try:
            while worker.pid not in self._ends:
                if self._read_server(deadline_s - time.monotonic()) is None:
                    break
        except Closed:
            self.close()
            return "ended with the server of the workers, which was killed"
        status = self._ends.get(worker.pid)
        self.forget(worker)
        return end_text(status)

    def forget(self, worker: Worker) -> None:
        """Use a worker no longer; it ends by itself when it reads its channel."""
        worker.channel.close()
        self._ends.pop(worker.pid, None)
        if self._workers.get(worker.rank) is worker:
            del self._workers[worker.rank]

    def kill(self, worker: Worker) -> None:
        """End a worker that does not end by itself."""
        if worker.pid not in self._ends:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
        self.how_it_ended(worker)

    def close(self) -> None:
        """End the server, which ends all workers."""
        if self._owner != os.getpid():
            return
        for worker in list(self._workers.values()):
            self.forget(worker)
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._server is not None:
            try:
                self._server.wait(_LAST_WORDS_S)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._server = None

    def pids(self) -> Iterator[int]:
        """Process ids of the workers, in the order of their ranks."""
        for rank in sorted(self._workers):
            yield self._workers[rank].pid


POOL = Pool()
"""The workers of all runs of this process."""

atexit.register(POOL.close)
