# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Functions flattened into arrays, callees spliced in, each function once.

A flat function holds *tasks* in order of issue, the *buffers* they produce, and *uses*: pairs of
a task and the buffer it reads. Dependencies follow from the uses, and so do the lifetimes of
buffers. A caller copies its callee's arrays with shifted numbers, so a repeated layer costs a
few array operations, not a walk over its ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..program import Function, Op, Program, call_order, reached
from ..system import PICOSECONDS
from .costs import OpCosts, OpRow
from .lanes import Branch

Ints = npt.NDArray[np.int64]

NOTHING = -(1 << 62)
"""Reference to what is at hand all the time (a constant): nobody produces or frees it."""


@dataclass(frozen=True)
class Flat:
    """One function, its callees included.

    Attributes
    ----------
    row : int64 array (tasks,)
        Which op the task is: index into the table of rows.
    frame : int64 array (tasks,)
        Which call the task belongs to; 0 is the function itself.
    buffer_bytes, buffer_task : int64 arrays (buffers,)
        Size, and the task that produces it.
    use_task, use_ref : int64 arrays (uses,)
        A task reads a reference: a buffer, or parameter ``p`` as ``-1 - p``.
    results : int64 array
        References.
    frame_parent, frame_call : int64 arrays (frames,)
        The calling frame (before its callees; -1 for frame 0), and the number of the call in
        ``Flattener.calls`` (-1 for frame 0).
    """

    row: Ints
    frame: Ints
    buffer_bytes: Ints
    buffer_task: Ints
    use_task: Ints
    use_ref: Ints
    results: Ints
    frame_parent: Ints
    frame_call: Ints


class _Column:
    """An array that grows by single entries and by blocks."""

    def __init__(self) -> None:
        self.size = 0
        self._blocks: list[Ints] = []
        self._tail: list[int] = []

    def append(self, value: int) -> None:
        self._tail.append(value)
        self.size += 1

    def extend(self, block: Ints) -> None:
        self._flush()
        self._blocks.append(block)
        self.size += block.size

    def _flush(self) -> None:
        if self._tail:
            self._blocks.append(np.array(self._tail, np.int64))
            self._tail = []

    def array(self) -> Ints:
        self._flush()
        return np.concatenate(self._blocks) if self._blocks else np.zeros(0, np.int64)


@dataclass(frozen=True)
class CallRow:
    """A call op: where it stands, and what it calls."""

    function: str
    name: str
    callee: str


@dataclass
class Flattener:
    """Flattens the functions of a program.

    Attributes
    ----------
    rows : list of OpRow
        All ops met, with their costs.
    calls : list of CallRow
        All calls met.
    branches : list of Branch
        All branches met, and which way they go.
    """

    program: Program
    costs: OpCosts
    rows: list[OpRow] = field(default_factory=list)
    calls: list[CallRow] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)

    def flatten(self) -> dict[str, Flat]:
        """All functions that the entries reach, callees first."""
        roots = [entry.function for entry in self.program.entries]
        needed = reached(self.program.functions, roots)
        flats: dict[str, Flat] = {}
        for name in call_order(self.program.functions):
            if name in needed:
                flats[name] = self._function(name, self.program.functions[name], flats)
        return flats

    def _function(self, name: str, fn: Function, flats: dict[str, Flat]) -> Flat:
        refs = [NOTHING] * len(fn.values)
        for number, index in enumerate(fn.params):
            refs[index] = -1 - number
        row, frame, buffer_bytes, buffer_task = _Column(), _Column(), _Column(), _Column()
        use_task, use_ref, frame_parent, frame_call = _Column(), _Column(), _Column(), _Column()
        frame_parent.append(-1)
        frame_call.append(-1)
        for number, op in enumerate(fn.ops):
            if op.kind == "view":
                refs[op.outputs[0]] = refs[op.inputs[0]]
                continue
            if op.callees:
                taken, inputs = self._taken(name, op, flats)
                callee = flats[taken]
                tasks, buffers, frames = row.size, buffer_bytes.size, frame_parent.size
                args = np.array([refs[i] for i in inputs], np.int64)
                used = _substitute(callee.use_ref, buffers, args)
                there = used != NOTHING
                row.extend(callee.row)
                frame.extend(callee.frame + frames)
                buffer_bytes.extend(callee.buffer_bytes)
                buffer_task.extend(callee.buffer_task + tasks)
                use_task.extend(callee.use_task[there] + tasks)
                use_ref.extend(used[there])
                if op.kind == "branch" and refs[op.inputs[0]] != NOTHING:
                    use_task.extend(np.arange(tasks, row.size))
                    use_ref.extend(np.full(row.size - tasks, refs[op.inputs[0]], np.int64))
                parents = callee.frame_parent + frames
                parents[0] = 0
                frame_parent.extend(parents)
                inner = callee.frame_call.copy()
                inner[0] = len(self.calls)
                frame_call.extend(inner)
                self.calls.append(CallRow(name, op.name, taken))
                results = _substitute(callee.results, buffers, args)
                for index, ref in zip(op.outputs, results.tolist(), strict=True):
                    refs[index] = ref
                continue
            task = row.size
            row.append(len(self.rows))
            frame.append(0)
            self.rows.append(self.costs.row(name, number))
            for index in op.inputs:
                if refs[index] != NOTHING:
                    use_task.append(task)
                    use_ref.append(refs[index])
            if op.kind == "wait" or (op.kind == "transfer" and op.collective == "send"):
                refs[op.outputs[0]] = refs[op.inputs[0]]  # the result is the operand
                continue
            for index in op.outputs:
                refs[index] = buffer_bytes.size
                buffer_bytes.append(fn.values[index].bytes)
                buffer_task.append(task)
        return Flat(
            row=row.array(),
            frame=frame.array(),
            buffer_bytes=buffer_bytes.array(),
            buffer_task=buffer_task.array(),
            use_task=use_task.array(),
            use_ref=use_ref.array(),
            results=np.array([refs[i] for i in fn.results], np.int64),
            frame_parent=frame_parent.array(),
            frame_call=frame_call.array(),
        )

    def _taken(
        self, function: str, op: Op, flats: Mapping[str, Flat]
    ) -> tuple[str, tuple[int, ...]]:
        """Function that a call runs, with its operands; of a branch the dearer one."""
        if op.kind == "call":
            return op.callee, op.inputs
        spent_ps = [self._work_ps(flats[name]) for name in op.callees]
        number = int(spent_ps[1] > spent_ps[0])
        self.branches.append(
            Branch(
                f"{function}/{op.name}",
                op.callees[number],
                op.callees[1 - number],
                spent_ps[number] / PICOSECONDS,
                spent_ps[1 - number] / PICOSECONDS,
            )
        )
        first = 1 + number * len(self.program.functions[op.callee].params)
        count = len(self.program.functions[op.callees[number]].params)
        return op.callees[number], op.inputs[first : first + count]

    def _work_ps(self, flat: Flat) -> int:
        """Sum of the times of a function's ops."""
        return sum(self.rows[number].duration_ps for number in flat.row.tolist())


def _substitute(refs: Ints, shift: int, args: Ints) -> Ints:
    """References of a callee as the caller's: buffers shifted, parameters replaced."""
    out = refs + shift
    outer = (refs < 0) & (refs != NOTHING)
    out[refs == NOTHING] = NOTHING
    out[outer] = args[-1 - refs[outer]]
    return out


def scopes(flat: Flat, calls: Sequence[CallRow], root: str) -> list[str]:
    """Names of the frames: ``main``, ``main/layer_3``: the bindings of the calls around."""
    names: list[str] = []
    for parent, call in zip(flat.frame_parent.tolist(), flat.frame_call.tolist(), strict=True):
        names.append(root if parent < 0 else f"{names[parent]}/{calls[call].name}")
    return names
