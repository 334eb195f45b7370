# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Call the native collectives between threads or processes (``passes/ccl/``)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm_distir.core.ir.operators import COLLECTIVES, LOCAL_OPS
from tvm_distir.support import DistIRError, load_library

if TYPE_CHECKING:
    import tvm_ffi

NATIVE_KINDS = (*(kind for kind in COLLECTIVES if kind != "exchange"), *LOCAL_OPS)
"""Collectives the library has, in the order of its enum ``Kind``."""


_FAULT = ("class", "code", "location", "what", "remedy")
"""The fields of ``Fault`` (``passes/ffi/refuse.h``), in its order."""


@dataclass(frozen=True)
class Executed:
    """A rank's executions of a collective over a list of groups.

    Attributes
    ----------
    kind : str
        The kind, from :data:`NATIVE_KINDS`.
    groups : tuple of tuple of int
    result_bytes : int
        The bytes of the result of an execution, on this rank.
    count : int
    """

    kind: str
    groups: tuple[tuple[int, ...], ...]
    result_bytes: int
    count: int


def collective(kind: str) -> tvm_ffi.Function:
    """Return the packed function of a kind; signatures as in :mod:`~.collectives.ccl`.

    It raises DIST0605 on a thread that is no worker of a :class:`CclFabric`.
    """
    return load_library()[f"ccl_{kind}"]


def send(x: tvm_ffi.Tensor, tag: int, destination: int, label: bytes) -> None:
    """Post a message from the calling worker; does not wait.

    Parameters
    ----------
    x : tensor
        Contiguous; its bytes are copied.
    tag, destination : int
    label : bytes
        The label of the message.
    """
    load_library()["ccl_send"](x, tag, destination, label)


def await_message(tag: int, source: int, message_label: str) -> tuple[bytes, int]:
    """Wait for a sender's next message; returns its label and the bytes of its data.

    Raises
    ------
    EngineError
        As a collective, with ``message_label`` for what the rank waits in.
    """
    label, size_bytes = load_library()["ccl_await"](tag, source, message_label)
    return bytes(label), int(size_bytes)


def take_message(tag: int, source: int, out: tvm_ffi.Tensor) -> None:
    """Take the message that was awaited; ``out`` has as many bytes as its data."""
    load_library()["ccl_recv"](tag, source, out)


class CclFabric:
    """A fabric of the ranks of a run, in the library.

    Parameters
    ----------
    ranks : sequence of int
        Ranks that take part.
    timeout_s : float
        The time for which a rank waits for another rank that is busy.
    """

    def __init__(self, ranks: Sequence[int], timeout_s: float) -> None:
        import tvm_ffi

        shape = tvm_ffi.Shape([int(r) for r in ranks])
        self._keep(load_library()["ccl_make_fabric"](shape, float(timeout_s), False))

    def _keep(self, handle: int) -> None:
        self._library = load_library()
        self._handle = int(handle)
        self._closer = weakref.finalize(self, self._library["ccl_drop_fabric"], self._handle)

    def _call(self, name: str, *args: object) -> Any:
        return self._library[f"ccl_{name}"](self._handle, *args)

    @contextmanager
    def worker(self, rank: int) -> Iterator[None]:
        """Make the calling thread the worker ``rank``."""
        self.enter(rank)
        try:
            yield
        finally:
            self._library["ccl_leave"]()

    def enter(self, rank: int) -> None:
        """Make the calling thread the worker ``rank`` until it ends or enters another fabric."""
        self._call("enter", rank)

    def fail(self, rank: int, error: DistIRError | str) -> int:
        """Record the first failure and wake all ranks. Returns the rank that failed first.

        Parameters
        ----------
        rank : int
            -1 when it was none of the ranks.
        error : DistIRError or str
            An error of ours, of which other processes learn the fields, or what to say of another.
        """
        if isinstance(error, str):
            return int(self._call("fail", rank, "", "", "", error, ""))
        fields = error.to_dict()
        return int(self._call("fail", rank, *(fields[key] for key in _FAULT)))

    def failure(self) -> tuple[int, DistIRError | str] | None:
        """Return the rank and error of the first failure, as :meth:`fail` was given them."""
        result = list(self._call("failure"))
        if not result:
            return None
        fields = dict(zip(_FAULT, map(str, result[1:])))
        cause = DistIRError.from_dict(fields) if fields["code"] else fields["what"]
        return int(result[0]), cause

    def finish(self, rank: int) -> None:
        """Record that a rank has run to its end."""
        self._call("finish", rank)

    def progress(self) -> int:
        """Return a number that grows while ranks come to a rendezvous or post messages."""
        return int(self._call("progress"))

    def executed(self, rank: int) -> list[Executed]:
        """Return the executions of a rank, which are known once its worker has ended."""
        rows = []
        for kind, ranks, size, result_bytes, count in self._call("counts", rank):
            flat, step = [int(r) for r in ranks], int(size)
            groups = tuple(tuple(flat[i : i + step]) for i in range(0, len(flat), step))
            rows.append(Executed(NATIVE_KINDS[int(kind)], groups, int(result_bytes), int(count)))
        return rows
