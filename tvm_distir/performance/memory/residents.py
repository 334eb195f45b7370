# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""List the buffers that are there during the whole step."""

from __future__ import annotations

from tvm_distir.performance.program.parts import reached
from tvm_distir.performance.program.program import Program

from .account import INPUTS, VALUE_CATEGORIES, WEIGHTS, Label, LiveBuffer
from .buffer_names import described
from .caching_allocator import CachingAllocator


def resident_buffers(program: Program, rank: int, framework: CachingAllocator) -> list[LiveBuffer]:
    """Return the inputs, weights and constants of a device.

    Parameters
    ----------
    program : Program
    rank : int
        The number of the rank, or of the entry.
    framework : CachingAllocator
    """
    lives, names, staged = framework.lives, framework.names, program.as_stages
    inputs = [
        LiveBuffer(
            Label(names.resident(name, value.dtype), "", ""),
            VALUE_CATEGORIES.get(value.role, INPUTS),
            lives.rounded(value.bytes),
        )
        for _, name, value in staged.inputs(rank)
        if not value.is_on_host
    ]
    constants = [
        LiveBuffer(
            Label(described("constant", value), "", name), WEIGHTS, lives.rounded(value.bytes)
        )
        for name in reached(program.functions, staged.functions_of(rank))
        for value in program.functions[name].values
        if value.role == "constant"
    ]
    return [*inputs, *constants]


def weight_bytes(program: Program, rank: int) -> int:
    """Return the bytes of the weights and states on a device, and of constants."""
    staged = program.as_stages
    weights = (v for _, _, v in staged.inputs(rank) if v.role in ("weight", "state"))
    called = reached(program.functions, staged.functions_of(rank))
    values = (value for name in called for value in program.functions[name].values)
    return sum(v.bytes for v in (*weights, *(v for v in values if v.role == "constant")))
