# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of one run meet: rendezvous for collectives, mail for transfers.

One fabric serves one run. A rank that waits is recorded with what it waits for, so that the
fabric sees at once when nobody can go on; a failure of one rank ends the waiting of all.

:class:`NativeFabric` meets in the native library, :class:`Fabric` is the same in plain Python, its
oracle.
"""

from __future__ import annotations

import pickle
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tvm_ffi

from ..errors import DistIRError, RuntimeError_
from ..ir.placement import local_shape
from ..native import ccl as native
from .collectives import LOCAL, Collective, apply, apply_local, counted_bytes
from .tiles import Transfer

Array = npt.NDArray[Any]
Route = tuple[int, int, int]
"""Tag, source rank, destination rank."""
EXCHANGE_TAG = -1
"""Tag of all exchanges: their letters on one route arrive in the order they were sent."""


class Meetings(Protocol):
    """What the engine and the packed functions need of a fabric."""

    @property
    def failure(self) -> tuple[int, BaseException] | None:
        """The first rank that failed, and its error."""
        ...

    def worker(self, rank: int) -> Any:
        """Context in which the calling thread is the worker ``rank``."""
        ...

    def fail(self, rank: int, error: BaseException) -> None:
        """Record the first failure and wake every waiting rank."""
        ...

    def finish(self, rank: int) -> None:
        """Record that a rank has run to its end."""
        ...

    def send(self, rank: int, transfer: Transfer, x: Array) -> None:
        """Post the tiles this rank owes; does not wait."""
        ...

    def receive(self, rank: int, transfer: Transfer, dtype: np.dtype[Any]) -> Array:
        """Wait for the tiles of a transfer and return this rank's part."""
        ...

    def exchange(self, rank: int, call: Collective, x: Array) -> Array:
        """Give and take the tiles of an exchange; returns this rank's part."""
        ...

    def executed(self, rank: int) -> list[native.Executed]:
        """Collectives a rank executed, known once it has ended."""
        ...

    def received(self, rank: int) -> list[tuple[Transfer, int]]:
        """Transfers a rank received, each with the bytes of one element."""
        ...


class Watched(Meetings, Protocol):
    """A fabric that a controller can watch while its ranks run elsewhere."""

    def progress(self) -> int:
        """Return a number that grows while ranks meet or post letters."""
        ...


class Aborted(Exception):
    """Ends a rank because another one failed; never reaches the user."""


@dataclass
class _Meeting:
    arrived: dict[int, tuple[Collective, Array]] = field(default_factory=dict)
    results: dict[int, Array] | None = None


@dataclass(frozen=True)
class _Wait:
    what: str
    ready: Callable[[], bool]
    missing: Callable[[], list[int]]


def _words(call: Collective, x: Array) -> str:
    return f"{call.text()} on {x.nbytes} bytes ({x.dtype}{list(x.shape)})"


class _Mail(ABC):
    """Transfers between meshes, tile by tile, over letters that a subclass carries."""

    def __init__(self) -> None:
        self._received: dict[int, list[tuple[Transfer, int]]] = {}
        self._exchanged: dict[int, list[native.Executed]] = {}

    @abstractmethod
    def _post(self, route: Route, letter: tuple[Transfer, Array]) -> None: ...

    @abstractmethod
    def _take(self, route: Route, what: str) -> tuple[Transfer, Array]: ...

    def send(self, rank: int, transfer: Transfer, x: Array) -> None:
        """Post the tiles this rank owes; does not wait."""
        for tile in transfer.tiles():
            if tile.src == rank:
                part = x[tile.src_slices()].copy()
                self._post((transfer.tag, rank, tile.dst), (transfer, part))

    def receive(self, rank: int, transfer: Transfer, dtype: np.dtype[Any]) -> Array:
        """Wait for the tiles of a transfer and return this rank's (zero-padded) part.

        Raises
        ------
        RuntimeError_
            DIST0611 when the sender meant another transfer or type, else as ``collective``.
        """
        out = self._collected(rank, transfer, dtype)
        self._received.setdefault(rank, []).append((transfer, dtype.itemsize))
        return out

    def _collected(self, rank: int, transfer: Transfer, dtype: np.dtype[Any]) -> Array:
        size = [int(n) for n in local_shape(transfer.shape, transfer.dst[2], transfer.dst[0])]
        out = np.zeros(size, dtype)
        for tile in transfer.tiles():
            if tile.dst != rank:
                continue
            route = (transfer.tag, tile.src, rank)
            promised, part = self._take(route, f"receive of {transfer.text()}")
            if promised != transfer or part.dtype != dtype:
                raise RuntimeError_(
                    "DIST0611",
                    f"rank {rank} expects {transfer.text()} of {dtype}{list(transfer.shape)}, "
                    f"rank {tile.src} sent {part.dtype}{list(promised.shape)}",
                    remedy="Give every transfer its own tag, and both ends the same shape.",
                )
            out[tile.dst_slices()] = part
        return out

    def received(self, rank: int) -> list[tuple[Transfer, int]]:
        """Transfers a rank received, each with the bytes of one element."""
        return self._received.get(rank, [])

    def exchange(self, rank: int, call: Collective, x: Array) -> Array:
        """Post the tiles that others lack, take those that this rank lacks.

        Raises
        ------
        RuntimeError_
            As :meth:`receive`.
        """
        group, args = call.group_of(rank), dict(call.args)
        (shape, _, before), (_, _, after) = args["src"], args["dst"]
        transfer = Transfer(
            EXCHANGE_TAG, args["shape"], (shape, group, before), (shape, group, after)
        )
        self.send(rank, transfer, x)
        out = self._collected(rank, transfer, x.dtype)
        size = counted_bytes(call, out)
        done = native.Executed(call.name, call.groups, size, 1)
        self._exchanged.setdefault(rank, []).append(done)
        return out


class WorkerError(Exception):
    """A failure of another process, by its text: ``ValueError: boom``."""


def failure_text(error: BaseException) -> str:
    """Name an error in one line: its own code and text, or its class and its text's last line."""
    if isinstance(error, DistIRError | WorkerError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"


class NativeFabric(_Mail):
    """Meeting place of the ranks of one run, in the native library.

    Parameters
    ----------
    ranks : sequence of int
        Ranks that take part.
    timeout_s : float
        How long a rank waits for another one that is busy computing.
    shared : bool
        Whether other processes can take part, by :meth:`open` of its ``native.descriptor``.
    """

    def __init__(self, ranks: Sequence[int], timeout_s: float, shared: bool = False) -> None:
        self._begin(native.NativeFabric(sorted(ranks), timeout_s, shared))

    @classmethod
    def open(cls, descriptor: int) -> NativeFabric:
        """Open the fabric of another process."""
        fabric = cls.__new__(cls)
        fabric._begin(native.NativeFabric.open(descriptor))
        return fabric

    def _begin(self, made: native.NativeFabric) -> None:
        super().__init__()
        self.native = made
        self._lock = threading.Lock()
        self._errors: dict[int, BaseException] = {}

    @property
    def failure(self) -> tuple[int, BaseException] | None:
        """The first rank that failed (-1: none of them), and its error."""
        first = self.native.failure()
        if first is None:
            return None
        rank, message = first
        if rank in self._errors:
            return rank, self._errors[rank]
        told = RuntimeError_(message) if message.startswith("DIST") else WorkerError(message)
        return rank, told

    def worker(self, rank: int) -> Any:
        """Context in which the calling thread is the worker ``rank``."""
        return self.native.worker(rank)

    def fail(self, rank: int, error: BaseException) -> None:
        """Record the first failure and wake every waiting rank."""
        with self._lock:
            self._errors.setdefault(rank, error)
        self.native.fail(rank, failure_text(error))

    def finish(self, rank: int) -> None:
        """Record that a rank has run to its end."""
        self.native.finish(rank)

    def _post(self, route: Route, letter: tuple[Transfer, Array]) -> None:
        transfer, part = letter
        flat = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
        label = pickle.dumps((transfer, part.shape, part.dtype))
        native.send(tvm_ffi.from_dlpack(flat), route[0], route[2], label)

    def _take(self, route: Route, what: str) -> tuple[Transfer, Array]:
        tag, source, _ = route
        label, size_bytes = native.await_letter(tag, source, what)
        transfer, shape, dtype = pickle.loads(label)
        flat = np.empty(size_bytes, np.uint8)
        native.take_letter(tag, source, tvm_ffi.from_dlpack(flat))
        return transfer, flat.view(dtype).reshape(shape)

    def executed(self, rank: int) -> list[native.Executed]:
        """Collectives a rank executed, known once it has ended."""
        return [*self.native.executed(rank), *self._exchanged.get(rank, [])]

    def progress(self) -> int:
        """Return a number that grows while ranks meet or post letters."""
        return self.native.progress()


class Fabric(_Mail):
    """Meeting place of the ranks of one run.

    Parameters
    ----------
    ranks : sequence of int
        Ranks that take part.
    timeout_s : float
        How long a rank waits for another one that is busy computing.
    """

    def __init__(self, ranks: Sequence[int], timeout_s: float) -> None:
        super().__init__()
        self._executed: dict[int, list[native.Executed]] = {}
        self._steps = 0
        self._ranks = tuple(sorted(ranks))
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._meetings: dict[tuple[int, ...], _Meeting] = {}
        self._mail: dict[Route, deque[tuple[Transfer, Array]]] = {}
        self._waits: dict[int, _Wait] = {}
        self._done: set[int] = set()
        self.failure: tuple[int, BaseException] | None = None

    @contextmanager
    def worker(self, rank: int) -> Iterator[None]:
        """Context in which the calling thread is the worker ``rank``."""
        yield

    def fail(self, rank: int, error: BaseException) -> None:
        """Record the first failure and wake every waiting rank."""
        with self._changed:
            if self.failure is None and not isinstance(error, Aborted):
                self.failure = (rank, error)
            self._changed.notify_all()

    def finish(self, rank: int) -> None:
        """Record that a rank has run to its end."""
        with self._changed:
            self._done.add(rank)
            self._check_standstill(rank)
            self._changed.notify_all()

    def collective(self, rank: int, call: Collective, x: Array | None) -> Array:
        """Take part in a collective; returns this rank's result.

        Raises
        ------
        RuntimeError_
            DIST0611 when the ranks of the group called different collectives, DIST0610 when
            nobody can go on, DIST0613 after the timeout.
        """
        group = call.group_of(rank)
        if call.name in LOCAL:
            return apply_local(call, x, group.index(rank), len(group))
        if x is None:
            raise RuntimeError_("DIST0611", f"{call.text()} has no operand", remedy="Give one.")
        with self._changed:
            self._check_failure()
            meeting = self._meetings.setdefault(group, _Meeting())
            meeting.arrived[rank] = (call, x)
            self._steps += 1
            last = len(meeting.arrived) == len(group)
            if last:
                del self._meetings[group]
            else:
                self._wait(
                    rank,
                    _Wait(
                        call.text(),
                        lambda: meeting.results is not None or len(meeting.arrived) == len(group),
                        lambda: [r for r in group if r not in meeting.arrived],
                    ),
                    lambda: meeting.results is not None,
                )
        if last:
            self._complete(group, meeting)
        results = meeting.results or {}
        done = native.Executed(call.name, call.groups, results[rank].nbytes, 1)
        self._executed.setdefault(rank, []).append(done)
        return results[rank]

    def _complete(self, group: tuple[int, ...], meeting: _Meeting) -> None:
        first, x = meeting.arrived[group[0]]
        for rank in group[1:]:
            call, y = meeting.arrived[rank]
            if (call, y.shape, y.dtype) != (first, x.shape, x.dtype):
                raise RuntimeError_(
                    "DIST0611",
                    f"rank {rank} called {_words(call, y)} while rank {group[0]} called "
                    f"{_words(first, x)}",
                    place=f"group {list(group)}",
                    remedy="All ranks of a group must call the same collectives in one order.",
                )
        done = dict(zip(group, apply(first, [meeting.arrived[r][1] for r in group])))
        with self._changed:
            meeting.results = done
            self._changed.notify_all()

    def _post(self, route: Route, letter: tuple[Transfer, Array]) -> None:
        with self._changed:
            self._check_failure()
            self._mail.setdefault(route, deque()).append(letter)
            self._steps += 1
            self._changed.notify_all()

    def _take(self, route: Route, what: str) -> tuple[Transfer, Array]:
        with self._changed:
            self._check_failure()
            box = self._mail.setdefault(route, deque())
            if not box:
                here = _Wait(what, lambda: bool(box), lambda: [route[1]])
                self._wait(route[2], here, lambda: bool(box))
            return box.popleft()

    def executed(self, rank: int) -> list[native.Executed]:
        """Collectives a rank executed, one by one."""
        return [*self._executed.get(rank, []), *self._exchanged.get(rank, [])]

    def progress(self) -> int:
        """Return a number that grows while ranks meet or post letters."""
        return self._steps

    def _check_failure(self) -> None:
        if self.failure is not None:
            raise Aborted

    def _wait(self, rank: int, wait: _Wait, over: Callable[[], bool]) -> None:
        """Wait (the lock held) until ``over()``."""
        self._waits[rank] = wait
        deadline = time.monotonic() + self._timeout_s
        try:
            self._check_standstill(rank)
            while not over():
                self._check_failure()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise RuntimeError_(
                        "DIST0613",
                        f"rank {rank} waited {self._timeout_s:g} s in {wait.what} for "
                        f"{ranks_text(wait.missing())}",
                        place=f"rank {rank}",
                        remedy="Raise the engine's timeout_s if it is only slow.",
                    )
                self._changed.wait(left)
        finally:
            self._waits.pop(rank, None)

    def _check_standstill(self, rank: int) -> None:
        """Raise DIST0610 when every rank has ended or waits in vain (the lock held)."""
        if self.failure is not None or not self._waits:
            return
        if len(self._done) + len(self._waits) < len(self._ranks):
            return
        if any(wait.ready() for wait in self._waits.values()):
            return
        held = [
            f"rank {r} waits in {wait.what} for {ranks_text(wait.missing())}"
            for r, wait in sorted(self._waits.items())
        ]
        ended = f"; ended: {ranks_text(sorted(self._done))}" if self._done else ""
        error = RuntimeError_(
            "DIST0610",
            "; ".join(held) + ended,
            place="ranks",
            remedy="Every rank of a group must call its collectives, each send needs a receive.",
        )
        self.failure = (rank, error)
        self._changed.notify_all()


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 1`` or ``ranks 1, 2``."""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
