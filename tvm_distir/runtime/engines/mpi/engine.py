# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine ``mpi``: one process per rank.

Under ``mpirun -n N python program.py`` every process runs the same program and is one rank; from
a plain process the engine starts ``mpirun`` itself (:mod:`tvm_distir.runtime.engines.mpi.launch`).
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.runtime.vm import VirtualMachine

from ....collectives import Transfer
from ....errors import DistIRError, EngineError
from ....native import Executed
from ...collectives import ccl
from ...program import (
    Bounds,
    EntryFunction,
    Inputs,
    LocalInputs,
    Port,
    Runnable,
    ShardedArray,
    bind_inputs,
    check_local,
    count_executed,
    different_bits,
    flat_tensors,
    gather_outputs,
    input_ports,
    sharded_outputs,
    to_array,
    to_tensor,
)
from ..base import Engine, LocalResults
from ..forked import run_turn
from ..threads import TIMEOUT_S, one_thread_each
from .fabric import MpiFabric, worker_failed
from .launch import find_launcher, launch
from .world import GATHER, SCATTER, World, forget_world, is_mpi_process, world

Array = npt.NDArray[Any]
Digests = dict[int, bytes]
"""Of this rank's part of each of its outputs, by position among them."""


@dataclass(frozen=True)
class _Call:
    """What every process says of its call of ``run``, to be compared."""

    program: str
    outputs: str
    has_inputs: bool


@dataclass(frozen=True)
class _Ended:
    """What every process says when its rank has run to its end."""

    rank: int | None
    digests: Digests
    executed: list[Executed]
    received: list[tuple[Transfer, int]]


class _Counts:
    """What the ranks executed, as counting asks for it."""

    def __init__(self, ended: Sequence[_Ended]) -> None:
        self._by_rank = {e.rank: e for e in ended}

    def executed(self, rank: int) -> list[Executed]:
        return self._by_rank[rank].executed

    def received(self, rank: int) -> list[tuple[Transfer, int]]:
        return self._by_rank[rank].received


class MpiEngine(Engine):
    """Runs level-5 modules with one MPI process per rank.

    Under ``mpirun`` all processes must call :meth:`run` with the same program; the i-th process
    is the i-th smallest device id. Whole inputs are given on every process, which cuts its own
    shards, or on process 0 alone (None on the others), which scatters them; sharded ones hold
    this process' part at least. Whole outputs are returned on every process, sharded ones hold
    this process' part only.

    Parameters
    ----------
    timeout_s : float
        How long a rank waits for another one.
    launcher : sequence of str, optional
        The command that starts processes, e.g. ``("mpirun", "--hostfile", "hosts")``; by
        default the ``mpiexec`` of this environment, or the one on the path. Not used under
        ``mpirun``.
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
        self.timeout_s = timeout_s
        self.launcher = launcher
        self.preload = tuple(preload)

    def check_available(self) -> None:
        """Refuse to begin without mpi4py or a launcher (DIST0111, DIST0113)."""
        if not is_mpi_process():
            find_launcher(self.launcher)

    def run_program(self, program: Runnable, inputs: Inputs | None, outputs: str) -> list[Any]:
        """Join the job that this process is part of, or start one.

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
        """Start a job of one process per rank and wait for its end."""
        results, self.collectives = launch(
            program, local, self.timeout_s, self.launcher, self.preload
        )
        return results

    def join(self, program: Runnable, inputs: Inputs | None, outputs: str) -> list[Any]:
        """Be one rank of the job that this process is part of."""
        here = world(self.timeout_s)
        fabric = _fabric(here, program)
        try:
            with run_turn(), one_thread_each(here.local_size):
                return self._run_rank(here, fabric, program, inputs, outputs)
        except BaseException as err:
            fabric.fail(here.rank if fabric.rank is None else fabric.rank, err)
            forget_world()
            cause = _cause(fabric, program, err)
            raise cause from (None if cause is err or not fabric.is_origin else err)

    def _run_rank(
        self,
        here: World,
        fabric: MpiFabric,
        program: Runnable,
        inputs: Inputs | None,
        outputs: str,
    ) -> list[Any]:
        found = program.entries
        sources = _agree(
            here, fabric, program, _Call(program.fingerprint, outputs, inputs is not None)
        )
        local = _inputs(here, fabric, program, inputs, sources)
        results: dict[int, list[Array]] = {}
        for entry in found:
            if fabric.rank in entry.ranks:
                results[fabric.rank] = _execute(
                    fabric, program, entry, local.of(entry, fabric.rank)
                )
        ended = _end(here, fabric, found, results, outputs)
        self.collectives = count_executed(program.axes, found, _Counts(ended))
        if outputs == "sharded":
            return list(sharded_outputs(found, results))
        return gather_outputs(found, _collect(here, fabric, found, results, ended))


def _fabric(here: World, program: Runnable) -> MpiFabric:
    ranks = sorted(r for e in program.entries for r in e.ranks)
    mine = ranks[here.rank] if here.rank < len(ranks) else None
    names = [e.function for e in program.entries if mine in e.ranks]
    return MpiFabric(here, ranks, *names)


def _cause(fabric: MpiFabric, program: Runnable, err: BaseException) -> BaseException:
    """The first failure of the job, as one of our errors where it is not an interruption."""
    rank, error = fabric.failure or (-1, err)
    if isinstance(error, DistIRError | KeyboardInterrupt | SystemExit):
        return error
    names = [e.function for e in program.entries if rank in e.ranks]
    return worker_failed(error, rank, names[0] if names else "engine mpi")


def _agree(here: World, fabric: MpiFabric, program: Runnable, call: _Call) -> list[int]:
    """Check that all processes run the same; returns those that have inputs."""
    if here.size < len(fabric.ranks):
        raise EngineError(
            "DIST0632",
            f"the job has {here.size} processes, the program needs {len(fabric.ranks)}",
            place="engine mpi",
            remedy=f"Start it with mpirun -n {len(fabric.ranks)}.",
        )
    calls: list[_Call] = [
        pickle.loads(text)
        for text in here.exchange(
            pickle.dumps(call), fabric.check, lambda m: f"the begin of the run for processes {m}"
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
                    f"process {process} runs another {what} ({theirs}) than process 0 ({mine})",
                    place="engine mpi",
                    remedy="Give every process the same module, lowered alike.",
                )
    return [process for process, other in enumerate(calls) if other.has_inputs]


def _inputs(
    here: World,
    fabric: MpiFabric,
    program: Runnable,
    inputs: Inputs | None,
    sources: Sequence[int],
) -> LocalInputs:
    """Inputs of this rank: its own, or those that process 0 scatters."""
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
            _, array = fabric.take_array(0, SCATTER, f'input "{port.name}" from process 0')
            taken[port.index] = ShardedArray({fabric.rank: array})
    missing = {i: ShardedArray({}) for i in input_ports(program.entries) if i not in taken}
    return LocalInputs({**taken, **missing})


def _asked(entry: EntryFunction, program: Runnable) -> list[Port]:
    """Inputs of an entry that do not come with the program."""
    return [port for port in entry.inputs if port.index not in program.stored]


def _scatter(fabric: MpiFabric, program: Runnable, local: LocalInputs) -> None:
    """Send every rank its part of every input, and nothing else."""
    for entry in program.entries:
        for rank in entry.ranks:
            if rank == fabric.rank:
                continue
            for port in _asked(entry, program):
                part = local.part(entry, port, rank)
                fabric.post_array(fabric.process(rank), SCATTER, port.index, part)


def _execute(
    fabric: MpiFabric, program: Runnable, entry: EntryFunction, inputs: Sequence[Array]
) -> list[Array]:
    rank = fabric.rank
    if rank is None:
        return []
    library = program.library(entry)
    ccl.register("python")
    with ccl.worker(fabric, rank):
        machine = VirtualMachine(library, tvm.cpu())
        result = machine[entry.function](*(to_tensor(a) for a in inputs))
        return [to_array(t) for t in flat_tensors(result)]


def _kept(entry: EntryFunction, port: Port, rank: int, part: Array) -> Array:
    """The part of a local array that is not padding."""
    return part[tuple(slice(0, b - a) for a, b in entry.bounds(port, rank))]


def _end(
    here: World,
    fabric: MpiFabric,
    found: Sequence[EntryFunction],
    results: Mapping[int, Sequence[Array]],
    outputs: str,
) -> list[_Ended]:
    """Wait until all ranks have ended; what each says of it."""
    digests: Digests = {}
    for entry in found:
        if outputs == "sharded" or fabric.rank not in entry.ranks:
            continue
        for k, (port, part) in enumerate(zip(entry.outputs, results[fabric.rank])):
            check_local(part, port, entry, fabric.rank, entry.output_place(port))
            kept = np.ascontiguousarray(_kept(entry, port, fabric.rank, part))
            digests[k] = hashlib.sha256(kept.tobytes()).digest()
    rank = fabric.rank
    ended = _Ended(
        rank,
        digests,
        [] if rank is None else fabric.executed(rank),
        [] if rank is None else fabric.received(rank),
    )
    texts = here.exchange(
        pickle.dumps(ended),
        fabric.check,
        lambda late: f"the end: {', '.join(f'rank {fabric.ranks[p]} did not end' for p in late)}",
    )
    return [pickle.loads(text) for text in texts]


def _collect(
    here: World,
    fabric: MpiFabric,
    found: Sequence[EntryFunction],
    results: Mapping[int, list[Array]],
    ended: Sequence[_Ended],
) -> LocalResults:
    """Local results of all ranks on every process; of replicas, one travels.

    Raises
    ------
    EngineError
        DIST0604 when replicas differ in any bit.
    """
    digests = {e.rank: e.digests for e in ended if e.rank is not None}
    taken: dict[int, list[Array]] = {r: [] for e in found for r in e.ranks}
    for entry in found:
        for k, port in enumerate(entry.outputs):
            holder: dict[Bounds, tuple[int, Array]] = {}
            for rank in entry.ranks:
                bounds = entry.bounds(port, rank)
                if bounds not in holder:
                    holder[bounds] = rank, _share(here, fabric, rank, results, k)
                first, array = holder[bounds]
                if digests[rank][k] != digests[first][k]:
                    raise different_bits(first, rank, port, entry.output_place(port))
                taken[rank].append(array)
    return taken


def _share(
    here: World, fabric: MpiFabric, rank: int, results: Mapping[int, list[Array]], k: int
) -> Array:
    """Result ``k`` of a rank, from that rank to all processes."""
    if rank != fabric.rank:
        return fabric.take_array(fabric.process(rank), GATHER, f"output of rank {rank}")[1]
    for other in here.others:
        fabric.post_array(other, GATHER, k, results[rank][k])
    return results[rank][k]
