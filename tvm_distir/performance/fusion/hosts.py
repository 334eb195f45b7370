# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the kernels that Python launches on the host, per function and phase."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tvm_distir.performance.program.parts import Function, Op, reached
from tvm_distir.performance.program.pipeline_program import BACKWARD, BEGIN, FORWARD
from tvm_distir.performance.program.program import Program

from .dataflow import Dataflow

HOST, UNIT, STEP = "host", "unit", "step"
"""Kernel classes: waiting until the host has issued ``flops`` launches of a function; what the host
does for a forward or backward pass of a micro-batch; what it does for a step."""


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
        for role in program.staged.roles:
            for phase in role.phases:
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
