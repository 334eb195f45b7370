# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of ops that move, copy and join elements."""

from __future__ import annotations

import math
from typing import Any

from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, Var
from tvm.relax.op import (
    broadcast_to,
    flip,
    layout_transform,
    permute_dims,
    reshape,
    split,
    squeeze,
    tril,
)
from tvm.relax.op import reverse_sequence as reverse_sequence_op
from tvm.relax.op import sum as sum_op

from .registry import Gradients, item, refuse, register_gradient, shape_of


@register_gradient("squeeze", "flatten", "nn.batch_flatten")
def _squeeze(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    return [reshape(grad, call.args[0].ty.shape)]


@register_gradient("collapse_sum_to", "collapse_sum_like")
def _collapse(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    return [broadcast_to(grad, call.args[0].ty.shape), None]


@register_gradient("flip")
def _flip(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    return [flip(grad, int(call.attrs.axis))]


@register_gradient("reverse_sequence")
def _reverse(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    a = call.attrs
    return [reverse_sequence_op(grad, call.args[1], int(a.seq_axis), int(a.batch_axis)), None]


@register_gradient("tril")
def _tril(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    return [tril(grad, call.args[1]), *[None] * (len(call.args) - 1)]


@register_gradient("repeat")
def _repeat(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``repeat``: sum over the copies."""
    x, times = call.args[0], int(call.attrs.repeats)
    shape = list(shape_of(x))
    if call.attrs.axis is None:
        copies = builder.emit(reshape(grad, [math.prod(shape), times]))
        return [reshape(sum_op(copies, 1), shape)]
    axis = int(call.attrs.axis) % len(shape)
    copies = builder.emit(reshape(grad, [*shape[: axis + 1], times, *shape[axis + 1 :]]))
    return [sum_op(copies, axis + 1)]


@register_gradient("tile")
def _tile(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``tile``: sum over the copies, each of which is a block."""
    shape, times = list(shape_of(call.args[0])), [int(n) for n in call.attrs.repeats]
    rank = max(len(shape), len(times))
    extents = [1] * (rank - len(shape)) + shape
    times = [1] * (rank - len(times)) + times
    blocks: list[Any] = []
    for n, count in zip(extents, times, strict=True):
        blocks += [count, n]
    copies = builder.emit(reshape(grad, blocks))
    return [reshape(sum_op(copies, list(range(0, 2 * rank, 2))), shape)]


@register_gradient("stack")
def _stack(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``stack``: each operand gets its slice."""
    parts = list(call.args[0].ty.fields)
    axis = int(call.attrs.axis) % (len(shape_of(grad)))
    if len(parts) == 1:
        return [relax.Tuple([squeeze(grad, axis)])]
    slices = builder.emit(split(grad, len(parts), axis))
    return [relax.Tuple([squeeze(item(slices, i), axis) for i in range(len(parts))])]


@register_gradient("concat")
def _concat(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``concat``: each operand gets its block."""
    if len(call.args[0].ty.fields) == 1:
        return [relax.Tuple([grad])]
    return list(call.op.get_attr("FPrimalGradient")(_, call, grad, builder))


@register_gradient("meshgrid")
def _meshgrid(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Differentiate ``meshgrid``: sum result k over all dims except that of operand k."""
    operands = list(call.args[0].ty.fields)
    dims = list(range(len(operands)))
    if str(call.attrs.indexing) == "xy" and len(dims) > 1:
        dims[:2] = 1, 0
        if len({int(n) for t in operands[:2] for n in t.shape}) > 1:
            raise refuse(call, "TVM infers a wrong type for a meshgrid of rows and columns")
    result = []
    for k, ty in enumerate(operands):
        part = builder.emit(item(grad, k))
        others = [d for d in range(len(operands)) if d != dims[k]]
        result.append(reshape(sum_op(part, others) if others else part, ty.shape))
    return [relax.Tuple(result)]


@register_gradient("layout_transform")
def _layout(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Apply the inverse of a layout map without padding."""
    shape = [int(n) for n in shape_of(call.args[0])]
    if math.prod(shape) != math.prod(int(n) for n in shape_of(grad)):
        raise refuse(call, "the gradient of a layout with padding is not known")
    return [layout_transform(grad, call.attrs.index_map.inverse(shape))]


@register_gradient("nn.pixel_shuffle")
def _shuffle(_: Var, call: ir.Call, grad: Expr, builder: BlockBuilder) -> Gradients:
    """Rearrange ``(n, c, h r, w r)`` to ``(n, c r r, h, w)``."""
    x, r = call.args[0], int(call.attrs.upscale_factor)
    shape = list(shape_of(x))
    lead, (channels, rows, columns) = shape[:-3], shape[-3:]
    k = len(lead)
    parts = reshape(grad, [*lead, channels // (r * r), rows, r, columns, r])
    order = [*range(k), k, k + 2, k + 4, k + 1, k + 3]
    return [reshape(permute_dims(builder.emit(parts), order), shape)]
