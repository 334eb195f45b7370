# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Type inference of the plugin's ops, for DTensors (by placement) and local tensors (by shape)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, relax, tirx
from tvm.relax.distributed import DTensorType

from ..errors import MeshError
from .mesh import mesh_shape
from .placement import R, labels_of, local_shape, parse_placement, placement_of

Infer = Callable[[ir.Call, Any], Any]


def _short(call: ir.Call) -> str:
    return str(call.op.name).removeprefix("relax.")


def _refuse(call: ir.Call, what: str, remedy: str) -> MeshError:
    return MeshError("DIST0207", what, place=f"R.{_short(call)}", remedy=remedy)


def _axis(call: ir.Call) -> int:
    axis, rank = int(call.attrs["mesh_axis"]), len(mesh_shape(call.attrs["device_mesh"]))
    if not 0 <= axis < rank:
        raise _refuse(call, f"mesh axis {axis} of a mesh with {rank} axes", f"Use 0 to {rank - 1}.")
    return axis


def _replaced(labels: Sequence[int], axis: int, label: int) -> tuple[int, ...]:
    return (*labels[:axis], label, *labels[axis + 1 :])


def _is_minor(labels: Sequence[int], axis: int, dim: int) -> bool:
    """No later mesh axis shards ``dim``: its blocks along ``axis`` are contiguous."""
    return dim not in labels[axis + 1 :]


def _change(call: ir.Call, old: int, new: int) -> DTensorType:
    """Result type when the label along the call's mesh axis changes from old to new."""
    ty, axis = call.args[0].ty, _axis(call)
    labels = labels_of(ty.placement)
    ndim = int(ty.tensor_ty.ndim)
    for dim in (old, new):
        if dim != R and not 0 <= dim < ndim:
            raise _refuse(call, f"dim {dim} of a tensor with {ndim} dims", "Name a dim it has.")
        if dim != R and not _is_minor(labels, axis, dim):
            raise _refuse(
                call,
                f"dim {dim} is sharded by a mesh axis after axis {axis} too: "
                "its blocks are not contiguous",
                "Move the later axis first.",
            )
    if labels[axis] != old:
        raise _refuse(
            call,
            f"the operand lies {ty.placement} along mesh axis {axis}",
            "Give it in the form the op starts from.",
        )
    return DTensorType(ty.tensor_ty, ty.device_mesh, placement_of(_replaced(labels, axis, new)))


def _scaled(call: ir.Call, times: int | None, over: int | None) -> relax.TensorType:
    """Local result type: dim ``times`` grows by the group size, dim ``over`` shrinks."""
    ty, n = call.args[0].ty, mesh_shape(call.attrs["device_mesh"])[_axis(call)]
    if ty.shape is None:
        raise _refuse(call, "the operand's shape is unknown", "Give it a shape.")
    shape = list(ty.shape)
    for dim in (times, over):
        if dim is not None and not 0 <= dim < len(shape):
            raise _refuse(
                call, f"dim {dim} of a tensor with {len(shape)} dims", "Name a dim it has."
            )
    if times is not None:
        shape[times] = shape[times] * n
    if over is not None:
        size = shape[over]
        if isinstance(size, tirx.IntImm) and int(size) % n:
            raise _refuse(
                call,
                f"dim {over} of size {int(size)} is not divisible by the {n} ranks of the group",
                f"Pad it to {-(-int(size) // n) * n} first.",
            )
        shape[over] = tirx.floordiv(size, n)
    return relax.TensorType(shape, ty.dtype, ty.vdevice)


def _operand(call: ir.Call) -> Any:
    if len(call.args) != 1:
        raise _refuse(call, f"{len(call.args)} operands", "Give one tensor.")
    ty = call.args[0].ty
    if not isinstance(ty, relax.TensorType | DTensorType):
        raise _refuse(call, f"an operand of type {ty}", "Give one tensor.")
    return ty


def _same(call: ir.Call, _: Any) -> Any:
    return _operand(call)


def _reduced(call: ir.Call, _: Any) -> Any:
    """all_reduce and partial: the type stays; the value must not be sharded along the axes."""
    ty = _operand(call)
    rank = len(mesh_shape(call.attrs["device_mesh"]))
    for axis in call.attrs["mesh_axes"]:
        if not 0 <= int(axis) < rank:
            raise _refuse(call, f"mesh axis {axis} of a mesh with {rank} axes", "Name its axes.")
        if isinstance(ty, DTensorType) and labels_of(ty.placement)[int(axis)] != R:
            raise _refuse(
                call,
                f"the operand is sharded along mesh axis {axis} ({ty.placement})",
                "Reduce along axes it is not sharded over.",
            )
    if str(call.attrs["op"]) not in ("sum", "prod", "min", "max"):
        raise _refuse(call, f"reduction {call.attrs['op']!r}", "Use sum, prod, min or max.")
    return ty


def _mover(old: str | None, new: str | None) -> Infer:
    """Inference of an op that goes from dim attribute ``old`` to dim attribute ``new``."""

    def infer(call: ir.Call, _: Any) -> Any:
        ty = _operand(call)
        a = None if old is None else int(call.attrs[old])
        b = None if new is None else int(call.attrs[new])
        if isinstance(ty, DTensorType):
            return _change(call, R if a is None else a, R if b is None else b)
        return _scaled(call, a, b)

    return infer


def _recv(call: ir.Call, _: Any) -> Any:
    mesh, shape = call.attrs["device_mesh"], [int(n) for n in call.attrs["shape"]]
    labels, dtype = parse_placement(str(call.attrs["placement"])), str(call.attrs["dtype"])
    if len(call.args):
        return DTensorType(relax.TensorType(shape, dtype), mesh, placement_of(labels))
    return relax.TensorType(local_shape(shape, labels, mesh_shape(mesh)), dtype)


def _index(call: ir.Call, _: Any) -> Any:
    _axis(call)
    return relax.TensorType([], "int64")


INFER: dict[str, Infer] = {
    "partial": _reduced,
    "all_reduce": _reduced,
    "all_gather": _mover("dim", None),
    "reduce_scatter": _mover(None, "dim"),
    "all_to_all": _mover("gather_dim", "split_dim"),
    "local_slice": _mover(None, "dim"),
    "collective_permute": _same,
    "send": _same,
    "recv": _recv,
    "axis_index": _index,
}
