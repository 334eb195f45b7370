# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Measure the memory of the devices of an entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_distir.performance.program.parts import Entry, Value, reached
from tvm_distir.performance.program.program import Program

from .account import (
    COMMUNICATION,
    INPUTS,
    RESULTS,
    STASHES,
    TEMPORARIES,
    VALUE_ROLES,
    WEIGHTS,
    Label,
    LiveBuffer,
    MemoryAccount,
    by_role,
    holders,
)
from .best_fit import Arenas
from .buffer_lifetimes import FunctionBuffers
from .buffer_names import described
from .caching_allocator import DONATED, CachingAllocator, CallVariant
from .memory_timeline import LiveBytes

Ints = npt.NDArray[np.int64]

_PLAIN = (COMMUNICATION, TEMPORARIES)


@dataclass(frozen=True)
class EntryMemory:
    """Memory of the devices of an entry.

    Attributes
    ----------
    account : MemoryAccount
    resident_bytes : int
        There from beginning to end: inputs, weights, constants, in whole blocks.
    framework : CachingAllocator
    use : CallVariant
    """

    account: MemoryAccount
    resident_bytes: int
    framework: CachingAllocator
    use: CallVariant

    def course(self, branches: Mapping[str, str]) -> tuple[Ints, int]:
        """Return the live bytes while each op runs, in the order of issue, and behind the last.

        Parameters
        ----------
        branches : mapping of str to str
            The function that runs for each branch, ``function/binding``.
        """
        during, after = LiveBytes(self.framework, branches).of(self.use)
        return during + self.resident_bytes, after + self.resident_bytes


def entry_memory(program: Program, entry: Entry, framework: CachingAllocator) -> EntryMemory:
    """Measure an entry as a framework would run it; see :mod:`.framework`."""
    resident, use = entry_buffers(program, entry, framework)
    level = framework.level(use)
    base = sum(buffer.bytes for buffer in resident)
    arena = Arenas(framework).whole(use)
    buffers = [*resident, *framework.held(use)]
    roles = role_sums(resident)
    account = MemoryAccount(
        "framework",
        base + level.peak,
        max(0, arena - level.peak),
        framework.moment(use),
        by_role(role_sums(buffers)),
        by_role(map(sum, zip(roles, level.most, strict=True))),
        holders(buffers),
    )
    return EntryMemory(account, base, framework, use)


def entry_buffers(
    program: Program, entry: Entry, framework: CachingAllocator
) -> tuple[list[LiveBuffer], CallVariant]:
    """Return the buffers that are live from the beginning of an entry, and how it is run."""
    fn = program.functions[entry.function]
    resident = [
        *residents(framework, (fn.values[index] for index in fn.params)),
        *constants(program, framework, [entry.function]),
    ]
    return resident, _use(framework.lives[entry.function], dict(entry.alias))


def residents(framework: CachingAllocator, values: Iterable[Value]) -> list[LiveBuffer]:
    """Return the buffers that are live from the beginning."""
    return [
        LiveBuffer(
            Label(framework.names.resident(value.name, value.dtype), "", ""),
            VALUE_ROLES.get(value.role, INPUTS),
            framework.lives.rounded(value.bytes),
        )
        for value in values
    ]


def constants(
    program: Program, framework: CachingAllocator, roots: Iterable[str]
) -> list[LiveBuffer]:
    """Return the constants of functions and of all that they call."""
    return [
        LiveBuffer(
            Label(described("constant", value), "", name),
            WEIGHTS,
            framework.lives.rounded(value.bytes),
        )
        for name in reached(program.functions, roots)
        for value in program.functions[name].values
        if value.role == "constant"
    ]


def role_sums(buffers: Iterable[LiveBuffer]) -> list[int]:
    """Return the bytes by number of role."""
    sums = [0] * 8
    for buffer in buffers:
        sums[buffer.role] += buffer.bytes
    return sums


def _use(lives: FunctionBuffers, alias: Mapping[int, int]) -> CallVariant:
    """Return how an entry runs: results that replace a parameter take its memory.

    Where there are such, it is a step of training, whose first result is the loss.
    """
    roles = tuple(DONATED if place in alias else RESULTS for place in range(len(lives.results)))
    return CallVariant(
        lives.name, (), roles, tuple(sorted(_stashes(lives).items())) if alias else ()
    )


def _stashes(lives: FunctionBuffers) -> dict[int, int]:
    """Return the roles of buffers that the ops that the loss needs pass to others."""
    needed, forward = {lives.results[0]}, set[int]()
    for number in range(len(lives.steps) - 1, -1, -1):
        step = lives.steps[number]
        if needed.intersection(step.writes):
            needed.update(step.reads)
            forward.add(number)
    stashes = {}
    for number, step in enumerate(lives.steps):
        if number in forward:
            continue
        for buffer in step.reads:
            if buffer >= lives.params and lives.makers[buffer] in forward:
                stashes[buffer] = STASHES
    escaping = set(lives.results)
    return {
        b: role for b, role in stashes.items() if b not in escaping and lives.roles[b] in _PLAIN
    }
