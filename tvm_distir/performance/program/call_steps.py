# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate calls to steps of a program, without names, operands and results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tvm import ir, relax

from tvm_distir.core.collectives import decode_transfer
from tvm_distir.core.ir import mesh_index, mesh_shape, meshes
from tvm_distir.core.ir.operators import HOST_PREFIX, call_axes
from tvm_distir.core.ir.views import first_view, moved_axes
from tvm_distir.core.ops import Kernel, is_packed_call, packed_name, size_bytes
from tvm_distir.core.plan import STORE
from tvm_distir.core.redistribution import payload_bytes
from tvm_distir.support import GenericConst

from .parts import Op, Value


def computation(kernel: Kernel) -> Op:
    """Return the computation of a call of an op or a PrimFunc."""
    if kernel.is_view:
        return Op("", "view", kernel.name)
    work = kernel.work
    return Op(
        "", "compute", kernel.name, (), (), int(work.flops), int(sum(work.in_bytes)),
        int(sum(work.out_bytes)), modelled=not kernel.reason, kernel_class=work.kernel_class,
        dtype=kernel.dtype, reason=kernel.reason,
    )  # fmt: skip


def collective(mod: ir.IRModule, kind: str, call: ir.Call, ty: Any) -> Op:
    """Return a collective with a result of type ``ty``.

    On a view of a mesh it is of the first view that the module has: its groups are the same.
    """
    view = call.attrs["device_mesh"]
    mesh = first_view(view, meshes(mod))
    axes = tuple(sorted(moved_axes(call_axes(call), view, mesh)))
    return Op(
        "", "collective", str(call.op.name), collective=kind,
        mesh=mesh_index(mod, mesh), mesh_axes=axes,
        group_size=math.prod(mesh_shape(mesh)[axis] for axis in axes),
        payload_bytes=payload_bytes(kind, call, ty),
    )  # fmt: skip


def transfer(
    mod: ir.IRModule, kind: str, call: ir.Call, result: Value, devices: Sequence[int]
) -> Op:
    """Return an end of a transfer; ``devices`` run it, where not all of its mesh do."""
    elements = decode_transfer(call).crossing_elements(kind == "send", devices)
    return Op(
        "", "transfer", str(call.op.name), collective=kind,
        mesh=mesh_index(mod, call.attrs["device_mesh"]),
        peer_mesh=mesh_index(mod, call.attrs["peer_mesh"]),
        tag=int(call.attrs["tag"]), payload_bytes=result.bytes,
        wire_bytes=size_bytes((elements,), result.dtype),
    )  # fmt: skip


def copied(call: ir.Call, operands: Sequence[Value]) -> Op | None:
    """Return a copy of tensors to the memory of the host or back; None for other calls."""
    name = packed_name(call) if is_packed_call(call) else ""
    if not name.startswith(HOST_PREFIX):
        return None
    size = sum(value.bytes for value in operands)
    return Op("", "copy", name, collective=name.removeprefix(HOST_PREFIX), payload_bytes=size)


def stored(ops: Iterable[Op]) -> Iterator[int]:
    """Yield the values that ops copy to the memory of the host."""
    for op in ops:
        if op.collective == STORE:
            yield from op.outputs


def is_nothing(call: ir.Call, ty: Any) -> bool:
    """Return whether a call without a tensor among its results runs nothing."""
    if not isinstance(call.op, ir.Op) or is_packed_call(call):
        return False
    return isinstance(ty, relax.ShapeType) or str(call.op.name) == "relax.builtin.null_value"


def constants_of(args: Sequence[Any]) -> Iterator[Any]:
    """Yield the constants among the arguments of a call, in order."""
    for arg in args:
        if type(arg) is relax.Tuple:
            yield from constants_of(arg.fields[:])
        elif type(arg) is GenericConst:
            yield arg
