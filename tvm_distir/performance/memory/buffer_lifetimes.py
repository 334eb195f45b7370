# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the buffers of a function with their producers and last readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tvm_distir.core.analysis import last_reads
from tvm_distir.core.ir.operators import KV_APPEND_OP
from tvm_distir.performance.fusion.accumulation import reduced_in_place
from tvm_distir.performance.program.parts import Function, Op
from tvm_distir.performance.program.program import Program
from tvm_distir.support import Steps, unrolled

from .account import COMMUNICATION, TEMPORARIES, VALUE_ROLES

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
    sizes, roles, values : lists of int
        The bytes in whole blocks, the role and the first value of each buffer.
    makers : list of int
        The step that makes each buffer; -1 for parameters.
    ends : list of tuple of int
        The buffers that no later step reads, by step. The operand of a collective that was started
        is read until its wait, or until the end of the call that waits.
    unread : frozenset of int
        Parameters that nobody reads.
    results : tuple of int
        Buffers; they are in no ``ends``. Behind those that it gives are those that are ``lent``.
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
    roles: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    makers: list[int] = field(default_factory=list)
    ends: list[tuple[int, ...]] = field(default_factory=list)
    unread: frozenset[int] = frozenset()
    results: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
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
        self._cache[name] = self._read(name, self.functions[name])

    def called(self, op: Op, reads: Sequence[int]) -> list[tuple[FunctionBuffers, Sequence[int]]]:
        """Return the functions that a call or branch may run, with their argument buffers."""
        first, callees = int(op.kind == "branch"), []
        for name in op.callees:
            callee = self[name]
            callees.append((callee, reads[first : first + callee.params]))
            first += callee.params
        return callees

    def _read(self, name: str, fn: Function) -> FunctionBuffers:
        lives = FunctionBuffers(name, len(fn.params))
        at = [CONSTANT] * len(fn.values)
        read: list[tuple[int, ...]] = []
        buffers_of: dict[int, tuple[int, ...]] = {}

        def make(value: int, role: int, maker: int, size: int = -1) -> int:
            lives.sizes.append(self.rounded(fn.values[value].bytes) if size < 0 else size)
            lives.roles.append(VALUE_ROLES.get(fn.values[value].role, role))
            lives.values.append(value)
            lives.makers.append(maker)
            return len(lives.makers) - 1

        for value in fn.params:
            at[value] = make(value, TEMPORARIES, -1)
        in_place = self._in_place.get(name, frozenset())
        for index, op in enumerate(fn.ops):
            if op.kind == "view":
                at[op.outputs[0]] = at[op.inputs[0]]
                continue
            number, before = len(lives.steps), len(lives.sizes)
            reads = tuple(at[i] for i in op.inputs)
            if op.callees:
                known: dict[int, int] = {}
                for value, (exists, buffer_made, role, size) in zip(
                    op.outputs, self._returned(op, reads)
                ):
                    if buffer_made is None:
                        at[value] = exists
                    elif buffer_made in known:
                        at[value] = known[buffer_made]
                    else:
                        at[value] = known[buffer_made] = make(value, role, number, size)
                callee = self[op.callees[0]]
                for place, lent_buffer in callee.lent:
                    value = op.outputs[place]
                    more = make(value, callee.roles[lent_buffer], number, callee.sizes[lent_buffer])
                    buffers_of[at[value]] = (*buffers_of.get(at[value], ()), more)
            elif op.kind == "wait" or (op.kind == "transfer" and op.collective == "send"):
                at[op.outputs[0]] = reads[0]  # the result is the operand
            elif op.op == KV_APPEND_OP:
                at[op.outputs[0]] = reads[0]  # rows are written into the cache
            elif index in in_place:
                for value, buffer in zip(op.outputs, reads, strict=True):
                    at[value] = buffer
            else:
                for value in op.outputs:
                    role = TEMPORARIES if op.kind == "compute" else COMMUNICATION
                    at[value] = make(value, role, number)
            new = tuple(range(before, len(lives.sizes)))
            if op.is_start:
                buffers_of.update((buffer, reads) for buffer in new)
            ended = reads if op.kind == "wait" or op.callees else ()
            read.append(
                (*reads, *(buffer for r in ended for buffer in buffers_of.pop(r, ())), *new)
            )
            lives.steps.append(MemoryStep(op, reads, tuple(at[i] for i in op.outputs), new))
        results = tuple(at[i] for i in fn.results)
        lives.lent = tuple(
            (place, buffer)
            for place, result in enumerate(results)
            for buffer in dict.fromkeys(buffers_of.get(result, ()))
            if buffer >= lives.params and buffer not in results
        )
        lives.results = (*results, *(buffer for _, buffer in lives.lent))
        last = last_reads(read)
        lives.last = tuple(last.get(buffer, -1) for buffer in range(len(lives.sizes)))
        escaping = set(lives.results)
        ends: list[list[int]] = [[] for _ in lives.steps]
        for buffer, step in last.items():
            if buffer >= 0 and buffer not in escaping:
                ends[step].append(buffer)
        lives.ends = [tuple(sorted(buffers)) for buffers in ends]
        lives.unread = frozenset(range(lives.params)) - last.keys() - escaping
        return lives

    def _returned(self, op: Op, reads: Sequence[int]) -> list[tuple[int, int | None, int, int]]:
        """Return, per result of a call, the argument's buffer or the callee's role and size.

        A result of a branch of which a side passes on an argument counts as a result that the
        branch makes.
        """
        called = self.called(op, reads)
        callee = called[0][0]
        result: list[tuple[int, int | None, int, int]] = []
        for place, buffer in enumerate(callee.results):
            returned = {
                CONSTANT if callee.results[place] < 0 else args[callee.results[place]]
                for callee, args in called
                if callee.results[place] < callee.params
            }
            same = all(callee.results[place] < callee.params for callee, _ in called)
            if same and len(returned) == 1:
                result.append((returned.pop(), None, TEMPORARIES, -1))
            elif len(called) > 1:
                result.append((CONSTANT, place, TEMPORARIES, -1))
            else:
                result.append((CONSTANT, buffer, callee.roles[buffer], callee.sizes[buffer]))
        return result
