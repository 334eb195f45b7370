# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the fabric of a job, of MPI or of torch.distributed: its transport between processes.

What ranks do with it is stated once: collectives and transfers in
:mod:`tvm_distir.execution.runtime.collectives`, the agreement on a program and its inputs in
:mod:`.job_inputs`, the end of a run and its results in :mod:`.job_results`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_distir.core.collectives import Transfer
from tvm_distir.execution.runtime.collectives.array_operations import Operand
from tvm_distir.execution.runtime.collectives.message_texts import MessageMeaning
from tvm_distir.execution.runtime.collectives.posted_collectives import PostedCollectives
from tvm_distir.execution.runtime.collectives.transfers import MessageKey
from tvm_distir.execution.runtime.program.communication import Communication
from tvm_distir.execution.runtime.program.tensors import Array

if TYPE_CHECKING:
    import tvm


class JobFabric(PostedCollectives):
    """The ranks of a run in a job, of which this process is one.

    Parameters
    ----------
    ranks : sequence of int
        Device ids; the i-th smallest is process i.
    process : int
        The number of this process in the job.
    size : int
        The number of processes of the job.
    local_rank : int
        The number of this process among those of its host.

    Attributes
    ----------
    location : str
        The engine, for messages.
    device : tvm.runtime.Device or None
        The device of this process' tensors; None for the CPU.
    failure : (int, BaseException) or None
        The first rank that failed, as far as this process knows, and its error.
    """

    location: str
    device: tvm.runtime.Device | None = None

    def __init__(self, ranks: Sequence[int], process: int, size: int, local_rank: int) -> None:
        super().__init__()
        self.ranks = sorted(ranks)
        self.number, self.size, self.local_rank = process, size, local_rank
        self.failure: tuple[int, BaseException] | None = None
        self._processes = {rank: i for i, rank in enumerate(self.ranks)}
        self._kept: dict[MessageKey, deque[tuple[MessageMeaning, Array]]] = {}

    @property
    def rank(self) -> int | None:
        """Return the device id of this process; None for a surplus process."""
        return self.ranks[self.number] if self.number < len(self.ranks) else None

    def process(self, rank: int) -> int:
        """Return the process that is a rank."""
        return self._processes[rank]

    @contextmanager
    def worker(self, rank: int) -> Iterator[None]:
        """Enter a context in which the calling thread is the worker ``rank``."""
        yield

    def finish(self, rank: int) -> None:
        """Do nothing: the end of a run is agreed on by :meth:`exchange_texts`."""

    def _post(self, route: MessageKey, message: tuple[MessageMeaning, Array]) -> list[Any]:
        if route[1] == route[2]:
            self._kept.setdefault(route, deque()).append(message)
            return []
        return self._send(route, *message)

    def _take(
        self, route: MessageKey, label: str, expected: tuple[Transfer, Operand] | None = None
    ) -> tuple[MessageMeaning, Array]:
        if route[1] == route[2]:
            return self._kept[route].popleft()
        return self._receive(route, label, expected)

    # The transport -----------------------------------------------------------------------------

    @abstractmethod
    def fail(self, rank: int, error: BaseException) -> None:
        """Record the first failure."""

    @abstractmethod
    def _send(self, route: MessageKey, meaning: MessageMeaning, part: Operand) -> list[Any]:
        """Send an array and its meaning to another rank; does not wait."""

    @abstractmethod
    def _receive(
        self, route: MessageKey, label: str, expected: tuple[Transfer, Operand] | None
    ) -> tuple[MessageMeaning, Array]:
        """Wait for the next array of another rank; returns its meaning and the array."""

    @abstractmethod
    def exchange_texts(self, text: bytes, describe: Callable[[list[int]], str]) -> list[bytes]:
        """Exchange a few bytes with all processes; returns those of each."""

    @abstractmethod
    def send_array(self, process: int, array: Array) -> None:
        """Send an array to a process; does not wait."""

    @abstractmethod
    def receive_array(
        self, process: int, shape: tuple[int, ...], dtype: np.dtype[np.generic], label: str
    ) -> Array:
        """Wait for the next array of a process."""

    def share(
        self, rank: int, array: Array | None, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Array:
        """Return a rank's array on every process; only that rank gives it."""
        if array is None:
            return self.receive_array(self.process(rank), shape, dtype, f"output of rank {rank}")
        for other in range(self.size):
            if other != self.number:
                self.send_array(other, array)
        return array

    # The steps of a run that need it -------------------------------------------------------------

    def prepare(self, communication: Communication) -> None:
        """Make what all processes must make together, once they have agreed on the program."""

    def finish_call(self, location: str) -> None:
        """Wait for what a call of an entry function has left in flight."""

    def end(self) -> None:
        """Note that this process takes part in no other step."""
