# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a deployed folder in a job: once, repeatedly, or over the steps of a data set."""

from __future__ import annotations

import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvm_distir.execution.deployment.checkpoint_reading import Checkpoint
from tvm_distir.execution.deployment.loading import Deployment, load
from tvm_distir.execution.runtime.engines.job_engine import JobEngine, JobSession
from tvm_distir.execution.runtime.engines.job_fabric import JobFabric
from tvm_distir.execution.runtime.engines.job_inputs import RunCall, agree
from tvm_distir.execution.runtime.engines.job_results import collect, wait_for_end, write_job_trace
from tvm_distir.execution.runtime.program.inputs import bind_inputs, input_ports
from tvm_distir.execution.runtime.program.joining import gather_outputs
from tvm_distir.execution.runtime.program.run_trace import RankTrace
from tvm_distir.execution.runtime.program.tensors import Array

from .checkpoints import Checkpoints, state_names
from .generation import generated
from .loss_file import LossFile
from .prompts import Generation, PromptFile, Steps
from .serve_options import ServeOptions
from .step_data import StepData, first_values
from .step_ports import without_state


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
    generation : Generation or None
        The tokens of ``requests``.
    """

    process: int
    rank: int | None
    processes: int
    first_step: int = 0
    outputs: dict[int, list[Array]] = field(default_factory=dict)
    times_s: list[float] = field(default_factory=list)
    generation: Generation | None = None

    @property
    def median_s(self) -> float:
        """Return the median time of a step in seconds; 0 without a step."""
        return statistics.median(self.times_s) if self.times_s else 0.0


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
    with engine.member(program) as member:
        return _ServedRun(member, program, options).run(report)


class _ServedRun:
    def __init__(self, member: JobFabric, program: Deployment, options: ServeOptions) -> None:
        self._member, self._program, self._options = member, program, options
        self._state = {**program.state.inputs, **program.state.caches}  # output -> input
        self._entry = next((e for e in program.entries if member.rank in e.ranks), None)
        self._reported = without_state(program.entries, self._state)

    def run(self, report: Callable[[int, int, Mapping[int, Array]], None] | None) -> ServeResult:
        member, options, entries = self._member, self._options, self._program.entries
        agree(member, RunCall(self._program.fingerprint, repr(options.repeat), True))
        member.prepare(self._program.communication)
        self._warn_of_hosts()
        names = state_names(entries, list(self._state.values()))
        data = StepData(options.inputs, options.steps, options.repeat, names, options.rate)
        checkpoints = Checkpoints(
            member,
            entries,
            sorted(self._program.state.inputs.values()),
            options.checkpoints,
            options.resume,
            self._program.state.optimizer,
        )
        trace = None if options.trace is None else RankTrace()
        with checkpoints.opened() as start:
            result = self._steps(checkpoints, start, data, trace, report)
            member.end()
            wait_for_end(member, entries, {}, "sharded")
        if options.trace is not None and trace is not None:
            write_job_trace(member, options.trace, trace)
        return result

    def _steps(
        self,
        checkpoints: Checkpoints,
        start: Checkpoint | None,
        data: StepData,
        trace: RankTrace | None,
        report: Callable[[int, int, Mapping[int, Array]], None] | None,
    ) -> ServeResult:
        """Run the steps that are not done yet, and write checkpoints."""
        options = self._options
        result = ServeResult(self._member.number, self._member.rank, self._member.size)
        fixed = first_values(self._program, self._program.stored)
        if start is not None:
            result.first_step = self._resume(fixed, start, data)
        losses = self._losses(
            result.first_step, start is not None and bool(self._program.state.inputs)
        )
        session, state = None, dict[int, object]()
        if self._entry is not None:
            session = JobSession(self._member, self._program, self._entry, trace)
        if options.requests is not None:
            steps = self._called(session, data.of_step(1), fixed)
            result.generation = generated(steps, PromptFile.read(options.requests))
            result.times_s = result.generation.times_s
            return result
        for step in range(result.first_step + 1, data.count + 1):
            begun_s = time.perf_counter()
            results = self._step(session, data.of_step(step), fixed, state)
            result.times_s.append(time.perf_counter() - begun_s)
            full = self._outputs(results)
            for index, array in full.items():
                result.outputs.setdefault(index, []).append(array)
            if losses is not None:
                losses.add(step, full)
            if report is not None:
                report(self._member.number, step, full)
            if step == data.count or (options.every and step % options.every == 0):
                self._save(checkpoints, step, state, data)
        return result

    def _called(
        self, session: JobSession | None, same: Mapping[str, object], fixed: dict[int, object]
    ) -> Steps:
        """Return the steps of a job in which all processes give the same inputs."""
        state, ports = dict[int, object](), input_ports(self._program.entries)

        def call(inputs: Mapping[str, object]) -> list[Array]:
            results = self._step(session, {**same, **inputs}, fixed, state)
            return [*self._outputs(results).values()]

        batch = [p.name for i, p in ports.items() if i not in fixed and p.name not in same]
        return Steps(tuple(batch), {p.name: p.shape for p in ports.values()}, call)

    def _step(
        self,
        session: JobSession | None,
        step_inputs: Mapping[str, object],
        fixed: dict[int, object],
        state: dict[int, object],
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
        full = gather_outputs(entries, collect(self._member, entries, results, ended))
        return dict(zip(positions, full))

    def _losses(self, first_step: int, is_resumed: bool) -> LossFile | None:
        path = self._options.losses
        if path is None or self._member.number != 0:
            return None
        return LossFile(path, first_step, is_resumed)

    # State ----------------------------------------------------------------------------------

    def _resume(self, fixed: dict[int, object], start: Checkpoint, data: StepData) -> int:
        """Replace stored values by those of a checkpoint; returns its number of steps.

        A program without state is evaluated with the weights of a training step: its steps are
        others.
        """
        entries, state = self._program.entries, self._program.state.inputs.values()
        names = state_names(entries, list(input_ports(entries)))
        fixed.update(start.values(names, set(state)))
        if not state:
            return 0
        head = start.head
        data.resume(start.path, head.step, head.data, is_first=self._member.number == 0)
        return head.step

    def _save(
        self, checkpoints: Checkpoints, step: int, state: Mapping[int, Any], data: StepData
    ) -> None:
        if self._options.checkpoints is None:
            return
        indices = state.keys() - {*self._program.state.caches.values()}
        arrays = {index: state[index].numpy() for index in indices}
        checkpoints.save(step, arrays, data.checksums(step) if self._member.number == 0 else {})

    def _warn_of_hosts(self) -> None:
        name = socket.gethostname().encode()
        hosts = len(set(self._member.exchange_texts(name, lambda late: f"the hosts of {late}")))
        planned = self._program.manifest.hosts
        if hosts != planned and self._member.number == 0:
            print(
                f"warning: the folder was deployed for {planned} hosts, the job has {hosts}",
                file=sys.stderr,
            )
