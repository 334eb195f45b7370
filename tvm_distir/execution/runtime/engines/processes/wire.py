# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Send JSON messages and open files between controller, server and workers.

Arrays are never sent here; they are in memory that the open files name
(:mod:`tvm_distir.execution.runtime.engines.processes.shared_memory`).
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

_HEAD = struct.Struct("<IB")
_MOST_FILES = 8


class Closed(Exception):
    """The exception for a closed peer."""


def send(channel: socket.socket, message: Message, files: Sequence[int] = ()) -> None:
    """Send a message and copies of open files.

    Raises
    ------
    Closed
        When the other end has gone, or does not read.
    """
    body = json.dumps(message).encode()
    head = _HEAD.pack(len(body), len(files))
    extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    try:
        channel.sendmsg([head], extra)
        channel.sendall(body)
    except OSError as err:
        raise Closed from err


def receive(channel: socket.socket) -> tuple[Message, list[int]]:
    """Wait for a message; its open files are the caller's to close.

    Raises
    ------
    Closed
        When the other end has gone.
    """
    space = socket.CMSG_SPACE(_MOST_FILES * array.array("i").itemsize)
    files: list[int] = []
    try:
        head, extra, _, _ = channel.recvmsg(_HEAD.size, space)
        for level, kind, data in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                files.extend(numbers)
        head += _exactly(channel, _HEAD.size - len(head)) if head else b""
        if len(head) < _HEAD.size:
            raise Closed
        length, _ = _HEAD.unpack(head)
        message: Message = json.loads(_exactly(channel, length))
    except (Closed, OSError) as err:
        close_all(files)
        raise Closed from err
    return message, files


def _exactly(channel: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = channel.recv(min(count, 1 << 16))
        if not part:
            raise Closed
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def close_all(files: Sequence[int]) -> None:
    """Close open files; those already closed are left."""
    for file in files:
        with contextlib.suppress(OSError):
            os.close(file)
