# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find gathers along a ring, and softmax attention over them that is no op (level 5)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import ir
from tvm.relax import Expr, Var
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import known_shape
from tvm_distir.core.ir.operators import call_axes, dist_op_name
from tvm_distir.core.rewriting import op_name
from tvm_distir.support import reachable

Axes = Mapping[str, Collection[int]]
"""The numbers of the mesh axes that are rings, by the mesh's text."""

_VIEWS = ("astype", "permute_dims", "reshape", "expand_dims", "broadcast_to", "repeat", "multiply")


@dataclass(frozen=True)
class GatheredTensor:
    """Tensor that is gathered along a mesh axis.

    Attributes
    ----------
    block : Var
        The block that a device holds before the gather.
    mesh : DeviceMesh
    axis : int
        The mesh axis of the gather.
    dim : int
        The dim that is gathered.
    extent : int
        Extent of the dim without padding.
    """

    block: Var
    mesh: DeviceMesh
    axis: int
    dim: int
    extent: int

    @property
    def rows(self) -> int:
        """Return the extent of the dim on a device."""
        return int(self.block.ty.shape[self.dim])

    @property
    def count(self) -> int:
        """Return the number of devices along the axis."""
        return int(self.mesh.shape[self.axis])

    @property
    def padded(self) -> bool:
        """Return whether the last blocks have rows that pad the tensor."""
        return self.rows * self.count > self.extent

    def is_cut_as(self, other: GatheredTensor) -> bool:
        """Return whether the devices hold the same rows of another tensor."""
        mine, others = ((x.axis, str(x.mesh), x.rows, x.extent) for x in (self, other))
        return mine == others


def match_ring_gather(var: Var, values: Mapping[Var, Expr], axes: Axes) -> GatheredTensor | None:
    """Return the gather along a ring that a value is, with padding sliced off.

    Parameters
    ----------
    var : expression
    values : mapping of Var to expression
        The values that variables are bound to.
    axes : mapping of str to collection of int
        The axes that are rings, by the mesh's text.
    """
    extent = known_shape(var.ty) if isinstance(var, ir.Var) else None
    value: Any = values.get(var) if extent is not None else None
    if extent is None or "float" not in str(var.ty.dtype):
        return None
    if op_name(value) == "strided_slice":
        if not _from_zero(value):
            return None
        value = values.get(value.args[0])
    if dist_op_name(value) != "all_gather" or len(call_axes(value)) != 1:
        return None
    (axis,), mesh = call_axes(value), value.attrs["device_mesh"]
    if axis not in axes.get(str(mesh), ()):
        return None
    padded, dim = [int(n) for n in value.ty.shape], int(value.attrs["dim"])
    if any(a != b for d, (a, b) in enumerate(zip(padded, extent, strict=True)) if d != dim):
        return None
    return GatheredTensor(value.args[0], mesh, axis, dim, int(extent[dim]))


def _from_zero(call: ir.Call) -> bool:
    """Return whether a ``strided_slice`` takes a contiguous range from 0."""
    begins, *strides = [[int(x) for x in call.args[i].fields] for i in range(2, len(call.args), 2)]
    return not any(begins) and all(n == 1 for row in strides for n in row)


def reads_gathered_keys(value: Expr, values: Mapping[Var, Expr], axes: Axes) -> bool:
    """Return whether a value is a softmax, or its maximum, of products with gathered keys.

    Products with weights, which have no batch dims, are of other parts of a model: a router of
    experts, for example.
    """
    if op_name(value) in ("nn.attention", "nn.attention_bias"):
        return match_ring_gather(value.args[1], values, axes) is not None
    if op_name(value) not in ("nn.softmax", "max"):
        return False
    shape = str(value.args[0].ty.shape)

    def operands(scores: Var) -> list[Any]:
        call: Any = values.get(scores)
        read = call.args if isinstance(call, ir.Call) else [call]
        return [x for x in read if isinstance(x, ir.Var) and _shape(x) == shape]

    products = (values.get(scores) for scores in reachable(value.args[:1], operands))
    return any(op_name(x) == "matmul" and _is_of_keys(x, values, axes) for x in products)


def _shape(expr: Expr) -> str:
    return str(getattr(expr.ty, "shape", None))


def _is_of_keys(product: ir.Call, values: Mapping[Any, Any], axes: Axes) -> bool:
    """Return whether the second operand of a product is made of gathered keys."""
    rows, keys = product.args[0], product.args[1]
    if len(rows.ty.shape) != len(keys.ty.shape):
        return False
    while match_ring_gather(keys, values, axes) is None:
        view: Any = values.get(keys)
        if op_name(view) not in _VIEWS:
            return False
        keys = view.args[0]
    return True
