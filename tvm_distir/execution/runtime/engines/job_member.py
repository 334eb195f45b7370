# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define a process of a job, of MPI or of torch.distributed, as one member of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tvm_distir.core import Transfer
from tvm_distir.execution.runtime.collectives.native_library import Executed

Array = npt.NDArray[Any]


class JobMember(Protocol):
    """A process of a job in which every process calls ``run`` with the same program."""

    @property
    def place(self) -> str:
        """Return the engine, for messages."""
        ...

    @property
    def size(self) -> int:
        """Return the number of processes of the job."""
        ...

    @property
    def ranks(self) -> list[int]:
        """Return the device ids of the program; the i-th smallest is process i."""
        ...

    @property
    def rank(self) -> int | None:
        """Return the device id of this process; None for a surplus process."""
        ...

    def process(self, rank: int) -> int:
        """Return the process that is a rank."""
        ...

    def exchange_texts(self, text: bytes, what: Callable[[list[int]], str]) -> list[bytes]:
        """Exchange a few bytes with all processes; returns those of each."""
        ...

    def send_array(self, process: int, array: Array) -> None:
        """Send an array to a process; does not wait."""
        ...

    def receive_array(
        self, process: int, shape: tuple[int, ...], dtype: np.dtype[Any], what: str
    ) -> Array:
        """Wait for the next array of a process."""
        ...

    def share(
        self, rank: int, array: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array:
        """Return a rank's array on every process; only that rank gives it."""
        ...

    def executed(self, rank: int) -> list[Executed]:
        """Return collectives this process executed."""
        ...

    def received(self, rank: int) -> list[tuple[Transfer, int]]:
        """Return transfers a rank received, each with the bytes of an element."""
        ...
