# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run programs with the engine ``threads``: a worker per rank in a ``ThreadedSession``.

Each mesh's entry function is compiled whole; every worker has a separate virtual machine, and
the workers meet in a fabric (:mod:`~.collectives.fabric`). An exception that
leaves a worker would abort the process: workers call :func:`_invoke`, which hands it to the
fabric. A thread cannot be ended: a session with a worker that does not come back is given up, and
the next run starts a new one. So is every session in a forked child, which has none of the threads.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm.runtime.vm import VirtualMachine

from tvm_distir.execution.runtime.collectives import ccl
from tvm_distir.execution.runtime.collectives.native_fabric import NativeFabric
from tvm_distir.execution.runtime.engines.executed import count_executed
from tvm_distir.execution.runtime.engines.fork import run_turn
from tvm_distir.execution.runtime.engines.local_engine import LocalEngine, RankTensors
from tvm_distir.execution.runtime.engines.termination import (
    NO_RANK,
    TerminationWatch,
    raise_failure,
)
from tvm_distir.execution.runtime.program.cores import THREADS_VARIABLE, one_thread
from tvm_distir.execution.runtime.program.machines import make_machine
from tvm_distir.execution.runtime.program.run_trace import RankTrace, write_run_trace
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.execution.runtime.program.tensors import flat_tensors
from tvm_distir.support import EngineError, repair_disco, sync_workers

TIMEOUT_S = 300.0
_INVOKE = "tvm_distir.execution.runtime.invoke"
_LOOK_S = 0.05


@dataclass
class ThreadJob:
    """The state that the workers of a run share.

    ``idle`` has virtual machines of the program by rank, which no run uses.
    """

    fabric: NativeFabric
    machine: dict[int, VirtualMachine]
    function: dict[int, str]
    inputs: RankTensors
    outputs: dict[int, list[Any]] = field(default_factory=dict)
    traces: dict[int, RankTrace] = field(default_factory=dict)
    idle: dict[int, VirtualMachine] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    all_ended: threading.Event = field(default_factory=threading.Event)

    def end(self, rank: int) -> None:
        """Note that a rank's worker has ended; the last worker wakes the controller."""
        self.ended.add(rank)
        if len(self.ended) == len(self.machine):
            self.all_ended.set()


_numbers = itertools.count()
_jobs: dict[int, ThreadJob] = {}
_sessions: dict[int, tvm.runtime.disco.Session] = {}


def make_job(program: Runnable, tensors: RankTensors, timeout_s: float) -> ThreadJob:
    """Return the job of the workers: a library each, and their inputs."""
    ranks = [r for e in program.entries for r in e.ranks]
    job = ThreadJob(NativeFabric(ranks, timeout_s), {}, {}, tensors)
    for entry in program.entries:
        library = program.library(entry)
        for rank in entry.ranks:
            job.machine[rank], job.function[rank] = library, entry.function
    return job


@contextmanager
def one_thread_each(workers: int) -> Iterator[None]:
    """Keep TVM's kernels single-threaded while there are as many workers as cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if THREADS_VARIABLE in os.environ or workers < (cores or 1):
        yield
        return
    with one_thread():
        yield


def _invoke(number: int) -> None:
    """Run a job's part on the calling worker; raises no exception."""
    job = _jobs.get(number)
    rank = int(tvm.get_global_func("runtime.disco.worker_rank")())
    if job is not None and rank in job.machine:
        work(job, rank)


def work(job: ThreadJob, rank: int) -> None:
    """Run a rank's part on the calling thread; raises no exception."""
    try:
        with ccl.worker(job.fabric, rank):
            machine = job.idle.pop(rank, None) or make_machine(job.machine[rank])
            if rank in job.traces:
                job.traces[rank].attach(machine)
            job.outputs[rank] = flat_tensors(machine[job.function[rank]](*job.inputs[rank]))
            job.idle[rank] = machine  # where the call failed the machine is dropped
        job.fabric.finish(rank)
    except BaseException as err:
        job.fabric.fail(rank, err)
    finally:
        job.end(rank)


def wait(job: ThreadJob, timeout_s: float) -> bool:
    """Wait for the workers of a job; returns False when some are abandoned."""
    watch = TerminationWatch(job.fabric, sorted(job.machine), timeout_s)
    while True:
        try:
            if job.all_ended.wait(_LOOK_S):
                return True
            if not watch.go_on(job.ended):
                return False
        except KeyboardInterrupt as err:
            job.fabric.fail(NO_RANK, err)


def _give_up(workers: int) -> None:
    """Abandon a session with a stuck worker, for which its end would wait."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_sessions.pop(workers)))


def _begin_anew() -> None:
    """Abandon all sessions in a forked child, since their threads are the parent's."""
    _jobs.clear()
    for workers in list(_sessions):
        _give_up(workers)


os.register_at_fork(after_in_child=_begin_anew)


def _session(workers: int) -> tvm.runtime.disco.Session:
    """Return process' session of that many workers; it is created once, as its threads live on."""
    if workers not in _sessions:
        disco = repair_disco()
        if disco is None:
            remedy = "Unset TVM_USE_RUNTIME_LIB, or use the engine virtual."
            raise EngineError("DIST0614", "this TVM has no Disco runtime", remedy=remedy)
        tvm_ffi.register_global_func(_INVOKE, _invoke, override=True)
        _sessions[workers] = disco.ThreadedSession(workers)
    return _sessions[workers]


class ThreadsEngine(LocalEngine):
    """Runs level-5 modules with a Disco worker thread per rank.

    Parameters
    ----------
    timeout_s : float
        The time for which a rank waits for another rank that is busy; ranks that can never meet are
        detected at once.

    Attributes
    ----------
    collectives : tuple of CollectiveCount
        The collectives that the last run executed, as the first rank of every mesh counted them.
    """

    name = "threads"
    records_trace = True

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._idle: tuple[Runnable | None, dict[int, VirtualMachine]] = None, {}

    def run_tensors(self, program: Runnable, tensors: RankTensors) -> RankTensors:
        """Run every rank's entry function on its tensors.

        Raises
        ------
        EngineError
            The first failure of any worker: DIST0610 to DIST0613, or what the worker raised.
        DependencyError
            DIST0110 without the native library.
        """
        entries = program.entries
        job = make_job(program, tensors, self.timeout_s)
        if self.trace is not None:
            job.traces = {rank: RankTrace() for rank in job.machine}
        else:  # steps of a session run one program
            if self._idle[0] is not program:
                self._idle = program, {}
            job.idle = self._idle[1]
        self._call(job, max(job.machine) + 1)
        raise_failure(job.fabric, entries)
        if self.trace is not None:
            write_run_trace(self.trace, {rank: t.spans for rank, t in job.traces.items()})
        fabric = job.fabric
        self.collectives = count_executed(program.axes, entries, fabric.executed, fabric.received)
        self.most_in_flight = job.fabric.most_in_flight
        return job.outputs

    def _call(self, job: ThreadJob, workers: int) -> None:
        with run_turn(), one_thread_each(workers):
            session = _session(workers)
            ccl.register()  # machines look the functions up when made
            number = next(_numbers)
            _jobs[number] = job
            try:
                session.get_global_func(_INVOKE)(number)
                if wait(job, self.timeout_s):
                    sync_workers(session)
                else:
                    _give_up(workers)
            finally:
                del _jobs[number]
