# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the kernels that Python launches on the host, per function and phase.

Functions that only call others are inlined before, so that their kernels are launched together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tvm_distir.performance.program.parts import Function, Op, Value, reached
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.stage_kind import BACKWARD, BEGIN, FORWARD

from .dataflow import Dataflow

HOST, UNIT, STEP = "host", "unit", "step"
"""Kernel classes: waiting until the host has issued ``flops`` launches of a function; what the host
does for a forward or backward pass of a micro-batch; what it does for a step."""
MOST_CALLS = 4
"""Calls of a function that is written out; a stack of many layers stays a single function."""


def with_hosts(program: Program, besides: Mapping[str, int], graphs: bool = False) -> Program:
    """Add the work of the host to each function that issues kernels from Python.

    ``besides`` says what it does in a function beyond its kernels, in launches; ``graphs``, that
    kernels are replayed from graphs, so that none is issued.

    Kernels that wait for a gradient are issued by the automatic gradient, without Python; so are
    sums and updates. A function begins with what its kernels wait for the host, all of it at once.
    """
    functions = dict(program.functions)
    marks: dict[str, list[str]] = {}
    if program.staged is None:
        reachable = set(functions)
    else:
        roots = []
        for stage_kind in program.staged.stage_kinds:
            for phase in stage_kind.phases:
                if phase.name in (FORWARD, BACKWARD):
                    roots.append(phase.function)
                    marks.setdefault(phase.function, []).append(UNIT)
                elif phase.name == BEGIN:
                    marks.setdefault(phase.function, []).append(STEP)
        reachable = reached(functions, roots)
    for name, fn in functions.items():
        count = _issued(fn) + besides[name] if name in reachable and not graphs else 0
        counts = [(mark, 1) for mark in marks.get(name, ())] + ([(HOST, count)] if count else [])
        if counts:
            added = [Op(k, "compute", k, fn.params, flops=n, kernel_class=k) for k, n in counts]
            functions[name] = dataclasses.replace(fn, ops=(*added, *fn.ops))
    return dataclasses.replace(program, functions=functions)


def _issued(fn: Function) -> int:
    """Return the kernels that Python launches."""
    late = Dataflow(fn, False).after_gradients()
    return sum(
        op.kind == "compute" and op.kernel_class != "view" and number not in late
        for number, op in enumerate(fn.ops)
    )


def without_wrappers(program: Program) -> Program:
    """Inline the callees of functions that only call, those of ``checkpoint`` among them.

    The host that issues what such a function calls does not wait between its calls, so that the
    launches of all of it are hidden behind the kernels of all of it.
    """
    roots = {entry.function for entry in program.entries}
    if program.staged is not None:
        roots |= {
            phase.function
            for stage_kind in program.staged.stage_kinds
            for phase in stage_kind.phases
        }
    functions = dict(program.functions)
    for name, fn in functions.items():
        if name not in roots and _only_calls(fn):
            functions[name] = _written_out(fn, functions)
    return dataclasses.replace(program, functions=functions)


def _only_calls(fn: Function) -> bool:
    calls = [op for op in fn.ops if op.kind == "call"]
    return 0 < len(calls) <= MOST_CALLS and all(op.kind in ("call", "view") for op in fn.ops)


def _written_out(fn: Function, functions: Mapping[str, Function]) -> Function:
    """Return a function with the ops of those that it calls."""
    values: list[Value] = list(fn.values)
    replacements: dict[int, int] = {}
    ops: list[Op] = []
    for op in fn.ops:
        if op.kind != "call":
            ops.append(_on(op, replacements))
            continue
        callee = functions[op.callee]
        arguments = (replacements.get(i, i) for i in op.inputs)
        renumbered = dict(zip(callee.params, arguments, strict=True))
        for number, value in enumerate(callee.values):
            if number not in renumbered:
                renumbered[number] = len(values)
                values.append(value)
        ops += [_on(callee_op, renumbered) for callee_op in callee.ops]
        replacements.update(
            (out, renumbered[i]) for out, i in zip(op.outputs, callee.results, strict=True)
        )
    results = tuple(replacements.get(i, i) for i in fn.results)
    return dataclasses.replace(fn, ops=tuple(ops), results=results, values=tuple(values))


def _on(op: Op, replacements: Mapping[int, int]) -> Op:
    """Return an op on other values."""
    return op._replace(
        inputs=tuple(replacements.get(i, i) for i in op.inputs),
        outputs=tuple(replacements.get(i, i) for i in op.outputs),
    )
