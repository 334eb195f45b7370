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

from tvm_distir.execution.runtime.collectives.fabric import Aborted
from tvm_distir.execution.runtime.engines.base import LocalResults
from tvm_distir.execution.runtime.engines.fork import run_turn
from tvm_distir.execution.runtime.engines.job_engine import JobEngine
from tvm_distir.execution.runtime.engines.job_folder import RunCounts
from tvm_distir.execution.runtime.engines.job_launch import run_job
from tvm_distir.execution.runtime.engines.threads.engine import TIMEOUT_S, one_thread_each
from tvm_distir.execution.runtime.program.local_inputs import LocalInputs
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.execution.runtime.program.targets import check_machine_runs
from tvm_distir.support import EngineError, nearest

from .job_environment import is_torchrun_process
from .launch import run_processes
from .process_groups import is_initialized, join_job, load_torch
from .torch_fabric import TorchFabric
from .torch_job import current_job, forget_job

REDUCES = ("ordered", "library")
"""Ways of reduction: in rank order with the bits of all engines, or by gloo or NCCL."""


def device_of(target: str) -> str:
    """Return ``"cuda"`` for a target of CUDA in TVM's JSON form, else ``"cpu"``."""
    return "cuda" if json.loads(target or '{"kind": "llvm"}')["kind"] == "cuda" else "cpu"


class TorchEngine(JobEngine):
    """Runs level-5 modules with a process per rank of a torch.distributed job.

    See :class:`.JobEngine`. Programs for CPUs run with gloo, and programs for CUDA with NCCL, a GPU
    per process.

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

    def __init__(
        self,
        timeout_s: float = TIMEOUT_S,
        reduce: str | None = None,
        check: bool | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        if reduce is not None and reduce not in REDUCES:
            problem = f'the engine torch has no reduction "{reduce}"'
            remedy = nearest(str(reduce), REDUCES)
            raise EngineError("DIST0601", problem, location="engine torch", remedy=remedy)
        super().__init__(timeout_s, preload)
        self.reduce = reduce
        self.check = check

    def check_available(self) -> None:
        """Refuse to begin without torch (DIST0111)."""
        load_torch()

    def for_verification(self) -> TorchEngine:
        """Return the engine, with its comparison of calls unless that is switched off."""
        checking = copy.copy(self)
        checking.check = True if self.check is None else self.check
        return checking

    def check_target(self, target: str) -> None:
        """Refuse (DIST0609) a target of a GPU that this machine has not."""
        if device_of(target) == "cuda":
            check_machine_runs(json.loads(target), "engine torch")
        else:
            super().check_target(target)

    def is_in_job(self) -> bool:
        """Return whether this process has joined a job, or ``torchrun`` started it."""
        return is_initialized() or is_torchrun_process()

    def start(self, program: Runnable, local: LocalInputs) -> tuple[LocalResults, RunCounts]:
        """Start a job of a single process per rank and wait for its end."""
        options = {"reduce": self.reduce, "check": self.check, "trace": self.trace}
        return run_job(self, program, local, options, run_processes)

    @contextmanager
    def member(self, program: Runnable) -> Iterator[TorchFabric]:
        """Be a member of a run of the job; a failure inside becomes the first cause of all."""
        job = current_job(self.timeout_s, device_of(program.target))
        ranks = sorted(r for e in program.entries for r in e.ranks)
        reduce = self.reduce or ("library" if job.device == "cuda" else "ordered")
        failures = job.begin(ranks, _location(program, ranks, job.process))
        fabric = TorchFabric(job, ranks, reduce, bool(self.check))
        try:
            with run_turn(), one_thread_each(int(os.environ.get("LOCAL_WORLD_SIZE", job.size))):
                yield fabric
        except BaseException as err:
            seen = err if fabric.failure is None else fabric.failure[1]
            cause = failures.first_cause(seen)
            forget_job()
            raise cause from (None if cause is err or isinstance(seen, Aborted) else err)
        finally:
            failures.close()

    def enter_job(self) -> None:
        """Join the job of a launcher (DIST0633 without one), if the program has joined none."""
        if not is_initialized():
            join_job(self.timeout_s)


def _location(program: Runnable, ranks: Sequence[int], process: int) -> str:
    """Return the entry function of a process, for messages."""
    rank = ranks[process] if process < len(ranks) else None
    names = [e.function for e in program.entries if rank in e.ranks]
    return names[0] if names else "engine torch"
