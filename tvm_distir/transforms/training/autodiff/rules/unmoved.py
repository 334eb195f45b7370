# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Register ops with no gradient, an identity gradient, or an unknown gradient."""

from __future__ import annotations

from tvm import ir
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import astype
from tvm.relax.op import sum as sum_op

from tvm_distir.support import shipped_data

from .registry import Gradients, fitted, refuse, register_gradient

STEPS = (
    "ceil eye_like equal floor floor_divide grad.no_grad greater greater_equal less less_equal "
    "not_equal ones ones_like round sign trunc zeros zeros_like"
).split()
"""Ops whose results do not change with small changes of their operands, or are not to: they have no
gradient."""

MARKS = (
    "memory.ensure_zero_offset grad.start_checkpoint grad.end_checkpoint builtin.stop_lift_params "
    "to_vdevice hint_on_device dist.annotate_sharding".split()
)
"""Ops that return their operand."""

UNKNOWN: dict[str, str] = {
    op: why for why, ops in shipped_data(__file__, "refused.json").items() for op in ops
}
"""Ops with floats in and out that are refused, and why."""


@register_gradient(*STEPS)
def _none(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    return [None] * len(call.args)


@register_gradient(*MARKS)
def _same(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    return [grad, *[None] * (len(call.args) - 1)]


@register_gradient("full", "full_like")
def _full(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``full``: sum over all elements."""
    value = call.args[1]
    if grad.ty.dtype != value.ty.dtype:
        grad = builder.emit(astype(grad, str(value.ty.dtype)))
    return [None, fitted(builder, builder.emit(sum_op(grad)), value)]


@register_gradient(*UNKNOWN)
def _refused(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    raise refuse(call, UNKNOWN[str(call.op.name).removeprefix("relax.")])
