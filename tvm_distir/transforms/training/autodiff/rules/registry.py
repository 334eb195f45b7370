# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Register gradients of ops by name, with helpers to write them.

A gradient is a function ``(result, call, gradient of the result, builder)`` to an expression
per argument; None where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import (
    astype,
    collapse_sum_to,
)

from tvm_distir.core.ir import static_shape
from tvm_distir.core.ops import note_change
from tvm_distir.core.rewriting import scalar
from tvm_distir.support import ModelError

Gradients = list[Expr | None]
"""The gradients of the arguments of a call; None where there is none."""
Gradient = Callable[[Var, ir.Call, Expr, BlockBuilder], Gradients]
GRADIENTS: dict[str, Gradient] = {}
"""The gradients by op name."""


def register_gradient(*names: str) -> Callable[[Gradient], Gradient]:
    """Register the gradient of some ops, named without ``relax.``."""

    def keep(function: Gradient) -> Gradient:
        for name in names:
            GRADIENTS[f"relax.{name}"] = function
        note_change()
        return function

    return keep


def constant_like(value: float, like: Expr) -> Expr:
    """Return a scalar constant of the dtype of a tensor."""
    return scalar(value, str(like.ty.dtype))


def shape_of(expr: Expr) -> tuple[Any, ...]:
    """Return the shape of a tensor, or ``()`` if it is unknown."""
    return static_shape(expr.ty) or ()


def refuse(call: ir.Call, problem: str) -> ModelError:
    """Return the error about an op without a known gradient."""
    remedy = "Remove it from the model, or write the gradients by hand."
    return ModelError("DIST0350", problem, location=str(call.op.name), remedy=remedy)


def fitted(builder: BlockBuilder, gradient: Expr, like: Expr) -> Expr:
    """Sum a gradient over the dims along which its value was broadcast."""
    gradient = builder.normalize(gradient)
    if shape_of(gradient) == shape_of(like):
        return gradient
    if not isinstance(gradient, ir.Var):
        gradient = builder.emit(gradient)
    return collapse_sum_to(gradient, like.ty.shape)


def unbroadcast(gradient: Expr, full: Var, like: Expr) -> Expr:
    """Sum a gradient to the shape of ``full`` without a builder, so nothing is emitted."""
    if shape_of(full) == shape_of(like):
        return gradient
    return collapse_sum_to(gradient, like.ty.shape)


def item(pair: Var, index: int) -> Expr:
    """Return a field of a tuple."""
    return relax.TupleGetItem(pair, index)


def padded(value: Expr, pads: Mapping[int, tuple[int, int]], fill: float = 0.0) -> Expr:
    """Pad some dims of a tensor, by their numbers, before and after their rows."""
    widths = [n for d in range(len(shape_of(value))) for n in pads.get(d, (0, 0))]
    return relax.op.nn.pad(value, widths, pad_value=fill)


def array_like(values: np.ndarray, like: Expr, builder: BlockBuilder) -> Expr:
    """Return a constant of the type of a tensor."""
    dtype = str(like.ty.dtype)
    if dtype in ("float32", "float64"):
        return relax.const(values.astype(dtype), dtype)
    return builder.emit(astype(relax.const(values.astype("float32"), "float32"), dtype))
