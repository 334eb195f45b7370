# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check that all processes run the same program, and distribute the inputs."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass

from tvm_distir.execution.runtime.program.inputs import (
    Inputs,
    LocalInputs,
    bind_inputs,
    input_ports,
)
from tvm_distir.execution.runtime.program.io_layout import EntryFunction, Port
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.execution.runtime.program.sharded import ShardedArray
from tvm_distir.support import EngineError

from .fabric import MpiFabric
from .world import SCATTER, World


@dataclass(frozen=True)
class RunCall:
    """The description of a process' call of ``run``, for comparison between processes."""

    program: str
    outputs: str
    has_inputs: bool


def agree(here: World, fabric: MpiFabric, program: Runnable, call: RunCall) -> list[int]:
    """Check that all processes run the same; returns those that have inputs."""
    if here.size < len(fabric.ranks):
        raise EngineError(
            "DIST0632",
            f"the job has {here.size} processes, the program requires {len(fabric.ranks)}",
            place="engine mpi",
            remedy=f"Start it with mpirun -n {len(fabric.ranks)}.",
        )
    calls: list[RunCall] = [
        pickle.loads(text)
        for text in here.exchange(
            pickle.dumps(call), fabric.check, lambda m: f"the start of the run for processes {m}"
        )
    ]
    for process, other in enumerate(calls):
        for what, mine, theirs in (
            ("program", calls[0].program, other.program),
            ("form of outputs", calls[0].outputs, other.outputs),
        ):
            if mine != theirs:
                raise EngineError(
                    "DIST0631",
                    f"process {process} has another {what} ({theirs}) than process 0 ({mine})",
                    place="engine mpi",
                    remedy="Give every process the same module, lowered in the same way.",
                )
    return [process for process, other in enumerate(calls) if other.has_inputs]


def inputs_of_rank(
    here: World,
    fabric: MpiFabric,
    program: Runnable,
    inputs: Inputs | None,
    sources: Sequence[int],
) -> LocalInputs:
    """Return the inputs of this rank, given by itself or scattered by process 0."""
    if len(sources) == here.size:
        return bind_inputs(program.entries, [] if inputs is None else inputs, program.stored)
    if list(sources) != [0]:
        raise EngineError(
            "DIST0602",
            f"the processes {list(sources)} of {here.size} have inputs",
            place="inputs",
            remedy="Give them on all processes, or on process 0 and None on the others.",
        )
    if inputs is not None:
        local = bind_inputs(program.entries, inputs, program.stored)
        _scatter(fabric, program, local)
        return local
    taken = dict(program.stored)
    for entry in program.entries:
        if fabric.rank not in entry.ranks:
            continue
        for port in _asked(entry, program):
            _, array = fabric.messages.take_array(0, SCATTER, f'input "{port.name}" from process 0')
            taken[port.index] = ShardedArray({fabric.rank: array})
    missing = {i: ShardedArray({}) for i in input_ports(program.entries) if i not in taken}
    return LocalInputs({**taken, **missing})


def _asked(entry: EntryFunction, program: Runnable) -> list[Port]:
    """Return the inputs of an entry that do not come with the program."""
    return [port for port in entry.inputs if port.index not in program.stored]


def _scatter(fabric: MpiFabric, program: Runnable, local: LocalInputs) -> None:
    """Send every rank its part of every input, and nothing else."""
    for entry in program.entries:
        for rank in entry.ranks:
            if rank == fabric.rank:
                continue
            for port in _asked(entry, program):
                part = local.part(entry, port, rank)
                fabric.messages.post_array(fabric.process(rank), SCATTER, port.index, part)
