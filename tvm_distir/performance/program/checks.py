# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check a program beyond its keys and types."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from tvm_distir.support import SimulationError, nearest

from .mesh import Mesh
from .parts import Entry, Function, Op
from .pipeline_program import PipelineProgram
from .staged_checks import StagedChecks

Functions = Mapping[str, Function]

MOST_STEPS = 5_000_000
"""Steps, a single device per entry, that the simulator takes on."""


def _broken(
    location: str, problem: str, remedy: str = "Export the program again."
) -> SimulationError:
    return SimulationError("DIST0712", problem, location=location, remedy=remedy)


def check_program(
    meshes: Sequence[Mesh],
    functions: Functions,
    entries: Sequence[Entry],
    staged: PipelineProgram | None,
    location: str,
) -> None:
    """Refuse the parts of a program that contradict each other: see :meth:`.Program.check`."""
    for i, mesh in enumerate(meshes):
        _check_mesh(mesh, f"{location}/meshes[{i}]")
    for name, fn in functions.items():
        _check_function(meshes, functions, fn, f"{location}/functions/{name}")
    order = call_order(functions, location)
    if staged is not None:
        StagedChecks(meshes, functions, staged, location, _broken).run()
    else:
        _check_entries(meshes, functions, entries, location)
    steps: dict[str, int] = {}
    for name in order:
        ops = functions[name].ops
        steps[name] = sum(max([steps[callee] for callee in op.callees], default=1) for op in ops)
    roots = [entry.function for entry in entries] if staged is None else staged.functions()
    total = sum(steps[root] for root in roots)
    if total > MOST_STEPS:
        raise _broken(
            location, f"the program has {total} steps", f"Reduce it to at most {MOST_STEPS} steps."
        )


def call_order(functions: Functions, location: str = "program") -> list[str]:
    """Return the names of the functions, callees before their callers.

    Raises
    ------
    SimulationError
        DIST0713 naming a cycle.
    """
    callees = {
        name: [callee for op in fn.ops for callee in op.callees] for name, fn in functions.items()
    }
    try:
        return list(TopologicalSorter(callees).static_order())
    except CycleError as error:
        raise SimulationError(
            "DIST0713", f"functions call each other in a cycle: {' -> '.join(error.args[1][::-1])}",
            location=location, remedy="Unroll the recursion.",
        ) from error  # fmt: skip


def _check_mesh(mesh: Mesh, location: str) -> None:
    if not mesh.shape or len(mesh.axes) != len(mesh.shape):
        raise _broken(location, f"{len(mesh.axes)} axis names for the shape {list(mesh.shape)}")
    if len(set(mesh.axes)) != len(mesh.axes):
        raise _broken(location, f"an axis name occurs twice: {list(mesh.axes)}")
    if math.prod(mesh.shape) != len(mesh.device_ids):
        raise _broken(
            location, f"{len(mesh.device_ids)} device ids for the shape {list(mesh.shape)}"
        )
    if len(set(mesh.device_ids)) != len(mesh.device_ids):
        raise _broken(location, "a device id occurs twice")


def _check_entries(
    meshes: Sequence[Mesh], functions: Functions, entries: Sequence[Entry], location: str
) -> None:
    if not entries:
        raise _broken(f"{location}/entries", "no device runs a function")
    owner: dict[int, Entry] = {}
    for i, entry in enumerate(entries):
        where = f"{location}/entries[{i}]"
        if entry.function not in functions:
            known = nearest(entry.function, functions)
            raise _broken(where, f"there is no function {entry.function!r}", known)
        if entry.mesh >= len(meshes):
            raise _broken(where, f"mesh {entry.mesh} of {len(meshes)}")
        devices = entry.device_ids or meshes[entry.mesh].device_ids
        if len(set(devices)) != len(devices):
            raise _broken(where, "a device id occurs twice")
        mesh_devices = frozenset(meshes[entry.mesh].device_ids)
        if not mesh_devices.issuperset(devices):
            other = next(device for device in devices if device not in mesh_devices)
            raise _broken(where, f"device {other} is not among those of its mesh")
        if not owner.keys().isdisjoint(devices):
            clash = next(device for device in devices if device in owner)
            raise _broken(where, f"device {clash} runs {owner[clash].function} already")
        owner.update(dict.fromkeys(devices, entry))
        _check_alias(functions[entry.function], entry, where)


def _check_alias(fn: Function, entry: Entry, location: str) -> None:
    for pair in entry.alias:
        in_range = pair[0] < len(fn.results) and pair[1] < len(fn.params)
        if (
            not in_range
            or fn.values[fn.results[pair[0]]].bytes != fn.values[fn.params[pair[1]]].bytes
        ):
            raise _broken(
                location, f"result {pair[0]} cannot take the memory of parameter {pair[1]}"
            )
    for ends in zip(*entry.alias, strict=True):
        if len(set(ends)) != len(ends):
            raise _broken(location, "a result or a parameter occurs twice in alias")


def _check_function(
    meshes: Sequence[Mesh], functions: Functions, fn: Function, location: str
) -> None:
    if fn.mesh >= len(meshes):
        raise _broken(location, f"mesh {fn.mesh} of {len(meshes)}")
    count = len(fn.values)
    defined: Mapping[int, None] = {
        i: None for i, value in enumerate(fn.values) if value.role == "constant"
    }
    known = dict(defined)

    def define(index: int, where: str) -> None:
        if index >= count:
            raise _broken(where, f"value {index} of {count}")
        if index in known:
            raise _broken(where, f"value {index} ({fn.values[index].name}) is defined twice")
        known[index] = None

    def use(index: int, where: str) -> None:
        if index >= count:
            raise _broken(where, f"value {index} of {count}")
        if index not in known:
            raise _broken(
                where, f"value {index} ({fn.values[index].name}) is used before its definition"
            )

    for index in fn.params:
        define(index, f"{location}/params")
        mesh = fn.values[index].mesh
        if mesh is not None and mesh >= len(meshes):
            raise _broken(f"{location}/params", f"mesh {mesh} of {len(meshes)}")
    for i, op in enumerate(fn.ops):
        where = f"{location}/ops[{i}]"
        for index in op.inputs:
            use(index, where)
        for index in op.outputs:
            define(index, where)
        _check_op(meshes, functions, op, where)
    for index in fn.results:
        use(index, f"{location}/results")


def _check_calls(functions: Functions, op: Op, location: str) -> None:
    if op.kind == "branch" and len(op.callees) != 2:
        raise _broken(location, "a branch requires two functions")
    takes = int(op.kind == "branch")
    for name in op.callees:
        callee = functions.get(name)
        if callee is None:
            raise _broken(location, f"there is no function {name!r}", nearest(name, functions))
        takes += len(callee.params)
        if len(op.outputs) != len(callee.results):
            raise _broken(
                location,
                f"{name} returns {len(callee.results)} tensors, the call has {len(op.outputs)}",
            )
    if len(op.inputs) != takes:
        names = " and ".join(op.callees)
        raise _broken(location, f"{names} take {takes} tensors, the call has {len(op.inputs)}")


def _check_op(meshes: Sequence[Mesh], functions: Functions, op: Op, location: str) -> None:
    if op.kind in ("view", "wait") and (len(op.inputs) != 1 or len(op.outputs) != 1):
        raise _broken(location, f"a {op.kind} requires one operand and one result")
    if op.kind == "compute" and not op.modelled and not op.reason:
        raise _broken(location, "it is not modelled, and no reason is given")
    if op.kind in ("call", "branch"):
        _check_calls(functions, op, location)
    if op.kind in ("collective", "transfer") and op.mesh >= len(meshes):
        raise _broken(location, f"mesh {op.mesh} of {len(meshes)}")
    if op.kind == "transfer" and op.peer_mesh >= len(meshes):
        raise _broken(location, f"mesh {op.peer_mesh} of {len(meshes)}")
    if op.kind == "transfer" and len(op.inputs) != (op.collective == "send"):
        raise _broken(location, f"a {op.collective} with {len(op.inputs)} operands")
    if op.kind == "copy" and len(op.inputs) != len(op.outputs):
        raise _broken(location, f"a copy of {len(op.inputs)} tensors has {len(op.outputs)} results")
    if op.kind == "transfer" and len(op.outputs) != 1:
        raise _broken(location, f"a {op.collective} with {len(op.outputs)} results")
    if op.kind == "collective":
        shape = meshes[op.mesh].shape
        if not op.mesh_axes or any(axis >= len(shape) for axis in op.mesh_axes):
            raise _broken(location, f"axes {list(op.mesh_axes)} of a mesh with {len(shape)} axes")
        if len(set(op.mesh_axes)) != len(op.mesh_axes):
            raise _broken(location, f"an axis occurs twice: {list(op.mesh_axes)}")
        size = math.prod(shape[axis] for axis in op.mesh_axes)
        if op.group_size != size:
            raise _broken(location, f"groups of {op.group_size}, the axes form groups of {size}")
