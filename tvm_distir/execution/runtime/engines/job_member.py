# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define a process of a job, of MPI or of torch.distributed, as one member of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tvm_distir.core.collectives import Transfer
from tvm_distir.execution.runtime.collectives.native_library import Executed
from tvm_distir.execution.runtime.program.io_layout import EntryFunction
from tvm_distir.execution.runtime.program.run_trace import RankTrace
from tvm_distir.execution.runtime.program.runnable import Runnable

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

    def exchange_texts(self, text: bytes, describe: Callable[[list[int]], str]) -> list[bytes]:
        """Exchange a few bytes with all processes; returns those of each."""
        ...

    def send_array(self, process: int, array: Array) -> None:
        """Send an array to a process; does not wait."""
        ...

    def receive_array(
        self, process: int, shape: tuple[int, ...], dtype: np.dtype[Any], label: str
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


class JobSession(Protocol):
    """The compiled entry function of this process' rank, which is called step by step."""

    def tensor(self, array: Array) -> Any:
        """Return a tensor with a copy of an array on the device of this rank."""
        ...

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        """Call the function with tensors of this rank's device; returns such tensors."""
        ...


class JobRun(Protocol):
    """A run of several steps in a job, on one of its processes."""

    @property
    def member(self) -> JobMember:
        """Return this process as a member of the run."""
        ...

    @property
    def process(self) -> int:
        """Return the number of this process in the job."""
        ...

    @property
    def local_rank(self) -> int:
        """Return the number of this process among those of its host."""
        ...

    def prepare(self) -> None:
        """Make what all processes must make together, once they have agreed on the program."""
        ...

    def session(self, entry: EntryFunction, trace: RankTrace | None) -> JobSession:
        """Load the entry function of this rank."""
        ...

    def end(self) -> None:
        """Note that this process takes part in no other step."""
        ...


class JobEngine(Protocol):
    """An engine that runs a program step by step in a job that this process joins."""

    def enter_job(self) -> None:
        """Join the job of a launcher; DIST0633 where none started this process."""
        ...

    def begin(self, program: Runnable) -> AbstractContextManager[JobRun]:
        """Be part of a run; a failure inside becomes the first cause of all."""
        ...
