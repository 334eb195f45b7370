# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Native collectives between the threads of one process (``passes/ccl.cc``, ``fabric.cc``)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .loader import load_library

NATIVE_KINDS: tuple[str, ...] = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "collective_permute",
    "local_slice",
    "partial",
    "axis_index",
)
"""Collectives the library has, in the order of its enum ``Kind``."""


@dataclass(frozen=True)
class Executed:
    """Executions of one collective over one list of groups by one rank.

    Attributes
    ----------
    kind : str
        One of :data:`NATIVE_KINDS`.
    groups : tuple of tuple of int
    result_bytes : int
        Of one execution, on this rank.
    count : int
    """

    kind: str
    groups: tuple[tuple[int, ...], ...]
    result_bytes: int
    count: int


def collective(kind: str) -> Any:
    """Packed function of a kind; signatures as in :mod:`tvm_distir.runtime.ccl`.

    It raises DIST0605 on a thread that is no worker of a :class:`NativeFabric`.
    """
    return load_library()[f"ccl_{kind}"]


class NativeFabric:
    """Meeting place of the ranks of one run, in the library.

    Parameters
    ----------
    ranks : sequence of int
        Ranks that take part.
    timeout_s : float
        How long a rank waits for another one that is busy.
    """

    def __init__(self, ranks: Sequence[int], timeout_s: float) -> None:
        import tvm_ffi

        self._library = load_library()
        shape = tvm_ffi.Shape([int(r) for r in ranks])
        self._handle = int(self._library["ccl_make_fabric"](shape, float(timeout_s)))
        self._closer = weakref.finalize(self, self._library["ccl_drop_fabric"], self._handle)

    def _call(self, name: str, *args: Any) -> Any:
        return self._library[f"ccl_{name}"](self._handle, *args)

    @contextmanager
    def worker(self, rank: int) -> Iterator[None]:
        """Make the calling thread the worker ``rank``."""
        self._call("enter", rank)
        try:
            yield
        finally:
            self._library["ccl_leave"]()

    def fail(self, rank: int, message: str) -> int:
        """Record a failure unless there is one; wakes all. Returns the rank that failed first."""
        return int(self._call("fail", rank, message))

    def failure(self) -> tuple[int, str] | None:
        """Rank and message of the first failure."""
        rank, message = self._call("failure")
        return None if int(rank) < 0 else (int(rank), str(message))

    def finish(self, rank: int) -> None:
        """Record that a rank has run to its end."""
        self._call("finish", rank)

    def post(self, tag: int, source: int, destination: int) -> None:
        """Count one letter from a rank to another."""
        self._call("post", tag, source, destination)

    def take(self, tag: int, source: int, destination: int, what: str) -> None:
        """Wait for the next letter; fails as a collective does."""
        self._call("take", tag, source, destination, what)

    def executed(self, rank: int) -> list[Executed]:
        """What a rank executed, known once its worker has ended."""
        rows = []
        for kind, ranks, size, result_bytes, count in self._call("counts", rank):
            flat, step = [int(r) for r in ranks], int(size)
            groups = tuple(tuple(flat[i : i + step]) for i in range(0, len(flat), step))
            rows.append(Executed(NATIVE_KINDS[int(kind)], groups, int(result_bytes), int(count)))
        return rows
