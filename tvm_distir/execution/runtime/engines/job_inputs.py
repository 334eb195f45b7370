# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check that all processes run the same program, and distribute the inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from tvm_distir.execution.runtime.program.inputs import Inputs, bind_inputs, input_ports
from tvm_distir.execution.runtime.program.io_layout import EntryFunction, Port, np_dtype
from tvm_distir.execution.runtime.program.local_inputs import LocalInputs
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.execution.runtime.program.sharded import ShardedArray
from tvm_distir.support import EngineError

from .job_fabric import JobFabric


@dataclass(frozen=True)
class RunCall:
    """The description of a process' call of ``run``, for comparison between processes."""

    program: str
    outputs: str
    has_inputs: bool


def agree(member: JobFabric, call: RunCall) -> list[int]:
    """Check that all processes run the same; returns those that have inputs.

    Raises
    ------
    EngineError
        DIST0631 when the processes do not run the same, DIST0632 for too few processes.
    """
    if member.size < len(member.ranks):
        problem = f"the job has {member.size} processes, the program requires {len(member.ranks)}"
        remedy = f"Start {len(member.ranks)} processes."
        raise EngineError("DIST0632", problem, location=member.location, remedy=remedy)
    calls: list[RunCall] = [
        RunCall(*json.loads(text))
        for text in member.exchange_texts(
            json.dumps(astuple(call)).encode(),
            lambda late: f"the start of the run for processes {late}",
        )
    ]
    for process, other in enumerate(calls):
        for label, mine, theirs in (
            ("program", calls[0].program, other.program),
            ("form of outputs", calls[0].outputs, other.outputs),
        ):
            if mine != theirs:
                raise EngineError(
                    "DIST0631",
                    f"process {process} has another {label} ({theirs}) than process 0 ({mine})",
                    location=member.location,
                    remedy="Give every process the same module, lowered in the same way.",
                )
    return [process for process, other in enumerate(calls) if other.has_inputs]


def inputs_of_rank(
    member: JobFabric, program: Runnable, inputs: Inputs | None, sources: Sequence[int]
) -> LocalInputs:
    """Return the inputs of this rank, given by itself or scattered by process 0."""
    if len(sources) == member.size:
        return bind_inputs(program.entries, [] if inputs is None else inputs, program.stored)
    if list(sources) != [0]:
        problem = f"the processes {list(sources)} of {member.size} have inputs"
        remedy = "Give them on all processes, or on process 0 and None on the others."
        raise EngineError("DIST0602", problem, location="inputs", remedy=remedy)
    if inputs is not None:
        local = bind_inputs(program.entries, inputs, program.stored)
        _scatter(member, program, local)
        return local
    arrays = dict(program.stored)
    for entry in program.entries:
        if member.rank is None or member.rank not in entry.ranks:
            continue
        for port in _asked(entry, program):
            shape, dtype = entry.local_shape(port), np_dtype(port.dtype)
            array = member.receive_array(0, shape, dtype, f'input "{port.name}" from process 0')
            arrays[port.index] = ShardedArray({member.rank: array})
    missing = {i: ShardedArray({}) for i in input_ports(program.entries) if i not in arrays}
    return LocalInputs({**arrays, **missing})


def _asked(entry: EntryFunction, program: Runnable) -> list[Port]:
    """Return the inputs of an entry that do not come with the program."""
    return [port for port in entry.inputs if port.index not in program.stored]


def _scatter(member: JobFabric, program: Runnable, local: LocalInputs) -> None:
    """Send every rank its part of every input, and nothing else."""
    for entry in program.entries:
        for rank in entry.ranks:
            if rank == member.rank:
                continue
            for port in _asked(entry, program):
                member.send_array(member.process(rank), local.part(entry, port, rank))
