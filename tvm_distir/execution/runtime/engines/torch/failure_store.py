# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Record the first failure of a run in the store of its job, where every process reads it.

gloo and NCCL know neither the errors of this package nor which rank is to blame: a process whose
peer has ended sees a closed connection, and one whose peer does not come sees a timeout. So a rank
that fails writes its error to the store, and a process that lost its peers asks all processes for
their state before it judges.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tvm_distir.execution.runtime.collectives.fabric import (
    Aborted,
    deadlock,
    ranks_text,
    too_late,
    worker_failed,
)
from tvm_distir.execution.runtime.collectives.message_texts import error_text, read_error
from tvm_distir.execution.runtime.engines.termination import GRACE_S
from tvm_distir.support import DistIRError, EngineError

if TYPE_CHECKING:
    import torch

_LOOK_S = 0.1
_ANSWER_S = 0.2
SECRET_VARIABLE = "TVM_DISTIR_JOB_SECRET"
"""The environment variable with the secret that the processes of a job share; each failure carries
a code made with it, so that what another program writes into the store is not believed."""

COMPUTES = "computes"
"""The state of a process that waits for no other one."""

ENDED = "has ended"
"""The state of a process that has run to its end."""

ENDED_S = 0.5
"""The time after which a message of a rank that has ended is not in flight any more."""


class LostPeers(Exception):
    """A wait that did not end: a connection was closed, or the time is over.

    Parameters
    ----------
    describe : callable
        Words for what is waited for, from the ranks that are missing.
    processes : sequence of int
        The processes that take part in it.
    waited_s : float, optional
        The timeout, where it is over.
    detail : str
        The message of the library.
    """

    def __init__(
        self,
        describe: Callable[[list[int]], str],
        processes: Sequence[int],
        waited_s: float | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(detail or f"waited {waited_s} s")
        self.what = describe
        self.processes = tuple(processes)
        self.waited_s = waited_s
        self.detail = detail


class FailureStore:
    """The failures and states of the processes of a run, in a store that all of them reach.

    Parameters
    ----------
    store : torch.distributed.Store
        A view of the job's store with a prefix of the run.
    process : int
    ranks : sequence of int
        The device ids; the i-th is process i.
    location : str
        The place of this process, for messages.
    timeout_s : float
        The time after which the store counts as unreachable. torch itself would wait for minutes
        where the network to its host is down.
    run : str
        The name of the run in the job, so that no failure counts for another run.
    """

    def __init__(
        self,
        store: torch.distributed.Store,
        process: int,
        ranks: Sequence[int],
        location: str,
        timeout_s: float,
        run: str = "",
    ) -> None:
        self._store, self._run = store, run
        self._secret = os.environ.get(SECRET_VARIABLE, "").encode()
        self._timeout_s = timeout_s
        self._is_lost = False
        self._process = process
        self._ranks = list(ranks)
        self._location = location
        self._closed = threading.Event()
        self.state = COMPUTES
        self._answering = threading.Thread(target=self._answer, name="job failures", daemon=True)
        self._answering.start()

    @property
    def rank(self) -> int:
        """Return the device id of this process, or its number where it is a surplus process."""
        return self._named(self._process)

    def _named(self, process: int) -> int:
        return self._ranks[process] if process < len(self._ranks) else process

    def close(self) -> None:
        """End the thread that answers other processes."""
        self._closed.set()
        self._answering.join(2 * _ANSWER_S)

    def _reached(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call of the store; DIST0615 where its host does not answer."""
        results: list[Any] = []

        def run() -> None:
            with contextlib.suppress(RuntimeError):
                results.append(call())

        if not self._is_lost:
            caller = threading.Thread(target=run, name="job store", daemon=True)
            caller.start()
            caller.join(self._timeout_s)
        if not results:
            self._is_lost = True
            raise EngineError(
                "DIST0615",
                f"rank {self.rank} cannot reach the job's store: the process that holds it ended, "
                "or its host cannot be reached",
                location=self._location,
                remedy="Check process 0 and its host, or the launcher.",
            )
        return results[0]

    # Failures -------------------------------------------------------------------------------

    def report(self, error: BaseException) -> BaseException:
        """Write a failure unless there is one already; returns the first failure."""
        if not isinstance(error, DistIRError | KeyboardInterrupt | SystemExit):
            error = worker_failed(error, self.rank, self._location)
        text = self._signed(error_text(error))
        try:
            first = self._reached(lambda: self._store.compare_set("failure", "", text))
            if self._content(first) is None:  # by another program: the failure replaces it
                self._reached(lambda: self._store.set("failure", text))
        except EngineError:
            return error
        return read_error(self._content(first) or error_text(error))

    def reported(self) -> BaseException | None:
        """Return the first failure of any process; what another program wrote is none."""
        if not self._reached(lambda: self._store.check(["failure"])):
            return None
        text = self._content(self._reached(lambda: self._store.get("failure")))
        return None if text is None else read_error(text)

    def check(self) -> None:
        """Raise :class:`Aborted` when a process has failed."""
        if self.reported() is not None:
            raise Aborted

    def _signed(self, text: str) -> str:
        """Return a text behind its message authentication code."""
        code = hmac.new(self._secret, f"{self._run}{text}".encode(), hashlib.sha256)
        return code.hexdigest() + text

    def _content(self, signed: bytes) -> str | None:
        """Return the text of :meth:`_signed`; None for what was written without the secret."""
        text = signed[2 * hashlib.sha256().digest_size :].decode(errors="replace")
        expected = self._signed(text).encode()
        return text if hmac.compare_digest(expected, bytes(signed)) else None

    def swap_texts(self, key: str, text: str, other: str) -> str:
        """Write a text under a key, and return that of another key once it is there."""
        self._reached(lambda: self._store.set(f"text/{key}", text))
        latest_s = time.monotonic() + 2 * GRACE_S
        while time.monotonic() < latest_s:
            self.check()
            if self._reached(lambda: self._has(f"text/{other}")):
                return str(self._reached(lambda: self._store.get(f"text/{other}")).decode())
            time.sleep(_LOOK_S / 10)
        return "another collective"

    # States ---------------------------------------------------------------------------------

    def end(self) -> None:
        """Record that this process has run to its end."""
        self.state = ENDED
        self._reached(lambda: self._store.set(f"ended/{self._process}", "1"))

    def ended(self, processes: Iterable[int]) -> list[int]:
        """Return the processes that have run to their ends."""
        return [p for p in processes if self._reached(lambda p=p: self._has(f"ended/{p}"))]  # type: ignore[misc]

    def _has(self, key: str) -> bool:
        return bool(self._store.check([key]))

    def _answer(self) -> None:
        """Write the state of this process once another one asks for it."""
        try:
            while not self._closed.wait(_ANSWER_S):
                if self._has("alarm"):
                    self._store.set(f"state/{self._process}", self.state)
                    return
        except RuntimeError:
            return  # the store has gone: the waits of this process notice it

    def first_cause(self, error: BaseException) -> BaseException:
        """Return the first failure of the run, of which ``error`` is what this process saw."""
        if isinstance(error, Aborted | LostPeers):
            try:
                return self.reported() or self.report(self._judged(error))
            except EngineError as gone:
                return gone
        return self.report(error)

    def _judged(self, lost: BaseException) -> BaseException:
        """Return the cause of a lost connection or a timeout, after asking all processes."""
        if not isinstance(lost, LostPeers):
            return lost
        mine = lost.what([])
        self._reached(lambda: self._store.set("alarm", "1"))
        self._reached(lambda: self._store.set(f"state/{self._process}", f"waits in {mine}"))
        latest_s = time.monotonic() + GRACE_S
        while time.monotonic() < latest_s:
            failure = self.reported()
            if failure is not None:
                return failure
            time.sleep(_LOOK_S)
        everyone = sorted({*lost.processes, *range(len(self._ranks))})
        states = {
            p: self._reached(lambda p=p: self._store.get(f"state/{p}")).decode()  # type: ignore[misc]
            for p in everyone
            if self._reached(lambda p=p: self._has(f"state/{p}"))  # type: ignore[misc]
        }
        silent = [self._named(p) for p in lost.processes if p not in states]
        if lost.waited_s is None:
            return self._disconnected(lost, silent)
        late = [self._named(p) for p in everyone if states.get(p, COMPUTES) == COMPUTES]
        if not late:
            return self.deadlock(states)
        missing = [r for r in late if r in map(self._named, lost.processes)]
        # Where its own peers wait as well, the rank that they all wait for is in another group.
        words = lost.what(missing) if missing else f"{mine}, which waits for {ranks_text(late)}"
        problem = f"rank {self.rank} waited {lost.waited_s:g} s in {words}"
        return too_late(problem, ranks_text((missing or late)[:1]))

    def _disconnected(self, lost: LostPeers, silent: list[int]) -> BaseException:
        if not silent:
            return worker_failed(RuntimeError(lost.detail), self.rank, self._location)
        return EngineError(
            "DIST0615",
            f"worker {silent[0]}: its process ended, or its host cannot be reached; rank "
            f"{self.rank} was in {lost.what(silent)}",
            location=self._location,
            remedy="Check the output of that process, and the system's log of its host.",
        )

    def deadlock(self, states: dict[int, str]) -> EngineError:
        """Return the error DIST0610 for processes of which each waits or has ended."""
        return deadlock([f"rank {self._named(p)} {state}" for p, state in sorted(states.items())])
