# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run programs with the engine ``processes``: a worker process per rank on this machine.

The controller compiles each entry function to a library, which only the workers that run it
load. Inputs, outputs and collectives go through nameless shared memory. The workers
are not Disco's: when a worker of a Disco ``ProcessSession`` raises or is killed, the
controller's process aborts.
"""

from __future__ import annotations

import itertools
import os
import selectors
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.execution.runtime.collectives.message_texts import read_executed, read_received
from tvm_distir.execution.runtime.collectives.native_fabric import NativeFabric
from tvm_distir.execution.runtime.collectives.native_library import Executed
from tvm_distir.execution.runtime.engines.base import Engine, LocalResults
from tvm_distir.execution.runtime.engines.executed import count_executed
from tvm_distir.execution.runtime.engines.fork import run_turn, ticks_of
from tvm_distir.execution.runtime.engines.termination import (
    NO_RANK,
    TerminationWatch,
    raise_failure,
)
from tvm_distir.execution.runtime.engines.threads.engine import TIMEOUT_S
from tvm_distir.execution.runtime.program.cores import THREADS_VARIABLE
from tvm_distir.execution.runtime.program.inputs import LocalInputs
from tvm_distir.execution.runtime.program.io_layout import EntryFunction, np_dtype
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.support import EngineError

from .library import LIBRARIES
from .pool import POOL, Worker
from .shared_memory import ArraySlot, Memory, MemoryLayout, make_file
from .wire import Closed, Message, close_all, receive, send

Array = npt.NDArray[Any]

_LOOK_S = 0.05
_numbers = itertools.count()


class _SharedFabric(NativeFabric):
    """The controller's side of a fabric; workers' counts come in their replies."""

    def __init__(self, ranks: Sequence[int], timeout_s: float) -> None:
        super().__init__(ranks, timeout_s, shared=True)
        self._done: dict[int, list[Executed]] = {}

    def note(self, rank: int, reply: Message) -> None:
        """Store a worker's counts."""
        self._done[rank] = read_executed(reply["executed"])
        self._received[rank] = read_received(reply["received"])

    def executed(self, rank: int) -> list[Executed]:
        """Return collectives a rank executed, known once it has ended."""
        return self._done.get(rank, [])


@dataclass
class _Job:
    """A run: the requests to the ranks, and the files that go with them."""

    entries: Sequence[EntryFunction]
    fabric: _SharedFabric
    files: list[int] = field(default_factory=list)
    messages: dict[int, Message] = field(default_factory=dict)
    outputs: dict[int, list[ArraySlot]] = field(default_factory=dict)
    output_bytes: int = 0
    number: int = field(default_factory=lambda: next(_numbers))

    @property
    def ranks(self) -> list[int]:
        """Return all ranks, mesh by mesh."""
        return [rank for entry in self.entries for rank in entry.ranks]

    def results(self) -> LocalResults:
        """Return local outputs; they stay in the shared memory, which lives as long as they do."""
        memory = Memory(self.files[2], self.output_bytes)
        return {rank: [memory.array(p) for p in row] for rank, row in self.outputs.items()}


def _place_inputs(job: _Job, local: LocalInputs) -> tuple[dict[int, list[Any]], int]:
    """Write local arrays to memory, replicas once; returns places by rank and the byte size."""
    layout = MemoryLayout()
    known: dict[int, tuple[ArraySlot, Array]] = {}
    places: dict[int, list[Any]] = {}
    for entry in job.entries:
        for rank in entry.ranks:
            arrays = local.of(entry, rank)
            for array in arrays:
                if id(array) not in known:
                    known[id(array)] = layout.place(array.shape, str(array.dtype)), array
            places[rank] = [known[id(array)][0].to_list() for array in arrays]
    job.files.append(make_file(layout.size_bytes))
    memory = Memory(job.files[-1], layout.size_bytes)
    for place, array in known.values():
        np.copyto(memory.array(place), array)
    return places, layout.size_bytes


def _place_outputs(job: _Job) -> None:
    layout = MemoryLayout()
    for entry in job.entries:
        for rank in entry.ranks:
            job.outputs[rank] = [
                layout.place(entry.local_shape(port), str(np_dtype(port.dtype)))
                for port in entry.outputs
            ]
    job.output_bytes = layout.size_bytes
    job.files.append(make_file(layout.size_bytes))


class ProcessesEngine(Engine):
    """Runs level-5 modules with a single process per rank. Linux only.

    Parameters
    ----------
    timeout_s : float
        The time for which a rank waits for another rank that is busy; a rank whose process ends,
        and ranks that can never meet, are detected at once.
    preload : sequence of str
        Modules that every worker imports first, for example because they register packed
        functions that the program calls.

    Attributes
    ----------
    collectives : tuple of CollectiveCount
        The collectives that the last run executed, as the first rank of every mesh counted them.
    """

    name = "processes"

    def __init__(self, timeout_s: float = TIMEOUT_S, preload: Sequence[str] = ()) -> None:
        self.timeout_s = timeout_s
        self.preload = tuple(preload)

    def run_local(self, program: Runnable, local: LocalInputs) -> LocalResults:
        """Run every rank's entry function on its local inputs.

        Raises
        ------
        EngineError
            The first failure of any worker: DIST0610 to DIST0613, DIST0615 when its process
            ended, or what it raised; DIST0606 when the program cannot be compiled.
        DependencyError
            DIST0110 without the native library, DIST0112 without a linker.
        """
        entries = program.entries
        ranks = [r for e in entries for r in e.ranks]
        with run_turn():
            job = _Job(entries, _SharedFabric(ranks, self.timeout_s))
            try:
                self._describe(job, program, local)
                _run(job, self.timeout_s)
                raise_failure(job.fabric, entries)
                self.collectives = count_executed(program.axes, entries, job.fabric)
                return job.results()
            finally:
                close_all(job.files[1:])  # the fabric closes the first

    def _describe(self, job: _Job, program: Runnable, local: LocalInputs) -> None:
        """Describe the work of each rank."""
        job.files.append(job.fabric.native.descriptor)
        places, input_bytes = _place_inputs(job, local)
        _place_outputs(job)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        common = {
            "job": job.number,
            "path": sys.path,
            "preload": self.preload,
            "one_thread": len(job.ranks) >= cores and THREADS_VARIABLE not in os.environ,
            "input_bytes": input_bytes,
            "output_bytes": job.output_bytes,
        }
        for entry in job.entries:
            library = str(LIBRARIES.path(program, entry))
            for rank in entry.ranks:
                job.messages[rank] = {
                    **common,
                    "library": library,
                    "function": entry.function,
                    "inputs": places[rank],
                    "outputs": [p.to_list() for p in job.outputs[rank]],
                }


def _run(job: _Job, timeout_s: float) -> None:
    """Send the job to its workers and wait until all have ended or are abandoned."""
    workers = POOL.workers(job.ranks)
    running = dict(workers)
    try:
        for rank, worker in workers.items():
            try:
                send(worker.channel, job.messages[rank], job.files)
            except Closed:
                _lost(job, running.pop(rank))
        _wait(job, running, timeout_s)
    except KeyboardInterrupt as err:
        job.fabric.fail(NO_RANK, err)
    finally:
        for worker in running.values():
            POOL.kill(worker)


def _wait(job: _Job, running: dict[int, Worker], timeout_s: float) -> None:
    """Remove workers that end from ``running``, until none is left or the wait is over."""
    watch = TerminationWatch(
        job.fabric, job.ranks, timeout_s, lambda: sum(ticks_of(w.pid) for w in running.values())
    )
    ended: set[int] = set()
    with selectors.DefaultSelector() as selector:
        for worker in running.values():
            selector.register(worker.channel, selectors.EVENT_READ, worker)
        while running:
            for key, _ in selector.select(_LOOK_S):
                worker = key.data
                selector.unregister(worker.channel)
                try:
                    reply, _ = receive(worker.channel)
                except Closed:
                    _lost(job, worker)
                else:
                    job.fabric.note(worker.rank, reply)
                    ended.add(worker.rank)
                del running[worker.rank]
            if not watch.go_on(ended):
                return


def _lost(job: _Job, worker: Worker) -> None:
    """Record the end of a worker's process in the middle of a job."""
    name = next(e.function for e in job.entries if worker.rank in e.ranks)
    error = EngineError(
        "DIST0615",
        f"worker {worker.rank}: its process {worker.pid} {POOL.how_it_ended(worker)}",
        place=name,
        remedy="Check the system's log: it may have killed the process for its memory use.",
    )
    job.fabric.fail(worker.rank, error)
