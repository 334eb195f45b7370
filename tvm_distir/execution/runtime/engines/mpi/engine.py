# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run programs with the engine ``mpi``: a single process per rank.

Under ``mpirun -n N python program.py`` every process runs the same program and is a rank; from
a plain process the engine starts ``mpirun`` itself (:mod:`~.mpi.launch`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt

from tvm_distir.execution.runtime.collectives import ccl
from tvm_distir.execution.runtime.collectives.fabric import worker_failed
from tvm_distir.execution.runtime.engines.base import Engine, LocalResults
from tvm_distir.execution.runtime.engines.fork import run_turn
from tvm_distir.execution.runtime.engines.job_inputs import RunCall, agree, inputs_of_rank
from tvm_distir.execution.runtime.engines.job_results import finish_run, write_job_trace
from tvm_distir.execution.runtime.engines.threads.engine import TIMEOUT_S, one_thread_each
from tvm_distir.execution.runtime.program.inputs import Inputs, LocalInputs
from tvm_distir.execution.runtime.program.io_layout import EntryFunction
from tvm_distir.execution.runtime.program.machines import make_machine
from tvm_distir.execution.runtime.program.run_trace import RankTrace
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.execution.runtime.program.tensors import flat_tensors, to_array, to_tensor
from tvm_distir.support import DistIRError, EngineError

from .fabric import MpiFabric
from .launch import find_launcher, launch
from .library import is_mpi_process
from .world import World, forget_world, world

Array = npt.NDArray[Any]


class MpiEngine(Engine):
    """Runs level-5 modules with an MPI process per rank.

    Under ``mpirun`` all processes must call :meth:`run` with the same program; the i-th process
    is the i-th smallest device id. Whole inputs are given on every process, which cuts its own
    shards, or on process 0 alone (None on the others), which scatters them; sharded ones hold
    this process' part at least. Whole outputs are returned on every process, sharded ones hold
    this process' part only.

    Parameters
    ----------
    timeout_s : float
        The time for which a rank waits for another rank.
    launcher : sequence of str, optional
        The command that starts processes, e.g. ``("mpirun", "--hostfile", "hosts")``; by default
        the ``mpiexec`` of this environment, or that of the path. It is not used under ``mpirun``.
    preload : sequence of str
        Modules that every started process imports first, for example because they register
        packed functions that the program calls.
    """

    name = "mpi"
    records_trace = True

    def __init__(
        self,
        timeout_s: float = TIMEOUT_S,
        launcher: Sequence[str] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        self.timeout_s = timeout_s
        self.launcher = launcher
        self.preload = tuple(preload)

    def check_available(self) -> None:
        """Refuse to begin without mpi4py or a launcher (DIST0111, DIST0113)."""
        if not is_mpi_process():
            find_launcher(self.launcher)

    def run_program(self, program: Runnable, inputs: Inputs | None, outputs: str) -> list[Any]:
        """Join the job that this process is part of, or start a job.

        Raises
        ------
        EngineError
            The first failure of any rank, on every process: DIST0602 to DIST0613, DIST0631 when
            the processes do not run the same, DIST0632 for too few processes.
        DependencyError
            DIST0111 without mpi4py, DIST0113 without a working MPI.
        """
        if is_mpi_process():
            return self.join(program, inputs, outputs)
        return super().run_program(program, [] if inputs is None else inputs, outputs)

    def run_local(self, program: Runnable, local: LocalInputs) -> LocalResults:
        """Start a job of a single process per rank and wait for its end."""
        results, counts = launch(program, local, self.timeout_s, self.launcher, self.preload)
        self.collectives, self.most_in_flight = counts
        return results

    def join(self, program: Runnable, inputs: Inputs | None, outputs: str) -> list[Any]:
        """Run as a single rank of the job that this process is part of."""
        with self.member(program) as (_, fabric):
            return self._run_rank(fabric, program, inputs, outputs)

    @contextmanager
    def member(self, program: Runnable) -> Iterator[tuple[World, MpiFabric]]:
        """Be a member of a run of the job; a failure inside becomes the first cause of all."""
        here = world(self.timeout_s)
        fabric = _fabric(here, program)
        try:
            with run_turn(), one_thread_each(here.local_size):
                yield here, fabric
        except BaseException as err:
            fabric.fail(here.rank if fabric.rank is None else fabric.rank, err)
            forget_world()
            cause = _cause(fabric, program, err)
            raise cause from (None if cause is err or not fabric.is_origin else err)

    def enter_job(self) -> None:
        """Refuse (DIST0633) to begin where no launcher started this process with others."""
        if not is_mpi_process():
            raise EngineError(
                "DIST0633",
                "no launcher of MPI started this process with others",
                place="engine mpi",
                remedy="Start it with mpirun -n N.",
            )

    @contextmanager
    def begin(self, program: Runnable) -> Iterator[MpiRun]:
        """Be part of a run of several steps; see :class:`~.job_member.JobRun`."""
        with self.member(program) as (here, fabric):
            yield MpiRun(here, fabric, program)

    def _run_rank(
        self,
        fabric: MpiFabric,
        program: Runnable,
        inputs: Inputs | None,
        outputs: str,
    ) -> list[Any]:
        entries = program.entries
        sources = agree(fabric, RunCall(program.fingerprint, outputs, inputs is not None))
        local = inputs_of_rank(fabric, program, inputs, sources)
        results: dict[int, list[Array]] = {}
        trace = None if self.trace is None else RankTrace()
        for entry in entries:
            if fabric.rank is not None and fabric.rank in entry.ranks:
                session = MpiSession(fabric, program, entry, trace)
                inputs_of = [session.tensor(a) for a in local.of(entry, fabric.rank)]
                results[fabric.rank] = [to_array(t) for t in session.call(inputs_of)]
        values, self.collectives = finish_run(fabric, program, results, outputs)
        self.most_in_flight = fabric.most_in_flight
        if self.trace is not None and trace is not None:
            write_job_trace(fabric, self.trace, trace)
        return values


def _fabric(here: World, program: Runnable) -> MpiFabric:
    ranks = sorted(r for e in program.entries for r in e.ranks)
    mine = ranks[here.rank] if here.rank < len(ranks) else None
    names = [e.function for e in program.entries if mine in e.ranks]
    return MpiFabric(here, ranks, *names)


def _cause(fabric: MpiFabric, program: Runnable, err: BaseException) -> BaseException:
    """Return the first failure of the job, as one of our errors where it is not an interruption."""
    rank, error = fabric.failure or (-1, err)
    if isinstance(error, DistIRError | KeyboardInterrupt | SystemExit):
        return error
    names = [e.function for e in program.entries if rank in e.ranks]
    return worker_failed(error, rank, names[0] if names else "engine mpi")


class MpiRun:
    """A run of several steps in an MPI job; see :class:`~.job_member.JobRun`.

    Parameters
    ----------
    here : World
    fabric : MpiFabric
    program : Runnable
    """

    def __init__(self, here: World, fabric: MpiFabric, program: Runnable) -> None:
        self.member, self._program = fabric, program
        self.process, self.local_rank = here.rank, here.local_rank

    def prepare(self) -> None:
        """Do nothing: messages need no groups."""

    def session(self, entry: EntryFunction, trace: RankTrace | None) -> MpiSession:
        """Load the entry function of this rank."""
        return MpiSession(self.member, self._program, entry, trace)

    def end(self) -> None:
        """Do nothing: the end of a run is agreed on by all processes."""


class MpiSession:
    """The compiled entry function of this rank, with the packed functions of its fabric.

    Parameters
    ----------
    fabric : MpiFabric
        The fabric of a process that is a rank of the entry.
    program : Runnable
    entry : EntryFunction
    trace : RankTrace, optional
        The record of its calls.
    """

    def __init__(
        self,
        fabric: MpiFabric,
        program: Runnable,
        entry: EntryFunction,
        trace: RankTrace | None = None,
    ) -> None:
        self._fabric, self._function = fabric, entry.function
        self._rank = entry.ranks[0] if fabric.rank is None else fabric.rank
        library = program.library(entry)
        ccl.register("python")
        self._machine = make_machine(library)
        if trace is not None:
            trace.attach(self._machine)

    def tensor(self, array: Array) -> Any:
        """Return a tensor with a copy of an array."""
        return to_tensor(array)

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        """Call the function with tensors of this rank; returns such tensors."""
        with ccl.worker(self._fabric, self._rank):
            return flat_tensors(self._machine[self._function](*inputs))
