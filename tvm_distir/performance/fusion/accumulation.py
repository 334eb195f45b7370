# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Accumulate gradients in the functions that compute them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tvm_distir.performance.program.parts import Function, Op, reached
from tvm_distir.performance.program.pipeline_program import BACKWARD, NEXT
from tvm_distir.performance.program.program import Program

ADD = "accumulate"
"""Name of the kernels that add to the sums of gradients."""
Place = tuple[str, int]
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
    outputs = {name: {v: op for op in fn.ops for v in op.outputs} for name, fn in known.items()}
    added: dict[Place, Op] = {}
    moved: set[int] = set()
    for role in staged.roles:
        back, following = role.phase(BACKWARD), role.phase(NEXT)
        if back is None or following is None:
            continue
        names = reached(known, [following.function])
        readers = {name: _readers(known[name]) for name in names}
        results = dict(zip(back.outputs, known[back.function].results, strict=True))
        for slot, param in zip(following.inputs, known[following.function].params, strict=True):
            op = _reader(known, readers, (following.function, param)) if slot in results else None
            if op is not None:
                maker = _maker(known, outputs, (back.function, results[slot]))
                added.setdefault(maker, op)
                moved.add(id(op))
        for name in names:
            functions[name] = _without_work(functions[name], moved)
    for (name, value), op in added.items():
        fn = functions[name]
        addition = op._replace(op=ADD, inputs=(value,), outputs=())
        functions[name] = dataclasses.replace(fn, ops=(*fn.ops, addition))
    return dataclasses.replace(program, functions=functions)


def _readers(fn: Function) -> dict[int, list[Op]]:
    """Return the ops that read each value."""
    readers: dict[int, list[Op]] = {}
    for op in fn.ops:
        for value in op.inputs:
            readers.setdefault(value, []).append(op)
    return readers


def _reader(
    functions: Mapping[str, Function], readers: Mapping[str, Mapping[int, list[Op]]], place: Place
) -> Op | None:
    """Return the kernel that reads a value in its function, looking through views."""
    name, value = place
    for op in readers[name].get(value, ()):
        reader: Op | None = op
        if op.kind == "view" or op.kernel_class == "view":
            reader = _reader(functions, readers, (name, op.outputs[0]))
        elif op.kind == "call":
            param = functions[op.callee].params[op.inputs.index(value)]
            reader = _reader(functions, readers, (op.callee, param))
        if reader is not None:
            return reader
    return None


def _maker(
    functions: Mapping[str, Function], outputs: Mapping[str, Mapping[int, Op]], place: Place
) -> Place:
    """Return where a value is produced, looking through calls and views."""
    name, value = place
    op = outputs[name].get(value)
    if op is None:
        return place
    if op.kind == "view":
        return _maker(functions, outputs, (name, op.inputs[0]))
    if op.kind == "call":
        result = functions[op.callee].results[op.outputs.index(value)]
        return _maker(functions, outputs, (op.callee, result))
    return place


def _without_work(fn: Function, moved: set[int]) -> Function:
    """Return a function some of whose kernels, by their ids, take no time."""
    ops = tuple(
        op._replace(flops=0, bytes_read=0, bytes_written=0, kernel_class="view")
        if id(op) in moved
        else op
        for op in fn.ops
    )
    return dataclasses.replace(fn, ops=ops)
