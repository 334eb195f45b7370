# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the buffers of a function with their producers and last readers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tvm_distir.core.analysis import last_reads
from tvm_distir.core.ir.operators import KV_APPEND_OP
from tvm_distir.performance.fusion.accumulation import reduced_in_place
from tvm_distir.performance.program.parts import Function, Op
from tvm_distir.performance.program.program import Program
from tvm_distir.support import Steps, unrolled

from .account import COMMUNICATION, TEMPORARIES, VALUE_CATEGORIES

CONSTANT = -1
"""Buffer of what is there all the time and nobody frees."""


@dataclass(frozen=True)
class MemoryStep:
    """Step that takes memory or time.

    Attributes
    ----------
    op : Op
    reads : tuple of int
        Buffers, in the order of its operands.
    writes : tuple of int
        Buffers, in the order of its results.
    new : tuple of int
        The buffers among them that it makes.
    """

    op: Op
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    new: tuple[int, ...]


@dataclass
class FunctionBuffers:
    """The buffers of a function: its parameters first, then those that its ops make.

    Attributes
    ----------
    name : str
    params : int
        The number of parameters.
    steps : list of MemoryStep
        Ops in order of issue, without views.
    sizes, categories, values : lists of int
        The bytes in whole blocks, the category and the first value of each buffer.
    makers : list of int
        The step that makes each buffer; -1 for parameters.
    ends : list of tuple of int
        The buffers that no later step reads, by step. The operand of a collective that was started
        is read until its wait, or until the end of the call that waits.
    unread : frozenset of int
        Parameters that nobody reads.
    results : tuple of int
        Buffers; they are in no ``ends``. Behind those that it gives are those that are ``lent``.
    scratch : set of int
        The buffers that a kernel allocates while it runs.
    lent : tuple of (int, int)
        The place of each result that is in flight: the buffer that the collective reads until it
        has ended.
    last : tuple of int
        The step that reads each buffer last, or makes it; -1 of a parameter that no step reads.
    """

    name: str
    params: int
    steps: list[MemoryStep] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    categories: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    makers: list[int] = field(default_factory=list)
    ends: list[tuple[int, ...]] = field(default_factory=list)
    unread: frozenset[int] = frozenset()
    results: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    scratch: set[int] = field(default_factory=set)
    lent: tuple[tuple[int, int], ...] = ()


class ProgramBuffers:
    """The buffers of all functions of a program.

    Parameters
    ----------
    program : Program
    block_bytes : int
        Sizes are multiples of it.
    """

    def __init__(self, program: Program, block_bytes: int) -> None:
        self._in_place = reduced_in_place(program)
        self.functions: Mapping[str, Function] = program.functions
        self.block_bytes = block_bytes
        self._cache: dict[str, FunctionBuffers] = {}

    def rounded(self, size_bytes: int) -> int:
        """Return a size in whole blocks."""
        return -(-size_bytes // self.block_bytes) * self.block_bytes

    def __getitem__(self, name: str) -> FunctionBuffers:
        if name not in self._cache:
            unrolled(self._take(name))
        return self._cache[name]

    def _take(self, name: str) -> Steps[None]:
        """Read a function, its callees first."""
        for callee in (callee for op in self.functions[name].ops for callee in op.callees):
            if callee not in self._cache:
                yield self._take(callee)
        reader = _Reader(self, name, self.functions[name])
        self._cache[name] = reader.run(self._in_place.get(name, frozenset()))

    def called(self, op: Op, reads: Sequence[int]) -> list[tuple[FunctionBuffers, Sequence[int]]]:
        """Return the functions that a call or branch may run, with their argument buffers."""
        first, callees = int(op.kind == "branch"), []
        for name in op.callees:
            callee = self[name]
            callees.append((callee, reads[first : first + callee.params]))
            first += callee.params
        return callees


class _Reader:
    """Reader of a function: the buffer of each value, and what each step reads."""

    def __init__(self, program: ProgramBuffers, name: str, fn: Function) -> None:
        self.program, self.fn = program, fn
        self.lives = FunctionBuffers(name, len(fn.params))
        self.at = [CONSTANT] * len(fn.values)
        self.read: list[tuple[int, ...]] = []
        self.buffers_of: dict[int, tuple[int, ...]] = {}

    def run(self, overwriting: Collection[int]) -> FunctionBuffers:
        """Read all steps; those ``overwriting`` write their results over their operands."""
        for value in self.fn.params:
            self.at[value] = self._make(value, TEMPORARIES, -1)
        for index, op in enumerate(self.fn.ops):
            if op.kind == "view":
                self.at[op.outputs[0]] = self.at[op.inputs[0]]
            else:
                self._step(op, index in overwriting)
        self._finish(tuple(self.at[i] for i in self.fn.results))
        return self.lives

    def _make(self, value: int, category: int, maker: int, size: int = -1) -> int:
        known, lives = self.fn.values[value], self.lives
        if size < 0:
            size = 0 if known.is_on_host else self.program.rounded(known.bytes)
        lives.sizes.append(size)
        lives.categories.append(VALUE_CATEGORIES.get(known.role, category))
        lives.values.append(value)
        lives.makers.append(maker)
        return len(lives.makers) - 1

    def _step(self, op: Op, overwrites: bool) -> None:
        lives, at = self.lives, self.at
        number, before = len(lives.steps), len(lives.sizes)
        reads = tuple(at[i] for i in op.inputs)
        if op.callees:
            self._call(op, reads, number)
        elif op.kind == "wait" or (op.kind == "transfer" and op.collective == "send"):
            at[op.outputs[0]] = reads[0]  # the result is the operand
        elif op.op == KV_APPEND_OP:
            at[op.outputs[0]] = reads[0]  # rows are written into the cache
        elif overwrites:
            for value, buffer in zip(op.outputs, reads, strict=True):
                at[value] = buffer
        else:
            category = TEMPORARIES if op.kind == "compute" else COMMUNICATION
            for value in op.outputs:
                at[value] = self._make(value, category, number)
        if op.scratch_bytes and op.outputs:
            size = self.program.rounded(op.scratch_bytes)
            lives.scratch.add(self._make(op.outputs[0], TEMPORARIES, number, size))
            lives.categories[-1] = TEMPORARIES
        new = tuple(range(before, len(lives.sizes)))
        if op.is_start:
            self.buffers_of.update((buffer, reads) for buffer in new)
        ended = reads if op.kind == "wait" or op.callees else ()
        others = (buffer for r in ended for buffer in self.buffers_of.pop(r, ()))
        self.read.append((*reads, *others, *new))
        lives.steps.append(MemoryStep(op, reads, tuple(at[i] for i in op.outputs), new))

    def _call(self, op: Op, reads: Sequence[int], number: int) -> None:
        known: dict[int, int] = {}
        for value, (exists, new, category, size) in zip(op.outputs, self._returned(op, reads)):
            if new is None:
                self.at[value] = exists
                continue
            if new not in known:
                known[new] = self._make(value, category, number, size)
            self.at[value] = known[new]
        callee = self.program[op.callees[0]]
        for position, lent in callee.lent:
            value = op.outputs[position]
            more = self._make(value, callee.categories[lent], number, callee.sizes[lent])
            buffer = self.at[value]
            self.buffers_of[buffer] = (*self.buffers_of.get(buffer, ()), more)

    def _finish(self, results: tuple[int, ...]) -> None:
        lives = self.lives
        lives.lent = tuple(
            (position, buffer)
            for position, result in enumerate(results)
            for buffer in dict.fromkeys(self.buffers_of.get(result, ()))
            if buffer >= lives.params and buffer not in results
        )
        lives.results = (*results, *(buffer for _, buffer in lives.lent))
        last = last_reads(self.read)
        lives.last = tuple(last.get(buffer, -1) for buffer in range(len(lives.sizes)))
        escaping = set(lives.results)
        ends: list[list[int]] = [[] for _ in lives.steps]
        for buffer, step in last.items():
            if buffer >= 0 and buffer not in escaping:
                ends[step].append(buffer)
        lives.ends = [tuple(sorted(buffers)) for buffers in ends]
        lives.unread = frozenset(range(lives.params)) - last.keys() - escaping

    def _returned(self, op: Op, reads: Sequence[int]) -> list[tuple[int, int | None, int, int]]:
        """Return, per result of a call, the argument's buffer or the callee's category and size.

        A result of a branch of which a side passes on an argument counts as a result that the
        branch makes.
        """
        called = self.program.called(op, reads)
        callee = called[0][0]
        result: list[tuple[int, int | None, int, int]] = []
        for position, buffer in enumerate(callee.results):
            returned = {
                CONSTANT if callee.results[position] < 0 else args[callee.results[position]]
                for callee, args in called
                if callee.results[position] < callee.params
            }
            same = all(callee.results[position] < callee.params for callee, _ in called)
            if same and len(returned) == 1:
                result.append((returned.pop(), None, TEMPORARIES, -1))
            elif len(called) > 1:
                result.append((CONSTANT, position, TEMPORARIES, -1))
            else:
                result.append((CONSTANT, buffer, callee.categories[buffer], callee.sizes[buffer]))
        return result
