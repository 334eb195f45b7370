# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find which parameters, results and slots of a program hold the same values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from tvm_distir.performance.program.parts import Function, Op
from tvm_distir.performance.program.pipeline_program import PipelineProgram
from tvm_distir.performance.program.program import Program
from tvm_distir.support import lists_by_key

from .dataflow import Dataflow

VALUE, RESULT, SLOT = "value", "result", "slot"
_MOVES = ("split_concat", "relax.split", "relax.concat", "relax.permute_dims")
"""Ops that bring weights into buckets, and out of them."""

ValueKey = tuple[str, str, int]
"""A value of a function that a caller gives or a call returns; the result of a function; or, with
the number of the kind of stage in place of the function, a slot."""


class ValueUse(NamedTuple):
    """Use of a value: the function, the number of the op in it, and the value."""

    function: str
    number: int
    value: int


class PassedValues:
    """Values that functions pass to each other, as groups of places that hold the same value.

    A value that a function makes is in no group: a function may return it twice, and what its
    results hold may differ. So may what a function returns of a parameter that it quantizes.

    Parameters
    ----------
    program : Program
    flows : mapping of str to Dataflow
        Those of all functions.
    quantized : mapping of str to collection of int
        The values that each function quantizes.

    Attributes
    ----------
    members : dict of Place to list of Place
        The places of each group, by its first.
    readers : dict of Place to list of ValueUse
        The ops that read the values of each group, without views and calls.
    makers : dict of Place to list of ValueUse
        The values that functions make and pass as a value of each group, with the number of the
        call; for results the number behind all ops.
    fixed : set of Place
        Groups that the whole step is given or returns, that stages send to each other, or that
        branches read or make.
    weights : dict of Place to list of Place
        The parameters and slots of the whole step that are weights, by group.
    """

    def __init__(
        self,
        program: Program,
        flows: Mapping[str, Dataflow],
        quantized: Mapping[str, Collection[int]],
    ) -> None:
        self.program, self.flows, self._quantized = program, flows, quantized
        self._parent: dict[ValueKey, ValueKey] = {}
        self._made: list[tuple[ValueKey, ValueUse]] = []
        fixed: list[ValueKey] = []
        for name, fn in program.functions.items():
            fixed += self._function(name, fn)
        fixed += self._entries() if program.staged is None else self._stages(program.staged)
        self.fixed = {self.group(key) for key in fixed}
        self.makers = lists_by_key((self.group(key), use) for key, use in self._made)
        self.readers: dict[ValueKey, list[ValueUse]] = defaultdict(list)
        for name, flow in flows.items():
            for value, numbers in flow.readers.items():
                for number in numbers if self.is_passed(name, value) else ():
                    if not flow.fn.ops[number].callees:
                        group = self.group((VALUE, name, value))
                        self.readers[group].append(ValueUse(name, number, value))
        self.weights = lists_by_key((self.group(key), key) for key in self._full_weights())

    def group(self, key: ValueKey) -> ValueKey:
        """Return the group of a place: the place that stands for all of it."""
        parent = self._parent.setdefault(key, key)
        while parent != key:
            self._parent[key] = self._parent[parent]
            key, parent = parent, self._parent[parent]
        return key

    def is_passed(self, function: str, value: int) -> bool:
        """Return whether a value of a function is a parameter, or what a call returns."""
        flow = self.flows[function]
        maker = flow.maker.get(value)
        if maker is None:
            return flow.fn.values[value].role != "constant"
        return flow.fn.ops[maker].kind in ("call", "branch")

    def is_weight(self, function: str, value: int) -> bool:
        """Return whether a value is a weight of the step, or has been gathered from one."""
        return next(self.weights_of(function, value, moved=True), None) is not None

    def weights_of(self, function: str, value: int, moved: bool) -> Iterator[ValueKey]:
        """Yield the groups of the weights that a value is, or has been gathered from.

        Functions that several layers call have a weight of each. Weights that ops bring into
        buckets and out of them are found where ``moved`` is true.
        """
        todo, seen = [(function, value)], set[ValueKey]()
        while todo:
            name, value = todo.pop()
            flow = self.flows[name]
            value = flow.source[value]
            if not self.is_passed(name, value):
                maker = flow.maker.get(value)
                op = None if maker is None else flow.fn.ops[maker]
                moves = op is not None and moved and op.op in _MOVES
                if op is not None and (moves or op.kind in ("collective", "wait")):
                    todo += [(name, operand) for operand in op.inputs[:1]]
                continue
            group = self.group((VALUE, name, value))
            if group in self.weights:
                yield group
            elif group not in seen:
                seen.add(group)
                todo += [(use.function, use.value) for use in self.makers.get(group, ())]

    def _join(self, function: str, value: int, key: ValueKey, number: int) -> None:
        """Note that a value of a function is passed to a place by an op."""
        value = self.flows[function].source[value]
        is_copied = key[0] == RESULT and key[1] == function
        is_copied = is_copied and value in self._quantized[function]
        if self.is_passed(function, value) and not is_copied:
            self._parent[self.group((VALUE, function, value))] = self.group(key)
        else:
            self._made.append((key, ValueUse(function, number, value)))

    def _function(self, name: str, fn: Function) -> Iterator[ValueKey]:
        """Join the places of a function, and yield those that are fixed."""
        for number, op in enumerate(fn.ops):
            if op.kind == "call":
                callee = self.program.functions[op.callee]
                for value, param in zip(op.inputs, callee.params, strict=True):
                    self._join(name, value, (VALUE, op.callee, param), number)
                for at, value in enumerate(op.outputs):
                    self._join(name, value, (RESULT, op.callee, at), number)
            elif op.kind == "branch":
                yield from self._branch(name, op)
        for at, value in enumerate(fn.results):
            self._join(name, value, (RESULT, name, at), len(fn.ops))

    def _branch(self, name: str, op: Op) -> Iterator[ValueKey]:
        """Yield what a branch reads and makes."""
        flow = self.flows[name]
        yield from ((VALUE, name, flow.source[value]) for value in (*op.inputs, *op.outputs))
        for callee in op.callees:
            fn = self.program.functions[callee]
            yield from ((VALUE, callee, param) for param in fn.params)
            yield from ((RESULT, callee, at) for at in range(len(fn.results)))

    def _entries(self) -> Iterator[ValueKey]:
        """Yield what a step without stages is given and returns."""
        for entry in self.program.entries:
            fn = self.program.functions[entry.function]
            yield from ((VALUE, entry.function, param) for param in fn.params)
            yield from ((RESULT, entry.function, at) for at in range(len(fn.results)))

    def _stages(self, staged: PipelineProgram) -> Iterator[ValueKey]:
        """Join the slots of stages with what phases read and write; yield those that are fixed."""
        for number, stage_kind in enumerate(staged.stage_kinds):
            for phase in stage_kind.phases:
                fn = self.program.functions[phase.function]
                for slot, param in zip(phase.inputs, fn.params, strict=True):
                    self._link((VALUE, phase.function, param), (SLOT, str(number), slot))
                for at, slot in enumerate(phase.outputs):
                    self._link((RESULT, phase.function, at), (SLOT, str(number), slot))
            pairs = (*stage_kind.sums, *stage_kind.updates)
            for slot in (
                *stage_kind.params,
                *stage_kind.results,
                *(slot for pair in pairs for slot in pair),
            ):
                yield SLOT, str(number), slot
        for edge in staged.all_edges:
            for stage, slot in (edge.source, edge.target):
                yield SLOT, str(staged.stages[stage].role), slot

    def _link(self, key: ValueKey, other: ValueKey) -> None:
        self._parent[self.group(key)] = self.group(other)

    def _full_weights(self) -> Iterator[ValueKey]:
        """Yield the parameters and slots of the whole step that are weights."""
        if self.program.staged is None:
            for name in {entry.function: None for entry in self.program.entries}:
                fn = self.program.functions[name]
                yield from ((VALUE, name, p) for p in fn.params if fn.values[p].is_weight)
            return
        for number, stage_kind in enumerate(self.program.staged.stage_kinds):
            for slot in stage_kind.params:
                if stage_kind.slots[slot].is_weight:
                    yield SLOT, str(number), slot
