# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run programs with the engine ``virtual``: all ranks in a single process, step by step.

The ranks of an entry run the same function, so each step is done for all of them before the next:
compute segments with kernels TVM compiled (each distinct segment once), collectives in NumPy.
Entries take turns: an entry that waits for a transfer, or for the other entries of a mesh that they
share, yields to the others until it can go on.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.runtime.vm import VirtualMachine

from tvm_distir.execution.runtime.collectives.fabric import worker_failed
from tvm_distir.execution.runtime.engines.local_engine import LocalEngine, RankTensors
from tvm_distir.execution.runtime.engines.threads.plain import PlainEngine
from tvm_distir.execution.runtime.program.axis_table import AxisTable
from tvm_distir.execution.runtime.program.compiled import KernelCache
from tvm_distir.execution.runtime.program.io_layout import EntryFunction
from tvm_distir.execution.runtime.program.lowered import LoweredProgram
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.execution.runtime.program.tensors import flat_tensors, is_nested, to_array
from tvm_distir.support import (
    DistIRError,
    EngineError,
    GenericConst,
    InternalError,
    Steps,
    memoized,
    resumable,
)

from .exchanges import Exchanges, PerRank, Value
from .function_steps import (
    AliasStep,
    CallStep,
    CollectiveStep,
    FunctionSteps,
    IfStep,
    Segment,
    all_steps,
    make_steps,
)

_KERNELS = KernelCache()
_CORRECT = "Correct the inputs, or what is called there."


def _tuples(value: Any) -> Value:
    """Turn FFI arrays of results into tuples; opaque objects stay."""
    return tuple(_tuples(v) for v in value) if is_nested(value) else value


class _Run:
    """Runs the steps of functions, for all ranks of an entry at a time."""

    def __init__(
        self, mod: ir.IRModule, axes: AxisTable, kernels: KernelCache, single: bool
    ) -> None:
        self.mod = relax.transform.ToNonDataflow()(mod)
        self.exchanges = Exchanges(axes)
        self.kernels = kernels
        self.single = single
        self.machines: dict[Segment, VirtualMachine] = {}

    @memoized
    def steps(self, name: str) -> FunctionSteps:
        return make_steps(self.mod, name, self.single)

    def prepare(self, names: Iterable[str]) -> None:
        """Compile together the kernels that these functions, and their callees, may need."""
        todo, known = list(names), set[str]()
        segments: list[Segment] = []
        while todo:
            name = todo.pop()
            if name in known:
                continue
            known.add(name)
            try:
                steps = list(all_steps(self.steps(name)))
            except EngineError:
                continue  # raised again if the function is called
            segments += [step for step in steps if isinstance(step, Segment)]
            todo += [step.callee for step in steps if isinstance(step, CallStep)]
        self.kernels.prepare((segment.module, segment.location) for segment in segments)

    def evaluate(self, expr: relax.Expr, env: Mapping[relax.Var, PerRank], count: int) -> PerRank:
        if isinstance(expr, relax.Var):
            return env[expr]
        if isinstance(expr, GenericConst):
            return [expr.value] * count
        if isinstance(expr, relax.Tuple):
            fields = [self.evaluate(f, env, count) for f in expr.fields]
            return [tuple(f[i] for f in fields) for i in range(count)]
        if isinstance(expr, relax.TupleGetItem):
            return [v[int(expr.index)] for v in self.evaluate(expr.tuple_value, env, count)]
        problem = f"an argument of kind {type(expr).__name__} cannot be run by the engine virtual"
        remedy = "Bind it to a variable, or use the engine threads."
        raise EngineError("DIST0605", problem, remedy=remedy)

    def function(self, name: str, args: Sequence[PerRank], entry: EntryFunction) -> Steps[PerRank]:
        """Run a function on all ranks of an entry; yields while others must go on first."""
        steps = self.steps(name)
        return (yield from self.execute(steps, dict(zip(steps.params, args)), entry))

    def execute(
        self, function: FunctionSteps, env: dict[relax.Var, PerRank], entry: EntryFunction
    ) -> Steps[PerRank]:
        """Run the steps of a function, or of a branch, with its variables in ``env``."""
        count = len(entry.ranks)
        for step, drops in zip(function.steps, function.last_use):
            self.exchanges.progress += 1
            if isinstance(step, Segment):
                self.segment(step, env, entry.ranks)
            elif isinstance(step, AliasStep):
                env[step.target] = self.evaluate(step.value, env, count)
            elif isinstance(step, CollectiveStep):
                operand = step.operand
                value = None if operand is None else self.evaluate(operand, env, count)
                env[step.target] = yield from self.exchanges.collective(step, value, entry)
            elif isinstance(step, CallStep):
                values = [self.evaluate(a, env, count) for a in step.args]
                env[step.target] = yield self.function(step.callee, values, entry)
            elif isinstance(step, IfStep):
                branch = self.branch(step, env, entry)
                env[step.target] = yield self.execute(branch, dict(env), entry)
            elif step.operand is not None:
                value = self.evaluate(step.operand, env, count)
                env[step.target] = self.exchanges.send(step, value, entry)
            else:
                env[step.target] = yield from self.exchanges.receive(step, entry)
            for var in drops:
                env.pop(var, None)
        return self.evaluate(function.result, env, count)

    def branch(
        self, step: IfStep, env: Mapping[relax.Var, PerRank], entry: EntryFunction
    ) -> FunctionSteps:
        """Return the branch that all ranks take."""
        values = self.evaluate(step.condition, env, len(entry.ranks))
        conditions = [bool(to_array(v)) for v in values]
        if any(condition != conditions[0] for condition in conditions):
            first = conditions.index(not conditions[0])
            problem = f"ranks {entry.ranks[0]} and {entry.ranks[first]} take different branches"
            remedy = "Add the missing collective: the condition must be replicated."
            raise EngineError("DIST0604", problem, location=step.location, remedy=remedy)
        return step.then if conditions[0] else step.otherwise

    def segment(self, step: Segment, env: dict[relax.Var, PerRank], ranks: Sequence[int]) -> None:
        """Run a segment on all ranks; what it raises is DIST0612 with its place, as in threads."""
        if step not in self.machines:
            self.machines[step] = self.kernels.get(step.module, step.location)
        kernel = self.machines[step]
        columns: list[PerRank] = [[] for _ in step.outputs]
        for i, rank in enumerate(ranks):
            try:
                result = _tuples(kernel(*(env[v][i] for v in step.inputs)))
            except DistIRError:
                raise
            except Exception as error:
                raise worker_failed(error, rank, step.location, _CORRECT) from error
            for column, value in zip(columns, result):
                column.append(value)
        env.update(zip(step.outputs, columns))


class VirtualEngine(LocalEngine):
    """Runs level-5 modules on a single process, all ranks step by step.

    A deployed program holds no steps, only compiled functions: its ranks take a plain thread each,
    with native collectives.

    Parameters
    ----------
    kernels : KernelCache, optional
        The cache of compiled segments; by default there is a single cache per process.
    single : bool
        Compile each op by itself, so that programs that differ in some ops share the others.
    """

    name = "virtual"

    def __init__(self, kernels: KernelCache | None = None, *, single: bool = False) -> None:
        self._kernels = kernels or _KERNELS
        self._single = single

    def run_tensors(self, program: Runnable, tensors: RankTensors) -> RankTensors:
        """Run every rank's entry function on its tensors.

        Raises
        ------
        EngineError
            DIST0605 for a construct it cannot run, DIST0610 when entries wait for each other
            forever, DIST0612 for what a kernel or a called function raises.
        """
        if not isinstance(program, LoweredProgram):
            plain = PlainEngine()
            plain_results = plain.run_tensors(program, tensors)
            self.collectives = plain.collectives
            return plain_results
        entries = program.entries
        state = _Run(program.mod, program.axes, self._kernels, self._single)
        state.prepare(entry.function for entry in entries)
        tasks = {
            i: resumable(state.function(entry.function, _columns(entry, tensors), entry))
            for i, entry in enumerate(entries)
        }
        results = _take_turns(tasks, state.exchanges)
        self.collectives = state.exchanges.counter.counts()
        return {
            rank: flat_tensors(value)
            for i, entry in enumerate(entries)
            for rank, value in zip(entry.ranks, results[i])
        }


def _columns(entry: EntryFunction, tensors: RankTensors) -> list[PerRank]:
    """Return each input as a tensor per rank."""
    return [list(column) for column in zip(*(tensors[rank] for rank in entry.ranks))]


def _take_turns(
    tasks: dict[int, Generator[None, None, PerRank]], state: Exchanges
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
            if not state.pending:
                raise InternalError("DIST0901", "entries make no progress and do not wait")
            raise EngineError(
                "DIST0610",
                "they wait for messages that are not sent, or for ranks that do not arrive: "
                + "; ".join(state.pending[i] for i in sorted(state.pending)),
                location="transfer",
                remedy="Give each send one receive; order transfers and a mesh's collectives "
                "equally in all entries.",
            )
    return done
