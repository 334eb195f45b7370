# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Determine how a call can run on shards along mesh axes, and write the sharded call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.relax import Expr, Var
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir import (
    R,
    as_dtensor,
    blocks_fault,
    labels_of,
    mesh_key,
    mesh_shape,
    shard_counts,
)
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ops import Factor, call_sharding, rule_of
from tvm_distir.core.rewriting import rebuild, substitute
from tvm_distir.support import GenericConst, PropagationError

from .binding_rewriter import Editor, operands_of


@dataclass(frozen=True)
class ShardedCall:
    """Way to run a call on shards along mesh axes.

    Attributes
    ----------
    axes : tuple of int
    factor : Factor
        The factor that the call follows along them.
    operands : list of expression
        Flattened.
    """

    axes: tuple[int, ...]
    factor: Factor
    operands: list[Expr]

    @property
    def label(self) -> int:
        """Return the label of the result along the axes: a dim, or ``R`` for partial sums."""
        dim = self.factor.outs[0]
        return R if dim is None else dim


def cut_at(
    edit: Editor, call: ir.Call, axes: Sequence[int], position: int | None, dim: int
) -> ShardedCall | None:
    """Find how a call can be sharded through a dim of an operand (None: of the result)."""
    operands = operands_of(call)
    if not all(isinstance(e, GenericConst) or isinstance(e.ty, DTensorType) for e in operands):
        return None
    try:
        rule = rule_of(call, edit.mod)
    except PropagationError:
        return None
    for factor in rule.factors:
        if (factor.outs[0] if position is None else factor.ins[position]) == dim:
            break
    else:
        return None
    return ShardedCall(tuple(axes), factor, operands) if isinstance(factor.size, int) else None


def fits(cut: ShardedCall, ty: ir.Type) -> bool:
    """Return whether the devices along the axes can share the factor for a result type."""
    sizes = mesh_shape(ty.device_mesh)
    size = math.prod(sizes[axis] for axis in cut.axes)
    tied = [(e.ty, d) for e, d in zip(cut.operands, cut.factor.ins) if d is not None]
    most = size
    for own_ty, dim in [*tied, *([(ty, cut.label)] if cut.label != R else [])]:
        if not isinstance(own_ty, DTensorType):
            continue
        labels = [R if a in cut.axes else x for a, x in enumerate(labels_of(own_ty.placement))]
        if blocks_fault(labels, cut.axes, dim):
            return False
        labels = [dim if a in cut.axes else x for a, x in enumerate(labels)]
        most = max(most, shard_counts(labels, sizes, int(own_ty.tensor_ty.ndim))[dim])
    alone = len(cut.axes) == 1 and most == size
    uneven = cut.factor.uneven and (alone or not cut.factor.adjacent)
    return uneven or int(cut.factor.size) % most == 0


def on_shards(
    edit: Editor, var: Var, call: ir.Call, cut: ShardedCall, known: dict[Var, Expr]
) -> Any:
    """Write a call on shards, with ``known`` operands sliced; return None if impossible."""
    mesh, labels = var.ty.device_mesh, list(labels_of(var.ty.placement))
    dims: dict[Var, int] = {}
    for expr, dim in zip(cut.operands, cut.factor.ins):
        if isinstance(expr, GenericConst):
            if dim is not None and isinstance(expr.ty, DTensorType):
                return None  # placed whole
            continue
        full = all(labels_of(expr.ty.placement)[a] == R for a in cut.axes)
        if mesh_key(expr.ty.device_mesh) != mesh_key(mesh) or not full:
            return None
        if edit.unfinished(expr) & set(cut.axes):
            return None
        if dim is not None and dims.setdefault(expr, dim) != dim:
            return None  # the same value, cut in two ways
    if any(labels[a] != R for a in cut.axes):
        return None
    for axis in cut.axes:
        labels[axis] = cut.label
    ty = as_dtensor(var.ty, mesh, labels)

    def write(env: dict[Var, Expr]) -> ir.Call:
        return rebuild(call, call.op, [substitute(a, env) for a in call.args], ty)

    shards = {e: relax.Var("shard", _cut_type(e.ty, cut.axes, d)) for e, d in dims.items()}
    if not _follows(edit, var, write(shards)):
        return None
    for expr, dim in dims.items():
        if expr in known:
            shards[expr] = known[expr]
        else:
            slice_ = ops.local_slice(expr, mesh, cut.axes, dim)
            shards[expr] = edit.emit(slice_, f"{expr.name}_shard")
    return write(shards)


def _cut_type(ty: ir.Type, axes: Sequence[int], dim: int) -> ir.Type:
    labels = [dim if a in axes else x for a, x in enumerate(labels_of(ty.placement))]
    return as_dtensor(ty, ty.device_mesh, labels)


def _follows(edit: Editor, var: Var, call: ir.Call) -> bool:
    try:
        call_sharding(call, [call.ty], edit.mod, edit.name, var)
    except PropagationError:
        return False
    return True
