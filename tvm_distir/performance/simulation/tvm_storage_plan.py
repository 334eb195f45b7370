# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Put the memory of an allocator other than the default into a result."""

from __future__ import annotations

import functools
from dataclasses import replace

from tvm_distir.performance.memory.account import MemoryAccount
from tvm_distir.performance.memory.planned import place_number, planned_account
from tvm_distir.performance.memory.reserved import reserved_account
from tvm_distir.performance.program.program import Program

from .device_results import DeviceGroupResult, DeviceMemory
from .result import Result


def with_allocator(result: Result, program: Program, allocator: str) -> Result:
    """Replace the memory of a result's devices by that of another allocator, a name.

    Raises
    ------
    SimulationError
        DIST0716 for a program without its storage plan.
    """
    known: dict[int, MemoryAccount] = {}
    lanes = []
    for lane in result.lanes:
        number = place_number(program, lane.devices[0])
        if number not in known:
            if allocator == "tvm":
                known[number] = planned_account(program, number)
            else:
                known[number] = reserved_account(program, number, allocator != "pytorch")
        lanes.append(replace(lane, held=functools.partial(_held, lane, known[number])))
    return replace(result, lanes=tuple(lanes), devices=result.devices.on(lanes))


def _held(lane: DeviceGroupResult, account: MemoryAccount) -> DeviceMemory:
    """Return the memory of a lane by an account instead of a framework's live blocks."""
    curve = ((0.0, account.peak_bytes),)
    return lane.held()._replace(account=account, curve=curve)
