# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a deployed folder in a job: once, repeatedly, or over the steps of a data set."""

from __future__ import annotations

import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.core import plain_name
from tvm_distir.execution.deployment.checkpoint import open_weights
from tvm_distir.execution.deployment.loading import Deployment, load
from tvm_distir.execution.runtime.engines.job_inputs import RunCall, agree
from tvm_distir.execution.runtime.engines.job_member import JobEngine, JobRun, JobSession
from tvm_distir.execution.runtime.engines.job_results import (
    collect,
    wait_for_end,
    write_job_trace,
)
from tvm_distir.execution.runtime.program.inputs import bind_inputs, input_ports
from tvm_distir.execution.runtime.program.io_layout import Bounds, EntryFunction, np_dtype
from tvm_distir.execution.runtime.program.joining import gather_outputs
from tvm_distir.execution.runtime.program.run_trace import RankTrace
from tvm_distir.support import EngineError

from .checkpoints import read_checkpoint, write_list, write_part

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ServeOptions:
    """Options of a run of a deployed folder in a job.

    Attributes
    ----------
    inputs : Path or None
        A file of inputs that are the same in every step.
    steps : Path or None
        A file of inputs with a first dim of steps, of which each step takes one.
    repeat : int
        How often the steps, or the single run, are repeated.
    checkpoints : Path or None
        The folder for checkpoints.
    every : int
        The number of steps between checkpoints; there is one after the last step too.
    resume : Path or None
        A checkpoint, or a folder of checkpoints, from which the state is read.
    sharded : bool
        Whether outputs stay on their ranks.
    trace : Path or None
        The JSON file for the kernels and collectives of all steps.
    """

    inputs: Path | None = None
    steps: Path | None = None
    repeat: int = 1
    checkpoints: Path | None = None
    every: int = 0
    resume: Path | None = None
    sharded: bool = False
    trace: Path | None = None


@dataclass
class ServeResult:
    """The outputs and times of a run of a deployed folder, on one process of the job.

    Attributes
    ----------
    process : int
    rank : int or None
        The device id of this process; None for a surplus process.
    processes : int
        The number of processes of the job.
    first_step : int
        The number of steps that the checkpoint had done.
    outputs : mapping of int to list of array
        The outputs that are no state, by position, with an array per step: whole ones, or the
        parts of this rank.
    times_s : list of float
        The time of each step on this process, in seconds.
    """

    process: int
    rank: int | None
    processes: int
    first_step: int = 0
    outputs: dict[int, list[Array]] = field(default_factory=dict)
    times_s: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        """Return the median time of a step in seconds; 0 without a step."""
        return statistics.median(self.times_s) if self.times_s else 0.0


@dataclass(frozen=True)
class StepArray:
    """One step of an array with a first dim of steps.

    Attributes
    ----------
    array : FileArray
    step : int
    """

    array: Any
    step: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of a step."""
        return tuple(int(n) for n in self.array.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the element type."""
        kind: np.dtype[Any] = self.array.dtype
        return kind

    def read(self, bounds: Bounds) -> Array:
        """Read a box of the step only."""
        content: Array = self.array.read(((self.step, self.step + 1), *bounds))[0]
        return content


@dataclass(frozen=True)
class ZeroArray:
    """An array of zeros, of which only the boxes that are read take memory.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy dtype
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, bounds: Bounds) -> Array:
        """Return the zeros of a box."""
        return np.zeros([b - a for a, b in bounds], self.dtype)


def serve(
    folder: Path,
    options: ServeOptions,
    engine: JobEngine,
    report: Callable[[int, int, Mapping[int, Array]], None] | None = None,
) -> ServeResult:
    """Join a job and run a deployed folder in it; all processes of the job call it alike.

    Each process opens only its own shards of weights, data and checkpoints. The state of a
    training step stays on its rank between steps.

    Parameters
    ----------
    folder : Path
        A folder of :func:`tvm_distir.deploy`.
    options : ServeOptions
    engine : JobEngine
        The engine ``torch`` or ``mpi``.
    report : callable, optional
        Called after each step with the number of this process, that of the step, and its outputs.

    Raises
    ------
    EngineError
        The first failure of any process; DIST0633 where no launcher started this one.
    """
    engine.enter_job()
    program = load(folder)
    with engine.begin(program) as run:
        return _ServedRun(run, program, options).run(report)


def _data(path: Path | None) -> dict[str, Any]:
    return {} if path is None else dict(open_weights(path))


class _ServedRun:
    def __init__(self, run: JobRun, program: Deployment, options: ServeOptions) -> None:
        self._run, self._program, self._options = run, program, options
        member = self._member = run.member
        self._state = dict(program.manifest.state.inputs)  # output -> input
        self._entry = next((e for e in program.entries if member.rank in e.ranks), None)
        self._reported = _without_state(program.entries, self._state)

    def run(self, report: Callable[[int, int, Mapping[int, Array]], None] | None) -> ServeResult:
        member, options = self._member, self._options
        agree(member, RunCall(self._program.fingerprint, repr(options.repeat), True))
        self._run.prepare()
        self._warn_of_hosts()
        result = ServeResult(self._run.process, member.rank, member.size)
        fixed = {**_zeros(self._program), **self._program.stored}
        if options.resume is not None:
            result.first_step = self._resume(fixed, options.resume)
        session, state = None, dict[int, Any]()
        trace = None if options.trace is None else RankTrace()
        if self._entry is not None:
            session = self._run.session(self._entry, trace)
        for step, step_inputs in enumerate(self._steps(), 1):
            if step <= result.first_step:
                continue
            begun_s = time.perf_counter()
            results = self._step(session, step_inputs, fixed, state)
            result.times_s.append(time.perf_counter() - begun_s)
            whole = self._outputs(results)
            for index, array in whole.items():
                result.outputs.setdefault(index, []).append(array)
            if report is not None:
                report(self._run.process, step, whole)
            if options.every and step % options.every == 0:
                self._save(step, state)
        done = result.first_step + len(result.times_s)
        if options.checkpoints is not None and not (options.every and done % options.every == 0):
            self._save(done, state)
        self._run.end()
        wait_for_end(member, self._program.entries, {}, "sharded")
        if options.trace is not None and trace is not None:
            write_job_trace(member, options.trace, trace)
        return result

    def _steps(self) -> Iterator[dict[str, Any]]:
        """Yield the inputs of each step by name."""
        same, varying = _data(self._options.inputs), _data(self._options.steps)
        counts = {int(array.shape[0]) if array.shape else 0 for array in varying.values()}
        if len(counts) > 1:
            raise EngineError(
                "DIST0602",
                f"its arrays have {sorted(counts)} steps",
                place=str(self._options.steps),
                remedy="Give every array a first dim of as many steps.",
            )
        for _ in range(self._options.repeat):
            for step in range(counts.copy().pop() if counts else 1):
                yield {**same, **{k: StepArray(v, step) for k, v in varying.items()}}

    def _step(
        self,
        session: JobSession | None,
        step_inputs: Mapping[str, Any],
        fixed: dict[int, Any],
        state: dict[int, Any],
    ) -> dict[int, list[Array]]:
        """Run a step; ``state`` gets the tensors of the next one."""
        rank, entry = self._member.rank, self._entry
        local = bind_inputs(self._program.entries, step_inputs, fixed)
        if session is None or entry is None or rank is None:
            return {}
        tensors = [
            state[port.index]
            if port.index in state
            else session.tensor(local.part(entry, port, rank))
            for port in entry.inputs
        ]
        outputs = dict(zip((port.index for port in entry.outputs), session.call(tensors)))
        state.update({self._state[i]: t for i, t in outputs.items() if i in self._state})
        return {rank: [t.numpy() for i, t in outputs.items() if i not in self._state]}

    def _outputs(self, results: dict[int, list[Array]]) -> dict[int, Array]:
        """Return the outputs of a step: whole ones, or those of this rank."""
        entries, positions = self._reported
        if self._options.sharded:
            for entry in entries:
                if self._member.rank in entry.ranks and self._member.rank is not None:
                    ports = [positions[port.index] for port in entry.outputs]
                    return dict(zip(ports, results[self._member.rank]))
            return {}
        ended = wait_for_end(self._member, entries, results, "whole")
        whole = gather_outputs(entries, collect(self._member, entries, results, ended))
        return dict(zip(positions, whole))

    # State ----------------------------------------------------------------------------------

    def _resume(self, fixed: dict[int, Any], folder: Path) -> int:
        """Replace the stored state by that of a checkpoint; returns its number of steps."""
        checkpoint = read_checkpoint(folder)
        ports = input_ports(self._program.entries)
        for index in self._state.values():
            key = plain_name(ports[index].name)
            if key not in checkpoint.arrays:
                raise EngineError(
                    "DIST0641",
                    f'the checkpoint lacks "{ports[index].name}"',
                    place=str(folder),
                    remedy="Give a checkpoint of the same model and optimizer.",
                )
            fixed[index] = checkpoint.arrays[key]
        return checkpoint.step

    def _save(self, step: int, state: Mapping[int, Any]) -> None:
        folder, member = self._options.checkpoints, self._member
        if folder is None:
            return
        if self._entry is not None and member.rank is not None:
            arrays = {index: tensor.numpy() for index, tensor in state.items()}
            write_part(folder, step, self._entry, member.rank, arrays)
        member.exchange_texts(b"", lambda late: f"the checkpoint of step {step} by {late}")
        if self._run.local_rank == 0:  # of each host, whose file systems may be separate
            write_list(folder, step, self._program.entries, sorted(self._state.values()))
        member.exchange_texts(b"", lambda late: f"the checkpoint of step {step} by {late}")

    def _warn_of_hosts(self) -> None:
        name = socket.gethostname().encode()
        hosts = len(set(self._member.exchange_texts(name, lambda late: f"the hosts of {late}")))
        planned = self._program.manifest.hosts
        if hosts != planned and self._run.process == 0:
            print(
                f"warning: the folder was deployed for {planned} hosts, the job has {hosts}",
                file=sys.stderr,
            )


def _zeros(program: Deployment) -> dict[int, Any]:
    """Return the state of the optimizer before the first step, by position."""
    ports = input_ports(program.entries)
    zeros = program.manifest.state.zeros
    return {i: ZeroArray(ports[i].shape, np_dtype(ports[i].dtype)) for i in zeros}


def _without_state(
    entries: Sequence[EntryFunction], state: Mapping[int, int]
) -> tuple[tuple[EntryFunction, ...], list[int]]:
    """Return the entries with the outputs alone that are no state, and their positions."""
    positions = sorted({p.index for e in entries for p in e.outputs if p.index not in state})
    number = {index: i for i, index in enumerate(positions)}
    changed = tuple(
        replace(
            entry,
            outputs=tuple(
                replace(p, index=number[p.index]) for p in entry.outputs if p.index in number
            ),
        )
        for entry in entries
    )
    return changed, positions
