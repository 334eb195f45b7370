# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run programs with the engine ``mpi``: a single process per rank.

Under ``mpirun -n N python program.py`` every process runs the same program and is a rank; from
a plain process the engine starts ``mpirun`` itself (:mod:`~.mpi.launch`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tvm_distir.execution.runtime.collectives.fabric import worker_failed
from tvm_distir.execution.runtime.engines.base import LocalResults
from tvm_distir.execution.runtime.engines.fork import run_turn
from tvm_distir.execution.runtime.engines.job_engine import JobEngine
from tvm_distir.execution.runtime.engines.job_folder import RunCounts
from tvm_distir.execution.runtime.engines.job_launch import run_job
from tvm_distir.execution.runtime.engines.threads.engine import TIMEOUT_S, one_thread_each
from tvm_distir.execution.runtime.program.local_inputs import LocalInputs
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.support import DistIRError, EngineError

from .fabric import MpiFabric
from .launch import find_launcher, run_processes
from .library import is_mpi_process
from .world import World, forget_world, world


class MpiEngine(JobEngine):
    """Runs level-5 modules with an MPI process per rank; see :class:`.JobEngine`.

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

    def __init__(
        self,
        timeout_s: float = TIMEOUT_S,
        launcher: Sequence[str] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        super().__init__(timeout_s, preload)
        self.launcher = launcher

    def check_available(self) -> None:
        """Refuse to begin without mpi4py or a launcher (DIST0111, DIST0113)."""
        if not is_mpi_process():
            find_launcher(self.launcher)

    def is_in_job(self) -> bool:
        """Return whether ``mpirun`` started this process, with others."""
        return is_mpi_process()

    def enter_job(self) -> None:
        """Refuse (DIST0633) to begin where no launcher started this process with others."""
        if not is_mpi_process():
            problem = "no launcher of MPI started this process with others"
            remedy = "Start it with mpirun -n N."
            raise EngineError("DIST0633", problem, location="engine mpi", remedy=remedy)

    def start(self, program: Runnable, local: LocalInputs) -> tuple[LocalResults, RunCounts]:
        """Start a job of a single process per rank and wait for its end."""
        run = partial(run_processes, launcher=self.launcher)
        return run_job(self, program, local, {"trace": self.trace}, run)

    @contextmanager
    def member(self, program: Runnable) -> Iterator[MpiFabric]:
        """Be a member of a run of the job; a failure inside becomes the first cause of all."""
        here = world(self.timeout_s)
        fabric = _fabric(here, program)
        try:
            with run_turn(), one_thread_each(here.local_size):
                yield fabric
        except BaseException as err:
            fabric.fail(here.rank if fabric.rank is None else fabric.rank, err)
            forget_world()
            cause = _cause(fabric, program, err)
            raise cause from (None if cause is err or not fabric.is_origin else err)


def _fabric(here: World, program: Runnable) -> MpiFabric:
    ranks = sorted(r for e in program.entries for r in e.ranks)
    mine = ranks[here.rank] if here.rank < len(ranks) else None
    return MpiFabric(here, ranks, *[e.function for e in program.entries if mine in e.ranks])


def _cause(fabric: MpiFabric, program: Runnable, err: BaseException) -> BaseException:
    """Return the first failure of the job, as one of our errors where it is not an interruption."""
    rank, error = fabric.failure or (-1, err)
    if isinstance(error, DistIRError | KeyboardInterrupt | SystemExit):
        return error
    names = [e.function for e in program.entries if rank in e.ranks]
    return worker_failed(error, rank, names[0] if names else "engine mpi")
