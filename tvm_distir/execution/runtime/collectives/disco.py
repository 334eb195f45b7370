# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Provide native collectives to TVM's Disco sessions on CPUs in place of NCCL.

:func:`join` gives the workers of a ``ThreadedSession`` or ``ProcessSession`` a fabric. From then
on ``session.allreduce``, ``R.ccl.*`` and the like work as with NCCL. A session that never called
``init_ccl`` looks these functions up under an empty name, ``runtime.disco..allreduce``.

Run as a module (``ProcessSession(...,
entrypoint="tvm_distir.execution.runtime.collectives.disco")``), this
is Disco's worker process with the functions registered.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from . import native_library as native

ENTER = "tvm_distir.disco.enter"
TIMEOUT_S = 60.0
_PREFIX = "runtime.disco.."
_MESSAGES = 0

_fabrics: list[native.CclFabric] = []


@dataclass(frozen=True)
class _Place:
    """The rank of a worker among ``count``, and the fabric of the group."""

    rank: int
    count: int
    group_size: int
    fabric: native.CclFabric

    def groups(self, in_group: bool) -> tuple[Any, int]:
        """Return all ranks and the size of a group of them, contiguous."""
        return tvm_ffi.Shape(range(self.count)), self.group_size if in_group else self.count


_places: dict[int, _Place] = {}
"""The place of each thread: Python forgets its thread-local data between two calls of a thread of
C++."""


def _here() -> _Place:
    return _places[threading.get_ident()]


def _flat(tensor: Any) -> Any:
    count = 1
    for extent in tensor.shape:
        count *= int(extent)
    return tensor._create_view((count,))


def _collective(name: str, x: Any, in_group: bool, args: tuple[int, ...], out: Any) -> None:
    ranks, size = _here().groups(bool(in_group))
    native.collective(name)(_flat(x), ranks, size, *args, _flat(out))


def _send(x: Any, receiver: int) -> None:
    native.send(_flat(x), _MESSAGES, int(receiver), b"")


def _receive(x: Any, sender: int) -> None:
    native.await_message(_MESSAGES, int(sender), f"receive from worker {int(sender)}")
    native.take_message(_MESSAGES, int(sender), _flat(x))


def _receive_from_first(x: Any) -> None:
    if _here().rank:
        _receive(x, 0)
        return
    for rank in range(1, _here().count):
        _send(x, rank)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "allreduce": lambda x, op, in_group, out: _collective(
        "all_reduce", x, in_group, (int(op),), out
    ),
    "allgather": lambda x, in_group, out: _collective("all_gather", x, in_group, (0,), out),
    "broadcast_from_worker0": lambda x, in_group, out: _collective(
        "broadcast", out if x is None else x, in_group, (0,), out
    ),
    "scatter_from_worker0": lambda x, in_group, out: _collective(
        "scatter", out if x is None else x, in_group, (0, 0), out
    ),
    "gather_to_worker0": lambda x, in_group, out: _collective(
        "gather", x, in_group, (0, 0), x if out is None else out
    ),
    "recv_from_worker0": _receive_from_first,
    "send_to_next_group": lambda x: _send(x, _here().rank + _here().group_size),
    "recv_from_prev_group": lambda x: _receive(x, _here().rank - _here().group_size),
    "send_to_worker": _send,
    "recv_from_worker": _receive,
    "sync_worker": lambda: None,
}
"""The functions that Disco looks up, by short name; the code of a reduction is that of this
package."""


def _enter(controller: int, descriptor: int, count: int, groups: int) -> None:
    """Make the calling Disco worker a rank of a fabric of the controller's process."""
    rank = int(tvm_ffi.get_global_func("runtime.disco.worker_rank")())
    if controller == os.getpid():
        fabric = next(f for f in reversed(_fabrics) if f.descriptor == descriptor)
    else:
        file = os.open(f"/proc/{controller}/fd/{descriptor}", os.O_RDWR)
        try:
            fabric = native.CclFabric.open(file)
        finally:
            os.close(file)
    _places[threading.get_ident()] = _Place(rank, count, count // groups, fabric)
    fabric.enter(rank)


def register() -> None:
    """Register the functions that Disco looks up in this process."""
    for name, function in _FUNCTIONS.items():
        tvm_ffi.register_global_func(_PREFIX + name, function, override=True)
    tvm_ffi.register_global_func(ENTER, _enter, override=True)


def join(session: Any, workers: int, groups: int = 1, timeout_s: float = TIMEOUT_S) -> None:
    """Let the workers of a Disco session meet in a fabric of this process.

    Parameters
    ----------
    session : disco.Session
        A session whose worker processes, if it has any, run this module. It must not have called
        ``init_ccl``, which makes Disco look for the functions of another library.
    workers, groups : int
        The numbers with which the session was made; groups are contiguous.
    timeout_s : float
        The time for which a worker waits for another worker.
    """
    register()
    fabric = native.CclFabric(range(workers), timeout_s, shared=True)
    _fabrics.append(fabric)
    session.get_global_func(ENTER)(os.getpid(), fabric.descriptor, workers, groups)
    session._sync_all()


def main() -> None:
    """Run a worker process of Disco."""
    from tvm.exec import disco_worker

    register()
    disco_worker.main()


if __name__ == "__main__":
    main()
