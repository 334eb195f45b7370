# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the fabric of a run's ranks: a rendezvous for collectives, messages for transfers.

There is a fabric per run. A waiting rank is recorded with the event that it waits for, so that the
fabric detects a deadlock at once; a failure of a rank ends the waiting of all.

This module has the common parts of all fabrics. :class:`.native_fabric.NativeFabric`, between
threads, uses the native library; :class:`.job_fabric.JobFabric` exchanges messages between
processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from tvm_distir.core.collectives import Collective, Transfer
from tvm_distir.support import DistIRError, EngineError

from . import native_library as native
from .array_operations import Operand


class Fabric(Protocol):
    """The interface of fabrics for engines and packed functions."""

    most_in_flight: int

    @property
    def failure(self) -> tuple[int, BaseException] | None:
        """Return the first rank that failed, and its error."""

    def worker(self, rank: int) -> AbstractContextManager[None]:
        """Return the context in which the calling thread is the worker ``rank``."""

    def fail(self, rank: int, error: BaseException) -> None:
        """Record the first failure and wake every waiting rank."""

    def finish(self, rank: int) -> None:
        """Record that a rank has run to its end."""

    def executed(self, rank: int) -> list[native.Executed]:
        """Return collectives a rank executed, known once it has ended."""

    def received(self, rank: int) -> list[tuple[Transfer, int]]:
        """Return transfers a rank received, each with the bytes of an element."""


class Aborted(Exception):
    """The exception that ends a rank after another rank's failure; it never reaches the user."""


class WorkerError(Exception):
    """A failure of another process, by its text: ``ValueError: boom``."""


def failure_text(error: BaseException) -> str:
    """Describe an error in a line: its code and text, or its class and its text's last line."""
    if isinstance(error, DistIRError | WorkerError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"


def worker_failed(
    error: BaseException,
    rank: int,
    location: str,
    remedy: str = "Run with the engine virtual, which names the binding.",
) -> EngineError:
    """Return the error DIST0612 with the last line of a worker's exception."""
    what = f"worker {rank}: {failure_text(error)}"
    return EngineError("DIST0612", what, location=location, remedy=remedy)


def call_words(call: Collective, x: Operand) -> str:
    """Return a collective in words, with the bytes and the type of its operand."""
    dtype = str(x.dtype).removeprefix("torch.")
    return f"{call.text()} on {x.nbytes} bytes ({dtype}{list(x.shape)})"


def unlike_calls(
    first: tuple[int, str], second: tuple[int, str], group: Sequence[int]
) -> EngineError:
    """Return the failure (DIST0611) of two ranks of a group, given with what they called."""
    problem = f"rank {first[0]} called {first[1]} while rank {second[0]} called {second[1]}"
    remedy = "Make all ranks of a group call the same collectives in the same order."
    return EngineError("DIST0611", problem, location=f"group {list(group)}", remedy=remedy)


def deadlock(waits: Sequence[str]) -> EngineError:
    """Return the failure (DIST0610) of ranks that wait for each other, given what each does."""
    remedy = "Make every rank of a group call its collectives, and give each send a receive."
    return EngineError("DIST0610", "; ".join(waits), location="ranks", remedy=remedy)


def too_late(problem: str, location: str) -> EngineError:
    """Return the failure (DIST0613) of ranks that did not reach a point within the timeout."""
    remedy = "Raise the engine's timeout_s if it is only slow."
    return EngineError("DIST0613", problem, location=location, remedy=remedy)


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ``rank 1`` or ``ranks 1, 2``."""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
