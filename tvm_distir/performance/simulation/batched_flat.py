# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Simulate many steps without stages together that differ in numbers only.

A device runs the ops of a step in order, on a stream of kernels and one of collectives. Their
times are arrays with an element per step. A call like the call before it, which begins in the same
state but for a shift in time, ends in the same state but for this shift: layers are computed once
or twice, whatever their number.

A program may have several entries, each of which receives from those before it alone, as the
stages of a forward pass do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_distir.hardware import System
from tvm_distir.performance.program.numbers import Numbers
from tvm_distir.performance.program.parts import Function, Op
from tvm_distir.performance.program.program import Program
from tvm_distir.support import SimulationError

from .batched_costs import BOUNDS, BatchCosts
from .flat_times import FlatTimes, ResourceTimes
from .op_costs import COMM, COMPUTE

Ints = npt.NDArray[np.int64]

SENT = "send"
_KINDS = ("compute", "collective", "view", "call", "wait", "transfer")


@dataclass
class _State:
    """Times at which the streams are free, and for which they were busy."""

    free: list[Ints]
    busy: list[Ints]


@dataclass
class _KnownCall:
    """A call that was computed: arguments and streams before it, results and streams after it."""

    args: list[Ints]
    free: list[Ints]
    results: list[Ints]
    after: list[Ints]
    busy: list[Ints]


class FlatBatch:
    """Batch of like steps without stages.

    Parameters
    ----------
    program : Program
        The program of a step, grouped into kernels.
    system : System
    numbers : Numbers
        The numbers of the program.
    which : int64 array
        The quantity of each number of the program.
    blocking : bool
        The option, as :func:`.simulator.simulate` has it.

    Raises
    ------
    SimulationError
        DIST0760 for a program with branches, or whose entries receive from later ones.
    """

    def __init__(
        self, program: Program, system: System, numbers: Numbers, which: Ints, blocking: bool
    ) -> None:
        self.program, self.system, self.numbers, self.which = program, system, numbers, which
        self.blocking = blocking
        for name, fn in program.functions.items():
            for op in fn.ops:
                if op.kind not in _KINDS or op.is_start:
                    raise _unsupported(f"an op of kind {op.kind}", f"{name}/{op.name}")
                back = op.kind == "transfer" and (op.mesh < op.peer_mesh) != (op.collective == SENT)
                if back:
                    raise _unsupported("a message to an earlier mesh", f"{name}/{op.name}")
        order = [entry.mesh for entry in program.entries]
        if order != sorted(set(order)):
            raise _unsupported("several programs of a mesh", "program")

    def run(self, quantities: Ints) -> FlatTimes:
        """Simulate steps, of which ``quantities`` (quantities, rows) has the numbers."""
        return _Run(self, quantities).times()

    def bounded(self, quantities: Ints) -> tuple[FlatTimes, ResourceTimes]:
        """Simulate steps; return also the times of their ops by what bounds them."""
        run = _Run(self, quantities)
        return run.times(), run.resource_times()


class _Run:
    """A run of all rows."""

    def __init__(self, batch: FlatBatch, quantities: Ints) -> None:
        self.batch, self.rows = batch, quantities.shape[1]
        shape = np.zeros(self.rows, np.int64)
        self.batch_costs = BatchCosts(
            batch.program,
            batch.system,
            batch.numbers,
            batch.which,
            quantities,
            [batch.program.meshes],
            shape,
        )
        self.zero = np.zeros(self.rows, np.int64)
        self.known: dict[str, _KnownCall] = {}
        self.sent: dict[tuple[int, int, int], Ints] | None = {}

    def times(self) -> FlatTimes:
        """Return the times of the entries."""
        parts: list[Ints] = []
        busy = [self.zero, self.zero]
        end = self.zero
        for entry in self.batch.program.entries:
            state = self._entry(entry.function)
            last, end = end, np.maximum(*state.free)
            busy = [a + b for a, b in zip(busy, state.busy, strict=True)]
            alone = end
            if parts:
                sent, self.sent = self.sent, None
                alone = np.maximum(*self._entry(entry.function).free)
                self.sent = sent
                parts.append(end - last - alone)
            parts.append(alone)
        kernel_ps, collective_ps = busy[COMPUTE], busy[COMM]
        return FlatTimes(end, kernel_ps, collective_ps, self.batch_costs.fits, np.array(parts))

    def _entry(self, root: str) -> _State:
        """Run an entry; return the state behind it."""
        fn = self.batch.program.functions[root]
        state = _State([self.zero] * 2, [self.zero] * 2)
        self.known.clear()
        self._function(root, fn, [self.zero] * len(fn.params), state)
        return state

    def resource_times(self) -> ResourceTimes:
        """Return the times of ops, which run as often as their functions are called."""
        kernels: dict[str, Ints] = {}
        moved = self.zero
        for function, times in self._calls().items():
            for number, op in enumerate(self.batch.program.functions[function].ops):
                if op.kind not in ("compute", "collective") and op.collective != SENT:
                    continue
                key = self.batch_costs.key(function, number, op)
                duration, codes = self.batch_costs.of(key, op, function)
                if op.kind != "compute":
                    moved = moved + times * duration
                    continue
                name = op.title
                if name not in kernels:
                    kernels[name] = np.zeros((len(BOUNDS), self.rows), np.int64)
                kernels[name][codes, np.arange(self.rows)] += times * duration
        return ResourceTimes(kernels, moved)

    def _calls(self) -> Counter[str]:
        """Return how often each function is called, from the entries on."""
        functions = self.batch.program.functions
        calls = Counter(entry.function for entry in self.batch.program.entries)
        pending = Counter(calls)
        while pending:
            name, times = pending.popitem()
            for op in functions[name].ops:
                if op.kind == "call":
                    calls[op.callees[0]] += times
                    pending[op.callees[0]] += times
        return calls

    def _function(self, name: str, fn: Function, args: list[Ints], state: _State) -> list[Ints]:
        ready = [self.zero] * len(fn.values)
        for value, time in zip(fn.params, args, strict=True):
            ready[value] = time
        for number, op in enumerate(fn.ops):
            if op.kind == "view":
                ready[op.outputs[0]] = ready[op.inputs[0]]
                continue
            if op.kind == "call":
                results = self._call(op.callees[0], [ready[i] for i in op.inputs], state)
                for value, time in zip(op.outputs, results, strict=True):
                    ready[value] = time
                continue
            if op.kind == "transfer":
                self._transfer(name, number, op, ready)
                continue
            stream = COMM if op.kind == "collective" else COMPUTE
            start = state.free[stream]
            for i in op.inputs:
                if ready[i] is not start and ready[i] is not self.zero:
                    start = np.maximum(start, ready[i])
            blocks = stream == COMM and self.batch.blocking
            if blocks:
                start = np.maximum(start, state.free[COMPUTE])
            if op.kind == "wait":
                end = start
            else:
                duration = self.batch_costs.of(self.batch_costs.key(name, number, op), op, name)[0]
                end = start + duration
                state.busy[stream] = state.busy[stream] + duration
            state.free[stream] = end
            if blocks:
                state.free[COMPUTE] = end
            for value in op.outputs:
                ready[value] = end
        return [ready[i] for i in fn.results]

    def _transfer(self, name: str, number: int, op: Op, ready: list[Ints]) -> None:
        """Run an end of a message: both begin when its value and the sender are ready.

        A run of an entry alone has no messages: what it receives is there.
        """
        ends = (op.mesh, op.peer_mesh) if op.collective == SENT else (op.peer_mesh, op.mesh)
        if self.sent is None:
            for value in op.outputs:
                ready[value] = self.zero if op.collective != SENT else ready[op.inputs[0]]
            return
        duration = self.batch_costs.of(self.batch_costs.key(name, number, op), op, name)[0]
        if op.collective != SENT:
            for value in op.outputs:
                ready[value] = self.sent[(*ends, op.tag)] + duration
            return
        sender = (op.mesh, -1, -1)
        start = np.maximum(ready[op.inputs[0]], self.sent.get(sender, self.zero))
        self.sent[(*ends, op.tag)], self.sent[sender] = start, start + duration
        for value in op.outputs:
            ready[value] = ready[op.inputs[0]]

    def _call(self, name: str, args: list[Ints], state: _State) -> list[Ints]:
        """Run a function, or shift what it did when it was called in the same state."""
        before = _State(list(state.free), list(state.busy))
        cached = self.known.get(name)
        if cached is not None:
            shift = before.free[COMPUTE] - cached.free[COMPUTE]
            if self._shifted(cached, args, before.free, shift):
                state.free = [time + shift for time in cached.after]
                state.busy = [a + b for a, b in zip(before.busy, cached.busy, strict=True)]
                return [time + shift for time in cached.results]
        results = self._function(name, self.batch.program.functions[name], args, state)
        duration = [a - b for a, b in zip(state.busy, before.busy, strict=True)]
        self.known[name] = _KnownCall(args, before.free, results, list(state.free), duration)
        return results

    def _shifted(self, known: _KnownCall, args: list[Ints], free: list[Ints], shift: Ints) -> bool:
        """Return whether a state is a known one, shifted, but for what was ready before it."""
        if not np.array_equal(free[COMM] - known.free[COMM], shift):
            return False
        first = np.minimum(*free)
        first_known = np.minimum(*known.free)
        for new, old in zip(args, known.args, strict=True):
            if np.array_equal(new - old, shift):
                continue
            if not ((new <= first).all() and (old <= first_known).all()):
                return False
        return True


def _unsupported(feature: str, location: str) -> SimulationError:
    return SimulationError(
        "DIST0760", f"steps with {feature} cannot be simulated together",
        location=location, remedy="Simulate them one by one with td.simulate.",
    )  # fmt: skip
