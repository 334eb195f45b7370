# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Accumulate gradients in the functions that compute them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tvm_distir.performance.program.parts import Function, Op, reached
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.stage_kind import BACKWARD, END, NEXT, StageKind

ADD = "accumulate"
"""Name of the kernels that add to the sums of gradients."""
ValueKey = tuple[str, int]
"""A function and one of its values."""


def accumulated(program: Program) -> Program:
    """Let gradients be added to their sums where they are made, by every micro-batch.

    A backward pass that waits for its host has time for it. The first micro-batch adds to zeros, as
    frameworks with buffers of sums have it. Programs without stages or sums stay, and so do steps
    whose gradients of weights are separate units.
    """
    staged = program.staged
    if staged is None or staged.schedule.splits_backward or staged.schedule.micro_batches < 2:
        return program
    known, functions = program.functions, dict(program.functions)
    added: dict[ValueKey, Op] = {}
    moved: set[int] = set()
    for stage_kind in staged.stage_kinds:
        back, following = stage_kind.phase(BACKWARD), stage_kind.phase(NEXT)
        if back is None or following is None:
            continue
        names = reached(known, [following.function])
        results = dict(zip(back.outputs, known[back.function].results, strict=True))
        for slot, param in zip(following.inputs, known[following.function].params, strict=True):
            op = _kernel(known, (following.function, param)) if slot in results else None
            if op is not None:
                added.setdefault(_maker(known, (back.function, results[slot])), op)
                moved.add(id(op))
        for name in names:
            functions[name] = _without_work(functions[name], moved)
    for (name, value), op in added.items():
        fn = functions[name]
        addition = op._replace(op=ADD, inputs=(value,), outputs=())
        functions[name] = dataclasses.replace(fn, ops=(*fn.ops, addition))
    return dataclasses.replace(program, functions=functions)


def added_in_place(program: Program, stage_kind: StageKind) -> dict[int, int]:
    """Return the slot of the sum of each gradient that its backward pass adds, by its slot.

    These are the gradients whose kernels in the phase of sums :func:`accumulated` has moved to
    where they are made: no memory holds them behind the function that makes them.
    """
    back, following = stage_kind.phase(BACKWARD), stage_kind.phase(NEXT)
    if back is None or following is None:
        return {}
    known, fn = program.functions, program.functions[following.function]
    sums: dict[int, int] = {}
    for slot, result in zip(following.outputs, fn.results, strict=True):
        name, value = _maker(known, (following.function, result))
        if slot in following.inputs and value in known[name].makers:
            sums[id(known[name].makers[value][0])] = slot
    added = {}
    for slot, param in zip(following.inputs, fn.params, strict=True):
        op = _kernel(known, (following.function, param), moved=True)
        if slot in back.outputs and op is not None and id(op) in sums:
            added[slot] = sums[id(op)]
    return added


def reduced_in_place(program: Program) -> dict[str, frozenset[int]]:
    """Return the numbers of the ops that reduce sums of gradients in their memory, by function.

    Frameworks that add gradients in place keep the sums in buffers, which a collective reads and
    writes.
    """
    positions: dict[str, frozenset[int]] = {}
    for stage_kind in program.staged.stage_kinds if program.staged is not None else ():
        end, sums = stage_kind.phase(END), set(added_in_place(program, stage_kind).values())
        if end is None or not sums:
            continue
        fn = program.functions[end.function]
        added = {p for slot, p in zip(end.inputs, fn.params, strict=True) if slot in sums}
        params = set(fn.params)  # the loss may be in the buffer as well
        positions[end.function] = frozenset(
            number
            for number, op in enumerate(fn.ops)
            if op.collective == "all_reduce"
            and len(op.inputs) == len(op.outputs)
            and not added.isdisjoint(op.inputs)
            and all(v in params and len(fn.readers[v]) == 1 for v in op.inputs)
        )
    return positions


def _kernel(functions: Mapping[str, Function], key: ValueKey, moved: bool = False) -> Op | None:
    """Return the kernel that reads a value in its function, looking through views.

    With ``moved``, it is a kernel whose work was moved elsewhere.
    """
    name, value = key
    for op, position in functions[name].readers.get(value, ()):
        reader: Op | None = op
        if op.kind == "call":
            reader = _kernel(functions, (op.callee, functions[op.callee].params[position]), moved)
        elif op.kind == "view" or (op.kernel_class == "view" and not moved):
            reader = _kernel(functions, (name, op.outputs[0]), moved)
        elif moved and op.kernel_class != "view":
            reader = None
        if reader is not None:
            return reader
    return None


def _maker(functions: Mapping[str, Function], key: ValueKey) -> ValueKey:
    """Return where a value is produced, looking through calls and views."""
    while True:
        name, value = key
        op, position = functions[name].makers.get(value, (None, 0))
        if op is not None and op.kind == "view":
            key = name, op.inputs[0]
        elif op is not None and op.kind == "call":
            key = op.callee, functions[op.callee].results[position]
        else:
            return key


def _without_work(fn: Function, moved: set[int]) -> Function:
    """Return a function whose moved ops, by identity, take no time."""
    ops = tuple(op.without_work() if id(op) in moved else op for op in fn.ops)
    return dataclasses.replace(fn, ops=ops)
