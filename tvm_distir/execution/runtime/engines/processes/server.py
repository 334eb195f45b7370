# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Serve worker processes: import everything once, then fork workers on request.

``python -m tvm_distir.execution.runtime.engines.processes.server FILE``, where FILE is the number
of an open
socket to the controller. It has a single thread, so forking is safe; a worker starts in
milliseconds instead of importing TVM for a second. It reports the end of every worker, and kills
all of them when the controller goes.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
from typing import NoReturn

from tvm_distir.execution.runtime.engines.fork import die_with_parent

from . import worker as processes_worker
from .wire import Closed, close_all, receive, send


def _worker(channel: socket.socket, rank: int) -> NoReturn:
    """Run a worker until its controller ends."""
    status = 0
    try:
        die_with_parent()
        processes_worker.serve(channel, rank)
    except BaseException as err:
        print(f"worker {rank}: {type(err).__name__}: {err}", file=sys.stderr)
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit: what the server registered to run at its end is not the worker's.
        os._exit(status)


class Server:
    """Forks workers and reports their ends.

    Parameters
    ----------
    channel : socket
        The socket to the controller.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._workers: set[int] = set()
        self._woken, wakes = socket.socketpair()
        wakes.setblocking(False)
        self._woken.setblocking(False)
        self._wakes = wakes
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Serve until the controller ends."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            try:
                while True:
                    ready = [key.fileobj for key, _ in selector.select()]
                    if self._woken in ready:
                        self._woken.recv(4096)
                        self._report_ends()
                    if self._channel in ready:
                        message, files = receive(self._channel)
                        self._fork(int(message["rank"]), files)
            except Closed:
                signal.set_wakeup_fd(-1)  # their ends would be written to a closed socket at exit
                for pid in self._workers:
                    os.kill(pid, signal.SIGKILL)

    def _fork(self, rank: int, files: list[int]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for mine in (self._channel, self._woken, self._wakes):
                mine.close()
            _worker(socket.socket(fileno=files[0]), rank)
        close_all(files)
        self._workers.add(pid)
        send(self._channel, {"rank": rank, "pid": pid})

    def _report_ends(self) -> None:
        while self._workers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._workers.discard(pid)
            send(self._channel, {"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def main() -> None:
    """Serve on the socket that the command line names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller decides what Ctrl-C means
    Server(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
