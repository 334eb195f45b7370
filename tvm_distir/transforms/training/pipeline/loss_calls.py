# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite the calls of a loss: their operands, and a batch of a single sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tvm import ir, relax
from tvm.relax import Expr, Var

from tvm_distir.core.ir import flat_types
from tvm_distir.core.ops import Rule
from tvm_distir.core.rewriting import leaves_of, op_name, rebuild, tensor_args, tuple_of
from tvm_distir.support import ModelError

State = int | str
"""What micro-batches have of a tensor: the rows of a dim of it, all of it, or a term."""


def linear_group(rule: Rule, terms: set[int], states: Sequence[State]) -> set[int] | None:
    """Return the operands in which a call is linear, all terms among them; None without."""
    if any(isinstance(state, int) for state in states):
        return None
    return next(
        (set(group) for group in rule.linear if terms <= set(group)), None if terms else set()
    )


def with_operands(call: ir.Call, operands: Mapping[int, Var]) -> ir.Call:
    """Return a call with some of its tensors, by their numbers, replaced by others."""
    if not operands:
        return call
    number = 0

    def replaced(arg: Expr) -> Var:
        nonlocal number
        if type(arg) is relax.Tuple:
            return tuple_of([replaced(f) for f in arg.fields])
        number += len(flat_types(arg.ty))
        return operands.get(number - 1, arg) if type(arg.ty) is not relax.TupleType else arg

    tensors = tensor_args(call)
    args = [replaced(arg) if any(arg.same_as(t) for t in tensors) else arg for arg in call.args]
    return rebuild(call, call.op, args, call.ty)


def _scaled(call: ir.Call, shape: relax.ShapeExpr, dim: int, operand: Sequence[int]) -> Expr:
    """Return the shape that a call gives its result, of an operand with two samples."""
    extents = [int(n) for n in shape.values]
    position = len(extents) - len(operand) + dim
    if str(call.op.name) == "relax.reshape":
        before = math.prod(operand[:dim])
        fits = [k for k in range(len(extents)) if math.prod(extents[:k]) == before]
        position = fits[0] if fits else -1
    if position >= 0:
        extents[position] *= 2
    return relax.ShapeExpr(extents)


def refusal(var: Var, value: Expr, why: str) -> ModelError:
    """Return the error about a value of the loss, which must name the reason."""
    return ModelError(
        "DIST0354",
        f"the loss cannot be computed in micro-batches: {op_name(value)} of {var.name}: {why}",
        location="train_step (loss)",
        remedy="Write the loss as a sum or mean over the samples, divided by sums of targets or "
        "weights alone, or train without micro-batches.",
    )


def with_two_samples(call: ir.Call, states: Sequence[State]) -> ir.Call:
    """Return a call of a batch of one sample as that of a batch of two."""
    operands: dict[int, Var] = {}
    scale: tuple[int, tuple[int, ...]] | None = None
    types = [ty for arg in tensor_args(call) for _, _, ty in leaves_of(arg)]
    for i, (ty, state) in enumerate(zip(types, states, strict=True)):
        if isinstance(state, int):
            shape = [int(n) for n in ty.shape]
            scale = state, tuple(shape)
            shape[state] *= 2
            operands[i] = relax.Var("rows", relax.TensorType(shape, ty.dtype))
    call = with_operands(call, operands)
    args = list(call.args)
    if scale is not None:
        args = [
            _scaled(call, arg, *scale) if isinstance(arg, relax.ShapeExpr) else arg for arg in args
        ]
    return rebuild(call, call.op, args)
