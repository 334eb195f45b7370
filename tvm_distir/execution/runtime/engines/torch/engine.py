# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run programs with the engine ``torch``: a process per rank of a torch.distributed job.

In a process that ``torchrun`` started, or that has called ``init_process_group``, the engine joins
the job; from a plain process it starts the processes itself (:mod:`~.torch.launch`).
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt

from tvm_distir.execution.runtime.collectives.fabric import Aborted
from tvm_distir.execution.runtime.engines.base import Engine, LocalResults, check_outputs
from tvm_distir.execution.runtime.engines.fork import run_turn
from tvm_distir.execution.runtime.engines.job_inputs import RunCall, agree, inputs_of_rank
from tvm_distir.execution.runtime.engines.job_results import finish_run, write_job_trace
from tvm_distir.execution.runtime.engines.threads.engine import TIMEOUT_S, one_thread_each
from tvm_distir.execution.runtime.program.inputs import Inputs, LocalInputs
from tvm_distir.execution.runtime.program.run_trace import RankTrace
from tvm_distir.execution.runtime.program.runnable import Runnable, as_runnable
from tvm_distir.execution.runtime.program.symbolic_sizes import sized_program
from tvm_distir.execution.runtime.program.targets import check_engine_runs, check_machine_runs
from tvm_distir.support import EngineError, nearest

from .job_environment import is_torchrun_process
from .rank_session import RankSession, TorchRun
from .run_member import TorchMember
from .torch_job import TorchJob, current_job, forget_job, is_initialized, join_job, load_torch

Array = npt.NDArray[Any]

REDUCES = ("ordered", "library")
"""Ways of reduction: in rank order with the bits of all engines, or by gloo or NCCL."""


def device_of(target: str) -> str:
    """Return ``"cuda"`` for a target of CUDA in TVM's JSON form, else ``"cpu"``."""
    return "cuda" if json.loads(target or '{"kind": "llvm"}')["kind"] == "cuda" else "cpu"


class TorchEngine(Engine):
    """Runs level-5 modules with a process per rank of a torch.distributed job.

    In a job all processes must call :meth:`run` with the same program; the i-th process is the
    i-th smallest device id. Inputs and outputs are as those of
    :class:`~tvm_distir.execution.runtime.engines.mpi.engine.MpiEngine`. Programs for CPUs run
    with gloo, and programs for CUDA with NCCL, a GPU per process.

    Parameters
    ----------
    timeout_s : float
        The time for which a rank waits for another rank.
    reduce : str, optional
        ``"ordered"`` reduces in rank order, with the bits of all engines, ``"library"`` leaves it
        to gloo or NCCL. The default is ``"ordered"`` on CPUs and ``"library"`` on GPUs.
    check : bool, optional
        Whether the ranks of a group compare each call before its data moves (DIST0611), at the
        cost of a small collective per call. The default is True in ``verify``, else False.
    preload : sequence of str
        Modules that every started process imports first, for example because they register
        packed functions that the program calls.

    Raises
    ------
    EngineError
        DIST0601 for another way of reduction.
    """

    name = "torch"
    records_trace = True

    def __init__(
        self,
        timeout_s: float = TIMEOUT_S,
        reduce: str | None = None,
        check: bool | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        if reduce is not None and reduce not in REDUCES:
            raise EngineError(
                "DIST0601",
                f'the engine torch has no reduction "{reduce}"',
                place="engine torch",
                remedy=nearest(str(reduce), REDUCES),
            )
        self.timeout_s = timeout_s
        self.reduce = reduce
        self.check = check
        self.preload = tuple(preload)

    def check_available(self) -> None:
        """Refuse to begin without torch (DIST0111)."""
        load_torch()

    def for_verification(self) -> TorchEngine:
        """Return the engine, with its comparison of calls unless that is switched off."""
        checking = copy.copy(self)
        checking.check = True if self.check is None else self.check
        return checking

    def run(self, dist: Any, inputs: Inputs | None, outputs: str = "whole") -> list[Any]:
        """Run a level-5 module or a deployed program; see :func:`~.registry.run`."""
        check_outputs(outputs)
        self.check_trace()
        self.collectives = ()
        program = as_runnable(dist, self.dispatch)
        if device_of(program.target) == "cuda":
            check_machine_runs(json.loads(program.target), "engine torch")
        else:
            check_engine_runs(program.target, "engine torch")
        return self.run_program(sized_program(program, inputs), inputs, outputs)

    def run_program(self, program: Runnable, inputs: Inputs | None, outputs: str) -> list[Any]:
        """Join the job that this process is part of, or start a job.

        Raises
        ------
        EngineError
            The first failure of any rank, on every process: DIST0602 to DIST0615, DIST0631 when
            the processes do not run the same, DIST0632 for too few processes.
        DependencyError
            DIST0111 without torch.
        """
        if is_initialized() or is_torchrun_process():
            return self.join(program, inputs, outputs)
        return super().run_program(program, [] if inputs is None else inputs, outputs)

    def run_local(self, program: Runnable, local: LocalInputs) -> LocalResults:
        """Start a job of a single process per rank and wait for its end."""
        from .launch import launch

        options = {"reduce": self.reduce, "check": self.check, "trace": self.trace}
        results, counts = launch(
            program, local, self.timeout_s, self.preload, options, device_of(program.target)
        )
        self.collectives, self.most_in_flight = counts
        return results

    def join(
        self,
        program: Runnable,
        inputs: Inputs | None,
        outputs: str,
        device: str | None = None,
    ) -> list[Any]:
        """Run as a single rank of the job that this process is part of."""
        with self.member(program, device) as (job, member):
            return self._run_rank(job, member, program, inputs, outputs)

    @contextmanager
    def member(
        self, program: Runnable, device: str | None = None
    ) -> Iterator[tuple[TorchJob, TorchMember]]:
        """Be a member of a run of the job; a failure inside becomes the first cause of all.

        Parameters
        ----------
        program : Runnable
        device : str, optional
            ``"cpu"`` or ``"cuda"``; by default that of the target of the program.
        """
        job = current_job(self.timeout_s, device or device_of(program.target))
        ranks = sorted(r for e in program.entries for r in e.ranks)
        reduce = self.reduce or ("library" if job.device == "cuda" else "ordered")
        failures = job.begin(ranks, _place(program, ranks, job.process))
        member = TorchMember(job, ranks, reduce, bool(self.check))
        try:
            with run_turn(), one_thread_each(_local_size(job)):
                yield job, member
        except BaseException as err:
            seen = err if member.calls is None else member.calls.failure or err
            cause = failures.first_cause(seen)
            forget_job()
            raise cause from (None if cause is err or isinstance(seen, Aborted) else err)
        finally:
            failures.close()

    def enter_job(self) -> None:
        """Join the job of a launcher (DIST0633 without one), if the program has joined none."""
        if not is_initialized():
            join_job(self.timeout_s)

    @contextmanager
    def begin(self, program: Runnable) -> Iterator[TorchRun]:
        """Be part of a run of several steps; see :class:`~.job_member.JobRun`."""
        with self.member(program) as (job, member):
            yield TorchRun(job, member, program)

    def _run_rank(
        self,
        job: TorchJob,
        member: TorchMember,
        program: Runnable,
        inputs: Inputs | None,
        outputs: str,
    ) -> list[Any]:
        entries = program.entries
        sources = agree(member, RunCall(program.fingerprint, outputs, inputs is not None))
        job.make_groups(member.ranks, program.communication)
        local = inputs_of_rank(member, program, inputs, sources)
        results: dict[int, list[Array]] = {}
        trace = None if self.trace is None else RankTrace()
        for entry in entries:
            if member.rank is not None and member.rank in entry.ranks:
                session = RankSession(job, member, program, entry, trace)
                tensors = session.call([session.tensor(a) for a in local.of(entry, member.rank)])
                results[member.rank] = [t.numpy() for t in tensors]
        if job.failures is not None:
            job.failures.end()
        member.finish_sends()
        values, self.collectives = finish_run(member, program, results, outputs)
        self.most_in_flight = 0 if member.calls is None else member.calls.most_in_flight
        if self.trace is not None and trace is not None:
            write_job_trace(member, self.trace, trace)
        return values


def _place(program: Runnable, ranks: Sequence[int], process: int) -> str:
    """Return the entry function of a process, for messages."""
    rank = ranks[process] if process < len(ranks) else None
    names = [e.function for e in program.entries if rank in e.ranks]
    return names[0] if names else "engine torch"


def _local_size(job: TorchJob) -> int:
    """Return the number of processes on this host, or of all where it is not known."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", job.size))
