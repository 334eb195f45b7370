# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Infers DTensor types of ops without TVM inference: the plain type, placed by the op's rule.

Without it a module that shards a convolution could be built but not parsed back. TVM's
inference functions keep answering on plain tensors and on 1-D meshes, the only meshes that TVM's
passes know; on meshes of more axes, where they lose placements, and on bfloat16, which some
of them refuse, the rule answers. Ops that take a tuple of tensors, which TVM asks for their plain
inference even on DTensors, answer as before on plain tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, relax
from tvm.ir import Call, Expr, Type
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir.mesh import mesh_shape
from tvm_distir.core.ir.operators.names import relax_names
from tvm_distir.core.ir.placement import R, placement_of
from tvm_distir.core.ir.types import flat_types, plain_type, tensor_type
from tvm_distir.core.ir.views.tilings import (
    are_views,
)
from tvm_distir.support import GenericConst

from .call_view import call_view
from .factor import Rule
from .lookup import rule_of
from .match import follows
from .packed import PACKED_OPS

TUPLE_OPS = ("relax.concat", "relax.stack", "relax.einsum", "relax.meshgrid")
NO_BFLOAT16 = tuple(
    relax_names(
        "acos acosh asin asinh atan atanh cos cosh erf exp log rsqrt sigmoid sin sinh sqrt tan "
        "tanh nn.gelu nn.gelu_tanh nn.silu nn.softmax nn.log_softmax"
    )
)
"""Ops whose DTensor inference in TVM 0.27 calls bfloat16 no float."""

KEPT = ("relax.dist.", "relax.ccl.", "relax.builtin.")
"""Families whose inference is about placements already."""

OWN_TYPES = ("relax.call_tir", "relax.call_tir_inplace", "relax.call_tir_with_grad")
"""Ops whose calls carry their result types."""

PLAIN, DIST = "FInferType", "dist.FInferType"


def _plain(expr: Expr) -> Expr:
    """Return the expression as if its tensors were not sharded."""
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_plain(f) for f in expr.fields])
    if isinstance(expr, GenericConst) and isinstance(expr.ty, DTensorType):
        return GenericConst(expr.value, expr.ty.tensor_ty)
    if any(isinstance(t, DTensorType) for t in flat_types(expr.ty)):
        return relax.Var("x", plain_type(expr.ty))
    return expr


def _leaves(args: Sequence[Expr]) -> list[Type]:
    return [t for a in args for t in flat_types(a.ty) if tensor_type(t) is not None]


def _constant_leaves(args: Sequence[Expr]) -> list[bool]:
    result: list[bool] = []
    for a in args:
        fields = a.fields if isinstance(a, relax.Tuple) else [a]
        for f in fields:
            tensors = [t for t in flat_types(f.ty) if tensor_type(t) is not None]
            result += [isinstance(f, GenericConst)] * len(tensors)
    return result


def result_labels(rule: Rule, ins: list[int | None], results: int) -> tuple[int, ...]:
    """Return the labels of the results along an axis, by the first factor the operands follow."""
    for factor in rule.factors:
        named = any(d is not None and x is not None for d, x in zip(factor.ins, ins))
        if named and follows(factor, ins, [None] * results):
            return tuple(R if d is None else d for d in factor.outs)
    return (R,) * results


def infer_dtensor(call: Call, context: relax.BlockBuilder, plain_infer: Callable[..., Any]) -> Type:
    """Infer the result type of a call on DTensors."""
    leaves, constants = _leaves(call.args), _constant_leaves(call.args)
    placed = [t for t in leaves if isinstance(t, DTensorType)]
    full = ir.Call(call.op, [_plain(a) for a in call.args], call.attrs, call.ty_args)
    plain = plain_infer(full, context)
    mesh = placed[0].device_mesh
    if any(not are_views(t.device_mesh, mesh) for t in placed):
        return plain
    mesh, labels = call_view(placed, str(call.op.name))
    rule = rule_of(full, None, plain)
    results = [t for t in flat_types(plain) if tensor_type(t) is not None]
    replicated = (R,) * len(mesh_shape(mesh))
    of_placed = iter(labels)
    columns_in = [next(of_placed) if isinstance(t, DTensorType) else replicated for t in leaves]
    rows = []
    for along in zip(*columns_in):
        ins = [None if fixed else label for label, fixed in zip(along, constants)]
        rows.append(result_labels(rule, ins, len(results)))
    columns = iter(zip(*rows))

    def distribute(ty: Type) -> Type:
        if isinstance(ty, relax.TupleType):
            return relax.TupleType([distribute(f) for f in ty.fields])
        return DTensorType(ty, mesh, placement_of(next(columns))) if tensor_type(ty) else ty

    return distribute(plain)


def _on_tuples(plain_infer: Callable[..., Any]) -> Callable[[Call, Any], Any]:
    def infer(call: Call, context: relax.BlockBuilder) -> Type:
        if any(isinstance(t, DTensorType) for t in _leaves(call.args)):
            return infer_dtensor(call, context, plain_infer)
        return plain_infer(call, context)

    return infer


def _on_tensors(plain_infer: Callable[..., Any]) -> Callable[[Call, Any], Any]:
    return lambda call, context: infer_dtensor(call, context, plain_infer)


def _beyond_stock(
    name: str, stock: Callable[..., Any], plain_infer: Callable[..., Any]
) -> Callable[[Call, Any], Any]:
    def infer(call: Call, context: relax.BlockBuilder) -> Type:
        placed = [t for t in _leaves(call.args) if isinstance(t, DTensorType)]
        several_axes = any(len(t.device_mesh.shape) > 1 for t in placed)
        if several_axes or (
            name in NO_BFLOAT16 and any(str(t.tensor_ty.dtype) == "bfloat16" for t in placed)
        ):
            return infer_dtensor(call, context, plain_infer)
        return stock(call, context)

    return infer


def register_inference() -> None:
    """Register inference where TVM has none. Called once, when the package is imported."""
    for name in sorted(ir.Op.list_op_names()):
        op = ir.Op.get(name)
        plain_infer = op.get_attr(PLAIN)
        if not str(name).startswith("relax.") or plain_infer is None:
            continue
        if name in TUPLE_OPS:
            ir.register_op_attr(name, PLAIN, _on_tuples(plain_infer), level=11)
        elif op.get_attr(DIST) is None:
            states_types = name in PACKED_OPS
            infer = plain_infer if states_types else _on_tensors(plain_infer)
            ir.register_op_attr(name, DIST, infer)
        elif not str(name).startswith(KEPT) and name not in OWN_TYPES:
            stock = op.get_attr(DIST)
            ir.register_op_attr(name, DIST, _beyond_stock(str(name), stock, plain_infer), level=11)
