# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Infer the types of the plugin's ops, for DTensors by placement and local tensors by shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, relax, tirx
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir.mesh import mesh_shape
from tvm_distir.core.ir.placement import (
    R,
    blocks_fault,
    check_placement,
    labels_of,
    local_shape,
    parse_placement,
    placement_of,
    placement_text,
)
from tvm_distir.core.ir.types import static_shape
from tvm_distir.core.ir.views.tilings import (
    are_views,
    relabelled,
)
from tvm_distir.support import MeshError

Infer = Callable[[ir.Call, Any], Any]


def _short(call: ir.Call) -> str:
    return str(call.op.name).removeprefix("relax.")


def refuse(call: ir.Call, problem: str, remedy: str) -> MeshError:
    """Return the error of a call whose operands or attributes its op does not take."""
    return MeshError("DIST0207", problem, location=f"R.{_short(call)}", remedy=remedy)


def _axes(call: ir.Call) -> tuple[int, ...]:
    """Return the sorted mesh axes of the attribute ``mesh_axis`` or ``mesh_axes``."""
    attrs = call.attrs
    value = attrs["mesh_axes"] if "mesh_axes" in attrs else attrs["mesh_axis"]
    axes = (int(value),) if isinstance(value, int) else tuple(int(a) for a in value)
    rank = len(mesh_shape(attrs["device_mesh"]))
    for axis in axes:
        if not 0 <= axis < rank:
            problem = f"mesh axis {axis} of a mesh with {rank} axes"
            raise refuse(call, problem, f"Use 0 to {rank - 1}.")
    if len(set(axes)) != len(axes) or not axes:
        raise refuse(
            call, f"the mesh axes {list(axes)}", "Name at least one axis, and each axis once."
        )
    return tuple(sorted(axes))


def _check_blocks(call: ir.Call, labels: Sequence[int], axes: Sequence[int], dim: int) -> None:
    """Refuse a step whose blocks of ``dim`` along ``axes`` are not contiguous.

    ``labels`` are those on the side of the step where the axes do not shard the dim.
    """
    why = blocks_fault(labels, axes, dim)
    if why:
        raise refuse(call, why, "Move the later axes first, or use R.dist.exchange.")


def _change(call: ir.Call, old: int, new: int, anywhere: bool) -> DTensorType:
    """Return the result type when the label along the call's mesh axes changes from old to new.

    ``anywhere``: whether the shards need not be parts of the blocks that the other axes leave.
    """
    ty, axes = call.args[0].ty, _axes(call)
    labels = labels_of(ty.placement)
    ndim = int(ty.tensor_ty.ndim)
    for dim in (old, new):
        if dim != R and not 0 <= dim < ndim:
            raise refuse(
                call, f"dim {dim} of a tensor with {ndim} dims", "Name a dim of the tensor."
            )
    if old != R and old == new:
        raise refuse(call, f"dim {old} is both concatenated and split", "Name two different dims.")
    for axis in axes:
        if labels[axis] != old:
            problem = f"the operand is placed {ty.placement} along mesh axis {axis}"
            raise refuse(call, problem, "Redistribute it to the placement that the op requires.")
    rest = tuple(R if a in axes else x for a, x in enumerate(labels))
    for dim in (old, new):
        if dim != R and not anywhere:
            _check_blocks(call, rest, axes, dim)
    after = tuple(new if a in axes else x for a, x in enumerate(labels))
    return DTensorType(ty.tensor_ty, ty.device_mesh, placement_of(after))


def _scaled(call: ir.Call, times: int | None, over: int | None) -> relax.TensorType:
    """Return the local result type: dim ``times`` grows by the group size, dim ``over`` shrinks."""
    ty, sizes = call.args[0].ty, mesh_shape(call.attrs["device_mesh"])
    n = math.prod(sizes[a] for a in _axes(call))
    if ty.shape is None:
        raise refuse(call, "the operand's shape is unknown", "Give the operand a shape.")
    shape = list(ty.shape)
    for dim in (times, over):
        if dim is not None and not 0 <= dim < len(shape):
            raise refuse(
                call, f"dim {dim} of a tensor with {len(shape)} dims", "Name a dim of the tensor."
            )
    if times is not None:
        shape[times] = shape[times] * n
    if over is not None:
        size = shape[over]
        if isinstance(size, tirx.IntImm) and int(size) % n:
            raise refuse(
                call,
                f"dim {over} of size {int(size)} is not divisible by the {n} ranks of the group",
                f"Pad it to {-(-int(size) // n) * n} first.",
            )
        shape[over] = tirx.floordiv(size, n)
    return relax.TensorType(shape, ty.dtype, ty.vdevice)


def _operand(call: ir.Call) -> ir.Type:
    if len(call.args) != 1:
        raise refuse(call, f"{len(call.args)} operands", "Pass a single tensor.")
    ty = call.args[0].ty
    if not isinstance(ty, relax.TensorType | DTensorType):
        raise refuse(call, f"an operand of type {ty}", "Pass a single tensor.")
    return ty


def _same(call: ir.Call, _: relax.BlockBuilder) -> ir.Type:
    return _operand(call)


def _shifted(call: ir.Call, _: relax.BlockBuilder) -> ir.Type:
    _axes(call)
    return _operand(call)


def _reduced(call: ir.Call, _: relax.BlockBuilder) -> ir.Type:
    """Infer the type of all_reduce and partial, whose operand is not sharded along the axes."""
    ty = _operand(call)
    for axis in _axes(call):
        if isinstance(ty, DTensorType) and labels_of(ty.placement)[axis] != R:
            problem = f"the operand is sharded along mesh axis {axis} ({ty.placement})"
            raise refuse(call, problem, "Reduce along mesh axes that do not shard the operand.")
    if str(call.attrs["op"]) not in ("sum", "prod", "min", "max"):
        raise refuse(call, f"reduction {call.attrs['op']!r}", "Use sum, prod, min or max.")
    return ty


def _mover(old: str | None, new: str | None, anywhere: bool = False) -> Infer:
    """Return the inference of an op from dim attribute ``old`` to dim attribute ``new``."""

    def infer(call: ir.Call, _: relax.BlockBuilder) -> ir.Type:
        ty = _operand(call)
        a = None if old is None else int(call.attrs[old])
        b = None if new is None else int(call.attrs[new])
        if isinstance(ty, DTensorType):
            return _change(call, R if a is None else a, R if b is None else b, anywhere)
        return _scaled(call, a, b)

    return infer


def _exchange(call: ir.Call, _: relax.BlockBuilder) -> ir.Type:
    """Infer the type of an exchange between two placements of the full ``shape`` on a mesh."""
    ty, axes, attrs = _operand(call), _axes(call), call.attrs
    mesh, shape = attrs["device_mesh"], [int(n) for n in attrs["shape"]]
    sizes = mesh_shape(mesh)
    sides = [parse_placement(str(attrs[k])) for k in ("placement", "peer_placement")]
    for labels in sides:
        check_placement(labels, sizes, len(shape), f"R.{_short(call)}")
        if any(x != R for a, x in enumerate(labels) if a not in axes):
            raise refuse(
                call,
                f'the placement "{placement_text(labels)}" shards along an axis other than '
                f"{list(axes)}",
                "Name every mesh axis that shards.",
            )
    before, after = sides
    if isinstance(ty, DTensorType):
        if labels_of(ty.placement) != before:
            raise refuse(
                call,
                f'the operand is placed "{ty.placement}", the op requires '
                f'"{placement_text(before)}"',
                "Redistribute it to the placement that the op requires.",
            )
        return DTensorType(ty.tensor_ty, ty.device_mesh, placement_of(after))
    have, want = static_shape(ty), tuple(local_shape(shape, before, sizes))
    if have is not None and have != want:
        raise refuse(call, f"a shard of shape {have}, not {want}", "Pass a padded shard.")
    return relax.TensorType(local_shape(shape, after, sizes), ty.dtype, ty.vdevice)


def _recv(call: ir.Call, _: relax.BlockBuilder) -> ir.Type:
    mesh, shape = call.attrs["device_mesh"], [int(n) for n in call.attrs["shape"]]
    labels, dtype = parse_placement(str(call.attrs["placement"])), str(call.attrs["dtype"])
    if len(call.args):
        return DTensorType(relax.TensorType(shape, dtype), mesh, placement_of(labels))
    return relax.TensorType(local_shape(shape, labels, mesh_shape(mesh)), dtype)


def _viewed(call: ir.Call, _: relax.BlockBuilder) -> ir.Type:
    """Infer the type of the same tiles on another view of the operand's mesh."""
    ty, mesh = _operand(call), call.attrs["device_mesh"]
    if not isinstance(ty, DTensorType):
        raise refuse(call, f"an operand of type {ty}", "Pass a DTensor: level 5 has no views.")
    if not are_views(ty.device_mesh, mesh):
        problem = "the mesh is no view of the operand's: it is no transpose of its device ids"
        raise refuse(call, problem, "Use R.dist.redistribute between different meshes.")
    labels = relabelled(labels_of(ty.placement), ty.device_mesh, mesh, int(ty.tensor_ty.ndim))
    if labels is None:
        problem = (
            f"several mesh axes shard a dim of the operand ({ty.placement}) in an order that the "
            "axes of the mesh do not have"
        )
        raise refuse(call, problem, "Use R.dist.redistribute, which moves the shards.")
    return DTensorType(ty.tensor_ty, mesh, placement_of(labels))


def _index(call: ir.Call, _: relax.BlockBuilder) -> ir.Type:
    _axes(call)
    return relax.TensorType([], "int64")


INFER: dict[str, Infer] = {
    "partial": _reduced,
    "all_reduce": _reduced,
    "all_gather": _mover("dim", None),
    "reduce_scatter": _mover(None, "dim", anywhere=True),
    "all_to_all": _mover("gather_dim", "split_dim"),
    "local_slice": _mover(None, "dim"),
    "collective_permute": _shifted,
    "exchange": _exchange,
    "send": _same,
    "recv": _recv,
    "axis_index": _index,
    "view": _viewed,
}
