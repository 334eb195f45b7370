# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gradients that are added to their sums as they come, in the functions that make them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

from ..parts import Function, Op
from ..program import Program
from ..staged import BACKWARD, NEXT, Role

ADD = "accumulate"
"""Name of the kernels that add to the sums of gradients."""
Place = tuple[str, int]
"""A function and one of its values."""


def accumulated(program: Program) -> Program:
    """Let gradients be added to their sums where they are made.

    A backward part that waits for its host has time for it. All micro-batches but the first add,
    and one function is called by all of them: each call moves that share of the bytes. Programs
    without stages or sums stay, and so do steps whose gradients of weights are units of their own.
    """
    staged = program.staged
    if staged is None or staged.schedule.splits_backward or staged.schedule.micro_batches < 2:
        return program
    share = 1 - 1 / staged.schedule.micro_batches
    functions = dict(program.functions)
    added: dict[Place, Op] = {}
    for role in staged.roles:
        if {BACKWARD, NEXT}.issubset(phase.name for phase in role.phases):
            for place, op in _adds(role, program.functions, share).items():
                added.setdefault(place, op)
            for name in _calls(program.functions, role.phase(NEXT).function):
                functions[name] = _idle(functions[name])
    for (name, _), op in added.items():
        fn = functions[name]
        functions[name] = dataclasses.replace(fn, ops=(*fn.ops, op))
    return dataclasses.replace(program, functions=functions)


def _adds(role: Role, functions: Mapping[str, Function], share: float) -> dict[Place, Op]:
    """What is added where: that of the whole phase, in parts as the bytes of gradients are."""
    back, following = role.phase(BACKWARD), role.phase(NEXT)
    outputs = {fn: {v: op for op in f.ops for v in op.outputs} for fn, f in functions.items()}
    results = dict(zip(back.outputs, functions[back.function].results, strict=True))
    places = [
        _maker(functions, outputs, (back.function, results[slot]))
        for slot in following.inputs
        if slot in results
    ]
    spent = [
        (op, count)
        for name, count in _calls(functions, following.function).items()
        for op in functions[name].ops
        if op.kind == "compute"
    ]
    whole = sum(functions[name].values[value].bytes for name, value in places)
    found = {}
    for name, value in dict.fromkeys(places):
        known = functions[name].values[value]
        part = share * known.bytes / whole
        flops, read, written = (
            int(part * sum(getattr(op, what) * count for op, count in spent))
            for what in ("flops", "bytes_read", "bytes_written")
        )
        found[name, value] = Op(
            f"{known.name}_added", "compute", ADD, (value,), flops=flops, bytes_read=read,
            bytes_written=written, kernel_class="memory", dtype=known.dtype,
        )  # fmt: skip
    return found


def _maker(
    functions: Mapping[str, Function], outputs: Mapping[str, Mapping[int, Op]], place: Place
) -> Place:
    """Where a value is made: in the function that is called for it, views followed."""
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


def _calls(functions: Mapping[str, Function], name: str) -> Counter[str]:
    """How often a function and those that it calls run."""
    found = Counter({name: 1})
    for op in functions[name].ops:
        for callee in op.callees:
            found.update(_calls(functions, callee))
    return found


def _idle(fn: Function) -> Function:
    """A function whose kernels take no time."""
    ops = tuple(
        op._replace(flops=0, bytes_read=0, bytes_written=0, kernel_class="view")
        if op.kind == "compute"
        else op
        for op in fn.ops
    )
    return dataclasses.replace(fn, ops=ops)
