# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Simulate a program on a system."""

from __future__ import annotations

import functools
from dataclasses import replace

from tvm import ir

from tvm_distir.core.rewriting import gc_paused
from tvm_distir.hardware import System, Systems
from tvm_distir.performance.fusion.grouped import grouped
from tvm_distir.performance.fusion.profile import Profile
from tvm_distir.performance.fusion.quantization import check_products
from tvm_distir.performance.memory.account import MemoryAccount
from tvm_distir.performance.memory.planned import ALLOCATORS, entry_number, planned_account
from tvm_distir.performance.memory.reserved import reserved_account
from tvm_distir.performance.program.exporter import export
from tvm_distir.performance.program.program import Program
from tvm_distir.support import SimulationError, Stopwatch, check_choice

from .device_results import DeviceGroupResult, DeviceMemory
from .flat import simulate_flat
from .module_times import ModuleNames
from .result import Result


@gc_paused()
def simulate(
    program: Program | ir.IRModule,
    system: Systems,
    *,
    fold_devices: bool = True,
    blocking: bool = False,
    kernels: Profile | str | None = None,
    allocator: str = "framework",
    contention: bool = False,
    overlap_optimizer: bool = False,
) -> Result:
    """Predict a step: time, memory and traffic of every device.

    Event driven: every device has a compute stream, a communication stream for collectives and
    one for sends; each runs its ops in program order, and an op starts when its operands are
    there. Of an ``If`` the more expensive branch runs (by the sum of its ops' times), as
    ``Result.branches`` says; it starts when the condition is there. Ops cost what the roofline
    says, collectives alpha-beta over the ring (see :class:`~.system.System`). Memory is
    that of a framework's allocator: blocks of 512 bytes, taken when an op is issued, free behind
    the last use in the order of issue; what replaces a parameter takes its memory.

    Parameters
    ----------
    program : Program or IRModule
        A module at level 5 is exported (:func:`tvm_distir.export`).
    system : System or str, or list
        A system, its name or its path; of unequal devices, a list of those of the stages.
    fold_devices : bool
        Whether a single device stands for all devices of its mesh, which run the same program.
        False simulates each of them, with the members of collectives tied together.
    blocking : bool
        Let collectives that are not split into a start and a done stop the compute stream, as
        an engine without a stream for them does. False: they only wait for their operands,
        and only what reads their results waits for them.
    kernels : Profile or str, optional
        The profile by which ops are grouped into kernels, see
        :func:`tvm_distir.performance.fusion.grouped`. None: that of the system.
    allocator : str
        The allocator whose memory is predicted: ``framework``; ``tvm``, the storage plan that
        the program carries (see :func:`tvm_distir.plan_storage`), as :func:`tvm_distir.run` uses
        it; ``pytorch`` or ``pytorch-expandable``, what PyTorch reserves on the device. Live memory
        over time is a line at the peak for all but ``framework``.
    contention : bool
        Let messages and collectives of a pipelined step share the links on which they meet,
        max-min fair, and let messages slow kernels beside them by the system's
        ``overlap_slowdown``, as started collectives do in any case.
    overlap_optimizer : bool
        Let the first forward pass of a pipelined step wait for each weight that is gathered at the
        beginning where a layer needs it, and reduce gradients as soon as the last backward pass
        has made them, on a separate communicator. Without, the step gathers before all
        micro-batches and reduces behind them.

    Raises
    ------
    SimulationError
        DIST0712 for a program that contradicts itself, DIST0720 when devices wait for each
        other forever, DIST0716 for a storage plan that is not there, DIST0721 for
        times that are no numbers, DIST0722 for a transfer with one
        end, DIST0723 for a pipelined step that is not to be folded, DIST0724 for contention of a
        program that is none, DIST0714 for a module that is not at level 5.
    DependencyError
        DIST0110 without the native library.
    UsageError
        DIST0152 for an unknown allocator.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> dist = td.distribute(mod, plan)
    >>> result = td.simulate(td.export(dist), "h100")
    >>> len(result.devices), result.time_s < 1e-3
    (2, True)
    """
    if not isinstance(program, Program):
        program = export(program)
    system = System.required(system)
    check_choice(allocator, "allocator", ALLOCATORS, "simulate")
    watch = Stopwatch()
    with watch.stage("kernels"):
        profile = Profile.resolve(system.kernels if kernels is None else kernels)
        for part in system.stages or (system,):
            check_products(profile, part)
        source, program, blocking = program, grouped(program, profile), blocking or profile.blocking
        modules = ModuleNames(program, source)
    if contention and not system.has_one_network:
        System.required(system, equal_for="contention of several networks")
    if program.staged is not None:
        if not fold_devices:
            raise SimulationError(
                "DIST0723", "a pipelined step is simulated with a single device per mesh",
                location="program", remedy="Expand it with ExpandSchedule, then export it.",
            )  # fmt: skip
        from .pipeline.optimizer_overlap import with_optimizer_overlap
        from .pipeline.staged import simulate_stages

        if overlap_optimizer:
            with watch.stage("build"):
                program = with_optimizer_overlap(program)
        result = simulate_stages(program, system, blocking, contention, watch, modules)
        return result if allocator == "framework" else _with_allocator(result, program, allocator)
    if contention:
        raise SimulationError(
            "DIST0724",
            "contention is simulated between the units and messages of a pipelined step, and the "
            "program is not one",
            location="program", remedy="Remove contention, or create the step with a schedule.",
        )  # fmt: skip
    result = simulate_flat(program, system, fold_devices, blocking, watch, modules)
    return result if allocator == "framework" else _with_allocator(result, program, allocator)


def _with_allocator(result: Result, program: Program, allocator: str) -> Result:
    """Replace the memory of a result's devices by that of another allocator, a name.

    Raises
    ------
    SimulationError
        DIST0716 for a program without its storage plan.
    """
    known: dict[int, MemoryAccount] = {}
    device_groups = []
    for lane in result.lanes:
        number = entry_number(program, lane.devices[0])
        if number not in known:
            if allocator == "tvm":
                known[number] = planned_account(program, number)
            else:
                known[number] = reserved_account(program, number, allocator != "pytorch")
        account = known[number]
        peak_of = functools.partial(getattr, account, "peak_bytes")
        device_groups.append(
            replace(lane, held=functools.partial(_held, lane, account), peak_of=peak_of)
        )
    return replace(result, lanes=tuple(device_groups), devices=result.devices.on(device_groups))


def _held(lane: DeviceGroupResult, account: MemoryAccount) -> DeviceMemory:
    """Return the memory of a lane by an account instead of a framework's live blocks.

    What is in the memory of the host does not depend on the allocator of the device.
    """
    memory, curve = lane.held(), ((0.0, account.peak_bytes),)
    account = replace(account, host_bytes=memory.account.host_bytes)
    return memory._replace(account=account, curve=curve)
