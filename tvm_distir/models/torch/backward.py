# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate backward operators that torch does not decompose."""

from __future__ import annotations

import math

from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.translation import Unsupported, dtype_of, shape_of
from tvm_distir.transforms import argument_gradients

from .aten_call import AtenCall, Converter, constant
from .contraction import sizes
from .windows import window

_op = relax.op


def _embedding(call: AtenCall) -> Expr:
    """Sum the rows of the gradient by index, without those of the padding index."""
    gradient, index = call["grad_output"], call["indices"]
    if call["scale_grad_by_freq"]:
        raise Unsupported("gradients scaled by the frequency of an index")
    count, width, kind = math.prod(shape_of(index)), shape_of(gradient)[-1], dtype_of(gradient)
    if call["padding_idx"] >= 0:
        valid = call.emit(_op.not_equal(index, constant(call["padding_idx"], dtype_of(index))))
        valid = call.emit(_op.expand_dims(call.cast(valid, kind), -1))
        gradient = call.emit(_op.multiply(gradient, valid))
    table = call.emit(_op.zeros((int(call["num_weights"]), width), kind))
    rows, index = call.reshaped(gradient, [count, width]), call.reshaped(index, [count])
    return call.emit(_op.grad.take_backward(rows, table, index, axis=0))


def _convolution(call: AtenCall) -> Expr:
    """Return the gradients of the image, the kernel and the bias."""
    gradient, x, w = call["grad_output"], call["input"], call["weight"]
    rank = len(shape_of(w)) - 2
    if call["transposed"]:
        raise Unsupported("the gradient of a transposed convolution")
    forward = getattr(_op.nn, f"conv{rank}d")(
        x,
        w,
        strides=sizes(call["stride"], rank),
        padding=sizes(call["padding"], rank) * 2,
        dilation=sizes(call["dilation"], rank),
        groups=int(call["groups"]),
    )
    parts = argument_gradients(call.builder, forward, gradient)
    mask, others = call["output_mask"], [0, *range(2, rank + 2)]
    results = [call.emit(parts[i]) if mask[i] else call.absent(i) for i in (0, 1)]
    bias = call.in_float32(lambda g: _op.sum(g, others), gradient) if mask[2] else None
    return [*results, call.absent(2) if bias is None else bias]


def _max_pool(call: AtenCall) -> Expr:
    kernel, options = window(call, 2)
    dilation = tuple(sizes(call["dilation"], 2))

    def through(gradient: Expr, x: Expr) -> Expr:
        pool = _op.nn.max_pool2d(x, kernel, dilation=dilation, **options)
        return argument_gradients(call.builder, pool, gradient)[0]

    return call.in_float32(through, call["grad_output"], call["self"])


def _avg_pool(call: AtenCall) -> Expr:
    if call["divisor_override"] is not None:
        raise Unsupported("an average pool with divisor_override")
    kernel, options = window(call, 2)
    options["count_include_pad"] = bool(call["count_include_pad"])
    pool = _op.nn.avg_pool2d(call["self"], kernel, **options)
    return call.emit(argument_gradients(call.builder, pool, call["grad_output"])[0])


CONVERTERS: dict[str, Converter] = {
    "embedding_dense_backward.default": _embedding,
    "convolution_backward.default": _convolution,
    "max_pool2d_with_indices_backward.default": _max_pool,
    "avg_pool2d_backward.default": _avg_pool,
}
