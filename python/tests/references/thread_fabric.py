# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Implement the fabric of threads in plain Python, as the oracle of the native fabric."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from unittest.mock import patch

from tvm_distir.core.collectives import Collective, Transfer, apply
from tvm_distir.core.ir.operators import LOCAL_OPS
from tvm_distir.execution.runtime.collectives import ccl
from tvm_distir.execution.runtime.collectives.fabric import (
    Aborted,
    call_words,
    deadlock,
    ranks_text,
    too_late,
    unlike_calls,
)
from tvm_distir.execution.runtime.collectives.message_texts import MessageMeaning
from tvm_distir.execution.runtime.collectives.posted_collectives import PostedCollectives
from tvm_distir.execution.runtime.collectives.transfers import MessageKey
from tvm_distir.execution.runtime.engines.local_engine import RankTensors
from tvm_distir.execution.runtime.engines.threads import engine
from tvm_distir.execution.runtime.engines.threads.engine import ThreadsEngine
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.execution.runtime.program.tensors import Array


@dataclass
class _Rendezvous:
    arrived: dict[int, tuple[Collective, Array]] = field(default_factory=dict)
    results: dict[int, Array] | None = None


@dataclass(frozen=True)
class _Wait:
    what: str
    ready: Callable[[], bool]
    missing: Callable[[], list[int]]


@contextmanager
def substituted() -> Iterator[None]:
    """Let the ranks of the engine ``threads`` meet in a :class:`ReferenceFabric`."""
    with (
        patch.object(engine, "NativeFabric", ReferenceFabric),
        patch.object(ccl, "register", partial(ccl.register, messages=True)),
    ):
        yield


class ReferenceThreads(ThreadsEngine):
    """The engine ``threads`` whose ranks meet in a :class:`ReferenceFabric`."""

    def run_tensors(self, program: Runnable, tensors: RankTensors) -> RankTensors:
        """Run every rank's entry function on its tensors."""
        with substituted():
            return super().run_tensors(program, tensors)


class ReferenceFabric(PostedCollectives):
    """A fabric of the ranks of a run.

    Parameters
    ----------
    ranks : sequence of int
        Ranks that take part.
    timeout_s : float
        The time for which a rank waits for another rank that is busy computing.
    """

    def __init__(self, ranks: Sequence[int], timeout_s: float) -> None:
        super().__init__()
        self._steps = 0
        self._ranks = tuple(sorted(ranks))
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._rendezvous: dict[tuple[int, ...], _Rendezvous] = {}
        self._messages: dict[MessageKey, deque[tuple[MessageMeaning, Array]]] = {}
        self._waits: dict[int, _Wait] = {}
        self._done: set[int] = set()
        self.failure: tuple[int, BaseException] | None = None

    @contextmanager
    def worker(self, rank: int) -> Iterator[None]:
        """Enter a context in which the calling thread is the worker ``rank``."""
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

    def collective(self, rank: int, call: Collective, x: Array, into: Array | None = None) -> Array:
        """Meet the other ranks, the last of which applies the definition of the collective."""
        if call.name in LOCAL_OPS:
            return super().collective(rank, call, x, into)
        group = call.group_of(rank)
        with self._changed:
            self._check_failure()
            rendezvous = self._rendezvous.setdefault(group, _Rendezvous())
            rendezvous.arrived[rank] = (call, x)
            self._steps += 1
            last = len(rendezvous.arrived) == len(group)
            if last:
                del self._rendezvous[group]
            else:
                self._wait(
                    rank,
                    _Wait(
                        call.text(),
                        lambda: (
                            rendezvous.results is not None or len(rendezvous.arrived) == len(group)
                        ),
                        lambda: [r for r in group if r not in rendezvous.arrived],
                    ),
                    lambda: rendezvous.results is not None,
                )
        if last:
            self._complete(group, rendezvous)
        results = rendezvous.results or {}
        self._count(rank, call, results[rank])
        return results[rank]

    def _complete(self, group: tuple[int, ...], rendezvous: _Rendezvous) -> None:
        first, x = rendezvous.arrived[group[0]]
        for rank in group[1:]:
            call, y = rendezvous.arrived[rank]
            if (call, y.shape, y.dtype) != (first, x.shape, x.dtype):
                calls = (rank, call_words(call, y)), (group[0], call_words(first, x))
                raise unlike_calls(*calls, group)
        done = dict(zip(group, apply(first, [rendezvous.arrived[r][1] for r in group])))
        with self._changed:
            rendezvous.results = done
            self._changed.notify_all()

    def _post(self, route: MessageKey, message: tuple[MessageMeaning, Array]) -> list[object]:
        with self._changed:
            self._check_failure()
            self._messages.setdefault(route, deque()).append(message)
            self._steps += 1
            self._changed.notify_all()
        return []

    def _take(
        self, route: MessageKey, label: str, expected: tuple[Transfer, Array] | None = None
    ) -> tuple[MessageMeaning, Array]:
        with self._changed:
            self._check_failure()
            box = self._messages.setdefault(route, deque())
            if not box:
                here = _Wait(label, lambda: bool(box), lambda: [route[1]])
                self._wait(route[2], here, lambda: bool(box))
            return box.popleft()

    def progress(self) -> int:
        """Return a number that grows while ranks meet or post messages."""
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
                    missing = f"{wait.what} for {ranks_text(wait.missing())}"
                    problem = f"rank {rank} waited {self._timeout_s:g} s in {missing}"
                    raise too_late(problem, f"rank {rank}")
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
        pending = [
            f"rank {r} waits in {wait.what} for {ranks_text(wait.missing())}"
            for r, wait in sorted(self._waits.items())
        ]
        ended = [f"ended: {ranks_text(sorted(self._done))}"] if self._done else []
        self.failure = (rank, deadlock([*pending, *ended]))
        self._changed.notify_all()
