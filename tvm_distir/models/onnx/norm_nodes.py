# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convert norms with saved statistics, and their gradients, which read these.

Statistics and gradients are computed in float32 for 16-bit data. A layer norm has its statistics
over all dims from ``axis`` on, (..., 1, 1); a batch norm over all dims but 1, (channels,).
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax
from tvm.relax import Expr
from tvm.relax.op import add, divide, mean, multiply, rsqrt, subtract
from tvm.relax.op import sum as sum_op

from tvm_distir.models.common.translation import dtype_of, shape_of
from tvm_distir.transforms import through_norm

from .node_call import Converter, NodeCall

_op = relax.op


def _axes(call: NodeCall, x: Expr) -> list[int]:
    rank = len(shape_of(x))
    return list(range(int(call.number("axis", -1)) % rank, rank))


def _statistics(
    call: NodeCall, x: Expr, axes: Sequence[int], centred: bool = True
) -> tuple[Expr, Expr]:
    """Return the mean and the inverse deviation of ``x``, with its rank."""
    centre = call.emit(mean(x, list(axes), keepdims=True))
    shifted = call.emit(subtract(x, centre)) if centred else x
    spread = call.emit(mean(call.emit(multiply(shifted, shifted)), list(axes), keepdims=True))
    epsilon = call.constant(call.number("epsilon", 1e-5), x)
    return centre, call.emit(rsqrt(call.emit(add(spread, epsilon))))


def _layer_norm(call: NodeCall) -> list[Expr]:
    """Convert a layer norm with its results mean and inverse deviation."""
    x, scale = call[0], call[1]
    axes, bias, epsilon = _axes(call, x), call.get(2), call.number("epsilon", 1e-5)
    if bias is None:
        bias = call.emit(_op.zeros(shape_of(scale), dtype_of(scale)))
    y = call.emit(_op.nn.layer_norm(x, scale, bias, axes, epsilon))
    return [y, *_statistics(call, call.wide(x), axes)]


def _simplified_layer_norm(call: NodeCall) -> list[Expr]:
    """Convert an RMS norm with its result inverse deviation."""
    x, scale, axes = call[0], call[1], _axes(call, call[0])
    y = call.emit(_op.nn.rms_norm(x, scale, axes, call.number("epsilon", 1e-5)))
    return [y, _statistics(call, call.wide(x), axes, centred=False)[1]]


def _gradients(
    call: NodeCall,
    gradient: Expr,
    normed: Expr,
    inverse: Expr,
    scale: Expr,
    axes: Sequence[int],
    others: Sequence[int],
    centred: bool = True,
) -> list[Expr]:
    """Return the gradients of the data, the scale and the shift, in the types of operands 1 and 2.

    Statistics are over ``axes``; the scale is broadcast along ``others``.
    """
    inner = call.emit(multiply(gradient, scale))
    through = through_norm(normed, inverse, inner, list(axes), centred, call.builder)
    by_scale = sum_op(call.emit(multiply(gradient, normed)), list(others))
    parts = [call.emit(part) for part in (through, by_scale, sum_op(gradient, list(others)))]
    return call.like(parts, call[1], call[2], call[2])


def _layer_gradients(
    call: NodeCall, gradient: Expr, normed: Expr, inverse: Expr, centred: bool = True
) -> list[Expr]:
    """Return the gradients of a layer norm, whose scale has the dims of the statistics."""
    rank, scale = len(shape_of(normed)), call.wide(call[2])
    first = rank - len(shape_of(scale))
    others, axes = range(first), range(first, rank)
    return _gradients(call, gradient, normed, inverse, scale, axes, others, centred)


def _layer_norm_gradient(call: NodeCall) -> list[Expr]:
    gradient, x, centre, inverse = (call.wide(call[i]) for i in (0, 1, 3, 4))
    normed = call.emit(multiply(call.emit(subtract(x, centre)), inverse))
    return _layer_gradients(call, gradient, normed, inverse)


def _simplified_gradient(call: NodeCall) -> list[Expr]:
    gradient, x, inverse = (call.wide(call[i]) for i in (0, 1, 3))
    normed = call.emit(multiply(x, inverse))
    return _layer_gradients(call, gradient, normed, inverse, centred=False)


def _invertible_gradient(call: NodeCall) -> list[Expr]:
    """Convert the gradient of a layer norm by its result: ``(Y - bias) / scale`` is normal."""
    gradient, y, scale, bias, inverse = (call.wide(call[i]) for i in range(5))
    normed = call.emit(divide(call.emit(subtract(y, bias)), scale))
    return _layer_gradients(call, gradient, normed, inverse)


def _batch_norm(call: NodeCall) -> list[Expr]:
    """Convert a batch norm: ``Y``, running mean and variance, mean and inverse deviation.

    The variances have the divisor n, and the old running values the weight ``momentum``.
    """
    x, training = call[0], call.whether("training_mode", True)
    epsilon, keep = call.number("epsilon", 1e-5), call.number("momentum", 0.9)
    operands = [call[i] for i in range(5)]
    fields = call.emit(
        _op.nn.batch_norm(*operands, axis=1, epsilon=epsilon, momentum=1 - keep, training=training)
    )
    y, *running = (call.emit(relax.TupleGetItem(fields, i)) for i in range(3))
    if not training or call.count < 4:
        return [y, *running]
    others = [d for d in range(len(shape_of(x))) if d != 1]
    saved = [call.shaped(s, shape_of(call[3])) for s in _statistics(call, call.wide(x), others)]
    return [y, *running, *call.like(saved, call[3], call[4])]


def _batch_norm_gradient(call: NodeCall) -> list[Expr]:
    """Convert the gradient of a batch norm, whose operand 4 is the inverse deviation."""
    gradient, x, *channels = (call.wide(call[i]) for i in range(5))
    rank = len(shape_of(x))
    others = [d for d in range(rank) if d != 1]
    scale, centre, inverse = (call.column(value, rank) for value in channels)
    normed = call.emit(multiply(call.emit(subtract(x, centre)), inverse))
    return _gradients(call, gradient, normed, inverse, scale, others, others)


CONVERTERS: dict[str, Converter] = {
    "BatchNormInternal": _batch_norm,
    "BatchNormalization": _batch_norm,
    "BatchNormalizationGrad": _batch_norm_gradient,
    "InvertibleLayerNormalizationGrad": _invertible_gradient,
    "LayerNormalization": _layer_norm,
    "LayerNormalizationGrad": _layer_norm_gradient,
    "SimplifiedLayerNormalization": _simplified_layer_norm,
    "SimplifiedLayerNormalizationGrad": _simplified_gradient,
}
