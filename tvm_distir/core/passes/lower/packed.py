# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lower calls of packed functions, which each device calls on its local objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, relax, tirx
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir.mesh import mesh_shape, same_mesh
from tvm_distir.core.ir.placement import labels_of
from tvm_distir.core.ir.types import flat_types, tensor_type
from tvm_distir.core.ops.local.shard import Shard
from tvm_distir.core.ops.match import match_factor
from tvm_distir.core.ops.packed import (
    EFFECTS,
    PackedForm,
    interleaved_parts,
    packed_args,
    packed_form,
    packed_name,
    packed_rule,
)
from tvm_distir.core.rewriting.calls import leaves_of, location_of, tuple_of
from tvm_distir.support import GenericConst, LoweringError, PropagationError, StringImm

from .values import LocalValues

Label = int | None


def packed_call(values: LocalValues, var: relax.Var, call: ir.Call) -> ir.Call:
    """Write the local form of a call of a packed function.

    Tensors become shards, and arguments that state a shape are sharded as the tensor that they
    describe. An object has no placement: its contents are placed as the function's rule ties them
    to the tensors around it.

    Raises
    ------
    PropagationError
        DIST0405 where the placements follow no tie of the function's rule (whole tensors always
        do), DIST0401 a function that draws random numbers.
    LoweringError
        DIST0503 an operand of another mesh, DIST0507 a padded shard.
    """
    location = location_of(values.name, var, call)
    arguments = packed_args(call)
    operands = [(e, n, t) for a in arguments for e, n, t in leaves_of(a) if _counts(e, t)]
    results = [t for ty in call.ty_args for t in flat_types(ty)]
    placements = [None] * len(operands)
    rule, _ = packed_rule(call, placements)
    _, packing = packed_form(call, placements)
    ins = [None if isinstance(e, GenericConst) else _labels(t) for e, _, t in operands]
    outs = [_labels(t) for t in results]
    for axis in range(len(mesh_shape(values.mesh))):
        match_factor(
            rule, [_along(r, axis) for r in ins], [_along(r, axis) for r in outs], location
        )

    def shard(ty: ir.Type) -> Shard:
        layout = values.shard_of(ty, location)
        if layout.padded_dims:
            problem = f"a packed function would read the padding of dim {layout.padded_dims[0]}"
            remedy = "Shard a dim whose size the mesh axis divides."
            raise LoweringError("DIST0507", problem, location=location, remedy=remedy)
        return layout

    for _, _, ty in operands:
        if not isinstance(ty, DTensorType):
            continue
        if not same_mesh(ty.device_mesh, values.mesh):
            problem = "an operand is on another mesh than the object"
            remedy = "Redistribute it to the object's mesh."
            raise LoweringError("DIST0503", problem, location=location, remedy=remedy)
        shard(ty)
    parts = interleaved_parts(call)
    if parts is not None:
        _check_parts(parts, operands[-1][2], shard, location)
    types = [values.local_type(ty, location) for ty in call.ty_args]
    types_of = {"in": [t for _, _, t in operands], "out": results}
    args = [_argument(values, i, a, packing, types_of, shard) for i, a in enumerate(arguments)]
    if isinstance(call.op, ir.Op) and str(call.op.name) in EFFECTS:
        return ir.Call(call.op, args, call.attrs)
    called = relax.ExternFunc(packed_name(call))
    if isinstance(call.op, relax.ExternFunc):
        return ir.Call(called, args, call.attrs, types)
    if str(call.op.name) == "relax.call_dps_packed":
        args = [tuple_of(args)]
    return ir.Call(call.op, [called, *args], call.attrs, types)


def _check_parts(parts: int, ty: ir.Type, shard: Callable[[Any], Shard], location: str) -> None:
    """Refuse (PropagationError DIST0405) heads that are not divided as they are interleaved."""
    count = shard(ty).counts[1] if isinstance(ty, DTensorType) else 1
    if count != parts:
        problem = f"its heads are interleaved for {parts} devices, and divided among {count}"
        remedy = "Shard the fused weights along the mesh axes that divide the heads alone."
        raise PropagationError("DIST0405", problem, location=location, remedy=remedy)


def _counts(expr: ir.Expr, ty: ir.Type) -> bool:
    is_object = isinstance(ty, relax.AnyType) and type(expr) is not StringImm  # one in TVM 0.26
    return tensor_type(ty) is not None or is_object


def _labels(ty: ir.Type) -> Any:
    return labels_of(ty.placement) if isinstance(ty, DTensorType) else None


def _along(labels: Any, axis: int) -> Label:
    return None if labels is None else int(labels[axis])


def _argument(
    values: LocalValues,
    number: int,
    arg: ir.Expr,
    packing: PackedForm,
    types_of: dict[str, list[Any]],
    shard: Callable[[Any], Shard],
) -> Any:
    """Return the local form of a argument."""
    if not isinstance(arg, relax.ShapeExpr):
        scalar = isinstance(arg, StringImm | tirx.IntImm | tirx.FloatImm)
        return arg if scalar else values.local(arg)
    if number not in packing.shapes:
        return arg
    side, whose = packing.shapes[number]
    ty = types_of[side][whose]
    if not isinstance(ty, DTensorType):
        return arg
    counts = shard(ty).counts
    dims = [int(n) for n in arg.values]
    return relax.ShapeExpr([-(-n // k) for n, k in zip(dims, counts, strict=True)])
