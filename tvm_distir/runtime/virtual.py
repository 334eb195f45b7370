# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine ``virtual``: all ranks in one process, step by step.

The ranks of a mesh run the same function, so each step is done for all of them before the next:
compute segments with kernels TVM compiled (each distinct one once), collectives in NumPy. Meshes
take turns: one that waits for a transfer yields to the others until the transfer is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi
from tvm import ir, relax

from ..errors import InternalError, RuntimeError_
from ..ir import local_shape, mesh_axes, mesh_index, mesh_names, meshes
from .base import Engine, LocalResults
from .collectives import apply, counted_bytes
from .counts import Counter
from .inputs import LocalInputs
from .kernels import KernelCache
from .layout import Entry, np_dtype
from .lowered import Lowered
from .plain import PlainEngine
from .runnable import Runnable
from .segments import (
    ENTRY,
    AliasStep,
    CallStep,
    CollectiveStep,
    IfStep,
    Program,
    Segment,
    TransferStep,
    make_program,
)
from .tensors import flat_tensors, to_array, to_tensor
from .tiles import Transfer

Array = npt.NDArray[Any]
Value = Any
"""A tvm Tensor, or a (nested) tuple of them."""
PerRank = list[Value]

MailKey = tuple[int, tuple[int, ...], tuple[int, ...]]

_KERNELS = KernelCache()


def _tuples(value: Any) -> Value:
    """Turn FFI arrays of results into tuples; opaque objects stay."""
    if isinstance(value, tvm_ffi.Array | list | tuple):
        return tuple(_tuples(v) for v in value)
    return value


def _mail_key(transfer: Transfer) -> MailKey:
    return transfer.tag, transfer.src[1], transfer.dst[1]


class _Run:
    """State of one run: mailboxes between meshes and counters."""

    def __init__(self, mod: ir.IRModule, found: Sequence[Entry], kernels: KernelCache) -> None:
        self.entries = found
        self.mod = relax.transform.ToNonDataflow()(mod)
        self.kernels = kernels
        self.counter = Counter()
        self.programs: dict[str, Program] = {}
        self.machines: dict[Segment, Any] = {}
        self.mail: dict[MailKey, deque[tuple[Transfer, dict[int, Array]]]] = {}
        self.waiting: dict[int, str] = {}
        self.meshes = meshes(mod)
        self.axis_names = mesh_axes(mod)
        self.mesh_names = mesh_names(mod)
        self.progress = 0

    def program(self, name: str) -> Program:
        if name not in self.programs:
            self.programs[name] = make_program(self.mod, name)
        return self.programs[name]

    def evaluate(self, expr: Any, env: Mapping[relax.Var, PerRank], count: int) -> PerRank:
        if isinstance(expr, relax.Var):
            return env[expr]
        if isinstance(expr, ir.GenericConst):
            return [expr.value] * count
        if isinstance(expr, relax.Tuple):
            fields = [self.evaluate(f, env, count) for f in expr.fields]
            return [tuple(f[i] for f in fields) for i in range(count)]
        if isinstance(expr, relax.TupleGetItem):
            return [v[int(expr.index)] for v in self.evaluate(expr.tuple_value, env, count)]
        raise RuntimeError_(
            "DIST0605",
            f"an argument of kind {type(expr).__name__} cannot be run by the engine virtual",
            remedy="Bind it to a variable, or use the engine threads.",
        )

    def function(
        self, name: str, args: Sequence[PerRank], entry: Entry
    ) -> Generator[None, None, PerRank]:
        """Run a function on all ranks of an entry's mesh; yields while a transfer is missing."""
        program = self.program(name)
        return (yield from self.execute(program, dict(zip(program.params, args)), entry))

    def execute(
        self, program: Program, env: dict[relax.Var, PerRank], entry: Entry
    ) -> Generator[None, None, PerRank]:
        """Run the steps of a function, or of a branch, with its variables in ``env``."""
        count = len(entry.ranks)
        for step, drops in zip(program.steps, program.last_use):
            self.progress += 1
            if isinstance(step, Segment):
                self.segment(step, env, count)
            elif isinstance(step, AliasStep):
                env[step.target] = self.evaluate(step.value, env, count)
            elif isinstance(step, CollectiveStep):
                env[step.target] = self.collective(step, env, entry)
            elif isinstance(step, CallStep):
                values = [self.evaluate(a, env, count) for a in step.args]
                env[step.target] = yield from self.function(step.callee, values, entry)
            elif isinstance(step, IfStep):
                branch = self.branch(step, env, entry)
                env[step.target] = yield from self.execute(branch, dict(env), entry)
            elif step.operand is not None:
                env[step.target] = self.send(step, env, entry)
            else:
                env[step.target] = yield from self.receive(step, entry)
            for var in drops:
                env.pop(var, None)
        return self.evaluate(program.result, env, count)

    def branch(self, step: IfStep, env: Mapping[relax.Var, PerRank], entry: Entry) -> Program:
        """The branch all ranks take."""
        values = self.evaluate(step.condition, env, len(entry.ranks))
        taken = [bool(to_array(v)) for v in values]
        if any(one != taken[0] for one in taken):
            first = taken.index(not taken[0])
            raise RuntimeError_(
                "DIST0604",
                f"ranks {entry.ranks[0]} and {entry.ranks[first]} take different branches",
                place=step.place,
                remedy="A collective is missing: the condition must be whole on every device.",
            )
        return step.then if taken[0] else step.otherwise

    def segment(self, step: Segment, env: dict[relax.Var, PerRank], count: int) -> None:
        if step not in self.machines:
            self.machines[step] = self.kernels.get(step.module, step.place)
        kernel = self.machines[step][ENTRY]
        columns: list[PerRank] = [[] for _ in step.outputs]
        for i in range(count):
            result = _tuples(kernel(*(env[v][i] for v in step.inputs)))
            for column, value in zip(columns, result):
                column.append(value)
        env.update(zip(step.outputs, columns))

    def collective(
        self, step: CollectiveStep, env: Mapping[relax.Var, PerRank], entry: Entry
    ) -> PerRank:
        call, count = step.collective, len(entry.ranks)
        place = {rank: i for i, rank in enumerate(entry.ranks)}
        operands: list[Array] = []
        if step.operand is not None:
            operands = [to_array(v) for v in self.evaluate(step.operand, env, count)]
        out: list[Value] = [None] * count
        nbytes = 0
        for group in call.groups:
            if any(rank not in place for rank in group):
                raise RuntimeError_(
                    "DIST0611",
                    f"ranks {list(group)} of another mesh than that of {entry.function}",
                    place=step.place,
                    remedy="A collective works on the mesh its function runs on.",
                )
            xs = [operands[place[r]] for r in group] if operands else []
            results = apply(call, xs, len(group))
            shared: dict[int, Any] = {}
            for rank, result in zip(group, results):
                if id(result) not in shared:
                    shared[id(result)] = to_tensor(result)
                out[place[rank]] = shared[id(result)]
            nbytes = counted_bytes(call, results[0])
        names = self.axis_names[mesh_index(self.mod, step.mesh)]
        axes = ",".join(names[a] for a in step.axes)
        self.counter.collective(call.name, axes, len(call.groups[0]), nbytes)
        return out

    def send(self, step: TransferStep, env: Mapping[relax.Var, PerRank], entry: Entry) -> PerRank:
        values = self.evaluate(step.operand, env, len(entry.ranks))
        sent = {rank: to_array(v) for rank, v in zip(entry.ranks, values)}
        self.mail.setdefault(_mail_key(step.transfer), deque()).append((step.transfer, sent))
        return values

    def receive(self, step: TransferStep, entry: Entry) -> Generator[None, None, PerRank]:
        transfer = step.transfer
        box = self.mail.setdefault(_mail_key(transfer), deque())
        while not box:
            self.waiting[entry.mesh_index] = f"ranks {list(entry.ranks)} in {step.place}"
            yield
        self.waiting.pop(entry.mesh_index, None)
        self.progress += 1
        promised, sent = box.popleft()
        if promised != transfer:
            raise RuntimeError_(
                "DIST0611",
                f"{transfer.text()}: the send has shape {promised.shape}, the receive "
                f"{transfer.shape}, or their placements differ",
                place=step.place,
                remedy="Give every transfer its own tag.",
            )
        dtype = np_dtype(step.dtype)
        size = [int(n) for n in local_shape(transfer.shape, transfer.dst[2], transfer.dst[0])]
        out = {rank: np.zeros(size, dtype) for rank in entry.ranks}
        moved = 0
        for tile in transfer.tiles():
            out[tile.dst][tile.dst_slices()] = sent[tile.src][tile.src_slices()]
            moved += tile.elements * dtype.itemsize * (tile.src != tile.dst)
        nbytes = next(iter(out.values())).nbytes
        self.counter.transfer(self.transfer_axes(transfer), len(out), nbytes, moved)
        return [to_tensor(out[rank]) for rank in entry.ranks]

    def transfer_axes(self, transfer: Transfer) -> str:
        """``"mesh0->mesh1"``."""
        ids = {tuple(e.ranks): self.mesh_names[e.mesh_index] for e in self.entries}
        return "->".join(ids.get(side[1], "?") for side in (transfer.src, transfer.dst))


class VirtualEngine(Engine):
    """Runs level-5 modules on one process, all ranks step by step.

    A deployed program holds no steps, only compiled functions: its ranks take one plain thread
    each, with the same collectives in NumPy.

    Parameters
    ----------
    kernels : KernelCache, optional
        Where compiled segments are kept; by default one cache per process.
    """

    name = "virtual"

    def __init__(self, kernels: KernelCache | None = None) -> None:
        self._kernels = kernels or _KERNELS

    def run_local(self, program: Runnable, local: LocalInputs) -> LocalResults:
        """Run every rank's entry function on its local inputs.

        Raises
        ------
        RuntimeError_
            DIST0605 for a construct it cannot run, DIST0610 when meshes wait for each other
            forever.
        """
        if not isinstance(program, Lowered):
            plain = PlainEngine()
            given = plain.run_local(program, local)
            self.collectives = plain.collectives
            return given
        found = program.entries
        state = _Run(program.mod, found, self._kernels)
        tasks = {
            i: state.function(entry.function, _columns(entry, local), entry)
            for i, entry in enumerate(found)
        }
        results = _take_turns(tasks, state)
        self.collectives = state.counter.counts()
        return {
            rank: [to_array(t) for t in flat_tensors(value)]
            for i, entry in enumerate(found)
            for rank, value in zip(entry.ranks, results[i])
        }


def _columns(entry: Entry, local: LocalInputs) -> list[PerRank]:
    """Inputs one by one, each as a tensor per rank; replicas share theirs."""
    made: dict[int, tuple[Array, Any]] = {}  # holds the array, so that no other takes its id
    columns: list[PerRank] = [[] for _ in entry.inputs]
    for rank in entry.ranks:
        for column, array in zip(columns, local.of(entry, rank)):
            if id(array) not in made:
                made[id(array)] = (array, to_tensor(array))
            column.append(made[id(array)][1])
    return columns


def _take_turns(
    tasks: dict[int, Generator[None, None, PerRank]], state: _Run
) -> dict[int, PerRank]:
    done: dict[int, PerRank] = {}
    while tasks:
        before = (state.progress, len(tasks))
        for i in list(tasks):
            try:
                next(tasks[i])
            except StopIteration as stop:
                done[i] = stop.value
                del tasks[i]
        if tasks and before == (state.progress, len(tasks)):
            if not state.waiting:
                raise InternalError("DIST0901", "entries stand still without waiting")
            raise RuntimeError_(
                "DIST0610",
                "nobody sends what they wait for: "
                + "; ".join(state.waiting[i] for i in sorted(state.waiting)),
                place="transfer",
                remedy="Order sends and receives alike on all meshes, each send with one receive.",
            )
    return done
