# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Account for memory by TVM's storage plan."""

from __future__ import annotations

from tvm_distir.performance.program.program import Program
from tvm_distir.support import SimulationError

from .account import (
    TEMPORARIES,
    Label,
    LiveBuffer,
    MemoryAccount,
    by_category,
    category_sums,
    holders,
)
from .caching_allocator import CachingAllocator
from .residents import resident_buffers

ALLOCATORS = ("framework", "tvm", "pytorch", "pytorch-expandable")
"""The allocators whose memory is predicted: live blocks, as a framework frees them; TVM's storage
plan; what PyTorch reserves for these blocks, the CUDA context included, also with expandable
segments."""


def entry_number(program: Program, device: int) -> int:
    """Number of the entry, or of the rank, that a device runs."""
    if program.staged is not None:
        return next(k for k, mesh in enumerate(program.meshes) if device in mesh.device_ids)
    return next(k for k, entry in enumerate(program.entries) if device in program.devices_of(entry))


def planned_account(program: Program, number: int) -> MemoryAccount:
    """Return the memory of the devices of an entry, or of a rank, where TVM runs the program.

    Parameters
    ----------
    program : Program
        The program, with its storage.
    number : int
        The number of the entry, or of the rank.

    Raises
    ------
    SimulationError
        DIST0716 for a program without its storage plan.
    """
    storage = program.storage
    if storage is None:
        problem = "the program has no storage plan"
        remedy = "Add a plan: dataclasses.replace(program, storage=td.plan_storage(module))."
        raise SimulationError("DIST0716", problem, location="program", remedy=remedy)
    resident = resident_buffers(program, number, CachingAllocator(program, block_bytes=1))
    function = storage.entries[number]
    walk = storage.walk(function)
    blocks = storage.held(function, walk.top)
    live_buffers = [
        LiveBuffer(Label(name, "", where), TEMPORARIES, size) for where, name, size in blocks
    ]
    base = sum(buffer.bytes for buffer in resident)
    buffers = [*resident, *live_buffers]
    most = category_sums(resident)
    most[TEMPORARIES] += walk.peak
    return MemoryAccount(
        "tvm",
        base + walk.peak,
        0,
        f"{live_buffers[-1].label.function}/{live_buffers[-1].label.what}"
        if live_buffers
        else function,
        by_category(category_sums(buffers)),
        by_category(most),
        holders(buffers),
    )
