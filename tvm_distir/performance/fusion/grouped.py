# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Group a program's ops into the kernels that a backend launches."""

from __future__ import annotations

import dataclasses
import functools

from tvm_distir.performance.program.parts import Function
from tvm_distir.performance.program.program import Program

from .accumulation import accumulated
from .dataflow import Dataflow
from .fused_experts import with_fused_experts
from .fused_function import Writer
from .grouping import Grouping, plain
from .host_launches import with_hosts, without_wrappers
from .joined_kernels import joined
from .kernel_classes import classified
from .profile import Profile
from .quantization import quantized
from .quantized_copies import with_quantized_copies
from .reductions import reduced

KEPT = 256
"""Functions whose kernels are kept: equal ones are those of many programs of a sweep or search."""


def grouped(program: Program, profile: Profile | str) -> Program:
    """Group the ops of a program into the kernels that a backend launches.

    Parameters
    ----------
    program : Program
        The program, as :func:`.exporter.export` makes it.
    profile : Profile or str
        A profile, its name, or its file.

    Returns
    -------
    Program
        The same functions and results; ops that run as a single kernel become a single op, whose
        bytes are what it reads from and writes to memory. The program itself is returned for a
        profile that groups nothing, and where ops were measured: they are kernels.

    Raises
    ------
    HardwareError
        DIST0701 for an unknown profile.
    UsageError
        DIST0152 for a training step under a profile that quantizes weights alone.
    """
    resolved = Profile.resolve(profile)
    measured = any(op.measured_ps for fn in program.functions.values() for op in fn.ops)
    if resolved.changes_nothing or measured:
        return program
    program = reduced(without_wrappers(program), resolved)
    functions, besides = dict[str, Function](), dict[str, int]()
    for name, fn in program.functions.items():
        functions[name], besides[name] = _function(fn, resolved)
    program = quantized(dataclasses.replace(program, functions=functions), resolved)
    if resolved.joined:
        program = joined(program, resolved.joined)
    if resolved.experts == "fused":
        program = with_fused_experts(program)
    program = with_quantized_copies(program, resolved)
    if resolved.accumulates:
        program = accumulated(program)
    return with_hosts(program, {} if resolved.graphs else besides, resolved.graphs)


@functools.lru_cache(maxsize=KEPT)
def _function(fn: Function, profile: Profile) -> tuple[Function, int]:
    """Group a function's ops and return the additional launches of the host."""
    casts, launches = plain(Dataflow(fn, False), profile)
    flow = Dataflow(fn, profile.casts, casts)
    grouping = Grouping(flow, profile, flow.after_gradients())
    return classified(Writer(flow, grouping).run(), profile.attention_class), launches
