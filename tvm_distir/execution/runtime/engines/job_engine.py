# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run programs in a job of processes, of MPI or of torch.distributed, in which each is a rank."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tvm_distir.execution.runtime.collectives import ccl
from tvm_distir.execution.runtime.program.inputs import Inputs
from tvm_distir.execution.runtime.program.io_layout import EntryFunction
from tvm_distir.execution.runtime.program.local_inputs import LocalInputs
from tvm_distir.execution.runtime.program.machines import make_machine
from tvm_distir.execution.runtime.program.run_trace import RankTrace
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.execution.runtime.program.tensors import Array, flat_tensors, to_tensor

from .base import Engine, LocalResults
from .job_fabric import JobFabric
from .job_folder import RunCounts
from .job_inputs import RunCall, agree, inputs_of_rank
from .job_results import finish_run, write_job_trace

if TYPE_CHECKING:
    import tvm


class JobEngine(Engine):
    """An engine whose ranks are the processes of a job.

    In a job all processes must call :meth:`run` with the same program; the i-th process is the
    i-th smallest device id. Whole inputs are given on every process, which cuts its own shards, or
    on process 0 alone (None on the others), which scatters them; sharded ones hold this process'
    part at least. Whole outputs are returned on every process, sharded ones hold this process' part
    only.

    Parameters
    ----------
    timeout_s : float
        The time for which a rank waits for another rank.
    preload : sequence of str
        Modules that every started process imports first, for example because they register
        packed functions that the program calls.
    """

    records_trace = True

    def __init__(self, timeout_s: float, preload: Sequence[str]) -> None:
        self.timeout_s = timeout_s
        self.preload = tuple(preload)

    @abstractmethod
    def is_in_job(self) -> bool:
        """Return whether this process is part of a job."""

    @abstractmethod
    def enter_job(self) -> None:
        """Join the job of a launcher; DIST0633 where none started this process."""

    @abstractmethod
    def member(self, program: Runnable) -> AbstractContextManager[JobFabric]:
        """Be a member of a run of the job; a failure inside becomes the first cause of all."""

    @abstractmethod
    def start(self, program: Runnable, local: LocalInputs) -> tuple[LocalResults, RunCounts]:
        """Start a job of a single process per rank and wait for its end."""

    def run_program(self, program: Runnable, inputs: Inputs | None, outputs: str) -> list[Any]:
        """Join the job that this process is part of, or start a job.

        Raises
        ------
        EngineError
            The first failure of any rank, on every process: DIST0602 to DIST0615, DIST0631 when
            the processes do not run the same, DIST0632 for too few processes.
        DependencyError
            DIST0111 without the library of the job, DIST0113 without a working MPI.
        """
        if self.is_in_job():
            return self.join(program, inputs, outputs)
        return super().run_program(program, [] if inputs is None else inputs, outputs)

    def run_local(self, program: Runnable, local: LocalInputs) -> LocalResults:
        """Start a job of a single process per rank and wait for its end."""
        results, (self.collectives, self.most_in_flight) = self.start(program, local)
        return results

    def join(self, program: Runnable, inputs: Inputs | None, outputs: str) -> list[Any]:
        """Run as a single rank of the job that this process is part of."""
        with self.member(program) as fabric:
            return self._run_rank(fabric, program, inputs, outputs)

    def _run_rank(
        self, fabric: JobFabric, program: Runnable, inputs: Inputs | None, outputs: str
    ) -> list[Any]:
        sources = agree(fabric, RunCall(program.fingerprint, outputs, inputs is not None))
        fabric.prepare(program.communication)
        local = inputs_of_rank(fabric, program, inputs, sources)
        results: dict[int, list[Array]] = {}
        trace = None if self.trace is None else RankTrace()
        for entry in program.entries:
            if fabric.rank is not None and fabric.rank in entry.ranks:
                session = JobSession(fabric, program, entry, trace)
                tensors = session.call([session.tensor(a) for a in local.of(entry, fabric.rank)])
                results[fabric.rank] = [t.numpy() for t in tensors]
        fabric.end()
        values, self.collectives = finish_run(fabric, program, results, outputs)
        self.most_in_flight = fabric.most_in_flight
        if self.trace is not None and trace is not None:
            write_job_trace(fabric, self.trace, trace)
        return values


class JobSession:
    """The compiled entry function of this process' rank, which is called step by step.

    Parameters
    ----------
    fabric : JobFabric
        The fabric of a process that is a rank of the entry.
    program : Runnable
    entry : EntryFunction
    trace : RankTrace, optional
        The record of its calls.
    """

    def __init__(
        self, fabric: JobFabric, program: Runnable, entry: EntryFunction, trace: RankTrace | None
    ) -> None:
        self._fabric, self._function = fabric, entry.function
        self._rank = entry.ranks[0] if fabric.rank is None else fabric.rank
        library = program.library(entry)
        ccl.register(messages=True)
        self._machine = make_machine(library, fabric.device)
        if trace is not None:
            trace.attach(self._machine)

    def tensor(self, array: Array) -> tvm.runtime.Tensor:
        """Return a tensor with a copy of an array on the device of this rank."""
        host = to_tensor(array)
        return host if self._fabric.device is None else host.copyto(self._fabric.device)

    def call(self, inputs: Sequence[tvm.runtime.Tensor]) -> list[tvm.runtime.Tensor]:
        """Call the function with tensors of this rank's device; returns such tensors."""
        with ccl.worker(self._fabric, self._rank):
            result = self._machine[self._function](*inputs)
            self._fabric.finish_call(self._function)
        return flat_tensors(result)
