# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run started collectives on a thread beside each rank, which meets the others in a second fabric.

The ranks of a group start the same collectives in the same order, so each thread runs those of its
rank one after the other. They meet in a separate native fabric, because a rank waits in a fabric
for one event only. Its results have the bits of a blocking call, since it is the same function.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from . import native_library as native


class ProgressThread:
    """The thread of a rank that runs its started collectives.

    Parameters
    ----------
    fabric : CclFabric
        The fabric in which the threads of all ranks meet.
    rank : int

    Attributes
    ----------
    most_in_flight : int
        The most collectives that were started and not completed at once.
    """

    def __init__(self, fabric: native.CclFabric, rank: int) -> None:
        self._executor = ThreadPoolExecutor(1, f"progress of rank {rank}")
        self._worker = fabric.worker(rank)
        self._executor.submit(self._worker.__enter__)
        self._started: dict[int, Future[None]] = {}
        self.most_in_flight = 0

    def start(self, address: int, collective: Callable[[], None]) -> None:
        """Run a collective after those that were started before.

        Parameters
        ----------
        address : int
            The address of the result. Where a collective in flight has it, the call waits.
        collective : callable
        """
        future = self._executor.submit(collective)
        if address in self._started:
            future.result()
            return
        self._started[address] = future
        self.most_in_flight = max(self.most_in_flight, len(self._started))

    def complete(self, address: int) -> None:
        """Wait for the collective of an address, and raise what it raised; nothing without one."""
        if address in self._started:
            self._started.pop(address).result()

    def end(self) -> None:
        """Wait for what was started, and end the thread."""
        self._executor.submit(self._worker.__exit__, None, None, None)
        self._executor.shutdown()
