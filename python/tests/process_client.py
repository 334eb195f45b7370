# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The interpreter of processes that begin quickly: asks ``process_server.py`` for a process.

:mod:`tests.child_processes` writes this program beside the socket of the server, behind a line that
names the usual interpreter. It passes on its arguments, its folder, its environment, its open files
and the signals that it gets, and ends as the process ends. What the server refuses, the usual
interpreter runs.
"""

import _signal as signal  # the usual module imports enumerations, which takes as long as all else
import _socket
import marshal
import os
import sys

SERVER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "server")


def begin() -> None:
    """Ask for a process, and end as it ends."""
    listed = [int(name) for name in os.listdir("/proc/self/fd")]
    files = [number for number in listed if _is_inherited(number)]
    usable = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
    ignored = [int(number) for number in usable if signal.getsignal(number) == signal.SIG_IGN]
    request = marshal.dumps(
        (sys.argv[1:], os.getcwd(), dict(os.environb), files, ignored), marshal.version
    )
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        server.connect(SERVER)
    except OSError:
        _usual()
    numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in files)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)]

    def forward(number: int, _frame: object) -> None:
        server.send(bytes([number]))

    for number in usable:
        if number not in ignored and number < signal.SIGRTMIN:
            signal.signal(number, forward)
    server.sendmsg([len(request).to_bytes(8, "little")], rights)
    server.sendall(request)
    status = int.from_bytes(server.recv(4) or b"\1\1\0\0", "little", signed=True)
    if status == -1:
        _usual()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def _is_inherited(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:  # the folder that was listed
        return False


def _usual() -> None:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


begin()
