# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of ops for which TVM has none, or one that costs more than it must."""

from __future__ import annotations

import math
from typing import Any

from tvm import ir, relax
from tvm.relax.op import (
    add,
    astype,
    broadcast_to,
    einsum,
    exp,
    matmul,
    multiply,
    permute_dims,
    reshape,
    scatter_elements,
    subtract,
    tanh,
    zeros,
)
from tvm.relax.op import erf as erf_op
from tvm.relax.op import sum as sum_op
from tvm.relax.op.grad import take_backward

from .registry import constant_like, fitted, refuse, register_gradient, shape_of

# -- contractions


@register_gradient("matmul")
def _matmul(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """``x @ w``; of a weight matrix the sum over all leading dims is one contraction.

    TVM sums the products of every leading index afterwards, which needs them all in memory.
    """
    x, w = call.args
    if len(shape_of(w)) != 2 or len(shape_of(x)) < 3:
        return list(call.op.get_attr("FPrimalGradient")(_, call, grad, builder))
    lead = "abcdefgh"[: len(shape_of(x)) - 1]
    through = matmul(grad, builder.emit(permute_dims(w)))
    return [through, einsum((x, grad), f"{lead}x,{lead}y->xy")]


# -- elementwise


@register_gradient("rsqrt")
def _rsqrt(y: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """``-y^3 / 2``."""
    cube = multiply(y, builder.emit(multiply(y, y)))
    return [multiply(grad, builder.emit(multiply(constant_like(-0.5, y), builder.emit(cube))))]


@register_gradient("square")
def _square(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    x = call.args[0]
    return [multiply(grad, builder.emit(multiply(constant_like(2.0, x), x)))]


@register_gradient("erf")
def _erf(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """``2 / sqrt(pi) exp(-x^2)``."""
    x = call.args[0]
    bell = builder.emit(exp(builder.emit(multiply(constant_like(-1.0, x), builder.emit(x * x)))))
    return [multiply(grad, builder.emit(multiply(constant_like(2 / math.sqrt(math.pi), x), bell)))]


@register_gradient("nn.gelu")
def _gelu(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """``Phi(x) + x phi(x)``, the normal distribution and its density."""
    x = call.args[0]
    root = builder.emit(erf_op(builder.emit(multiply(constant_like(math.sqrt(0.5), x), x))))
    below = builder.emit(
        multiply(constant_like(0.5, x), builder.emit(add(constant_like(1.0, x), root)))
    )
    bell = builder.emit(exp(builder.emit(multiply(constant_like(-0.5, x), builder.emit(x * x)))))
    density = builder.emit(multiply(constant_like(1 / math.sqrt(2 * math.pi), x), bell))
    return [multiply(grad, builder.emit(add(below, builder.emit(multiply(x, density)))))]


@register_gradient("nn.gelu_tanh")
def _gelu_tanh(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """Of ``x/2 (1 + t)``, ``t = tanh u``, ``u = k (x + c x^3)``.

    ``(1 + t)/2 + x/2 (1 - t^2) k (1 + 3 c x^2)``.
    """
    x = call.args[0]
    k, c = math.sqrt(2 / math.pi), 0.044715
    half, one = constant_like(0.5, x), constant_like(1.0, x)
    squared = builder.emit(multiply(x, x))
    inner = builder.emit(add(one, builder.emit(multiply(constant_like(c, x), squared))))
    inner = builder.emit(multiply(x, inner))
    t = builder.emit(tanh(builder.emit(multiply(constant_like(k, x), inner))))
    outer = builder.emit(multiply(half, builder.emit(add(one, t))))
    slope = builder.emit(add(one, builder.emit(multiply(constant_like(3 * c, x), squared))))
    slope = builder.emit(multiply(constant_like(0.5 * k, x), slope))
    bell = builder.emit(subtract(one, builder.emit(multiply(t, t))))
    bent = builder.emit(multiply(x, builder.emit(multiply(bell, slope))))
    return [multiply(grad, builder.emit(add(outer, bent)))]


# -- layout


@register_gradient("squeeze", "flatten", "nn.batch_flatten")
def _squeeze(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    return [reshape(grad, call.args[0].ty.shape)]


@register_gradient("strided_slice")
def _strided_slice(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """Zeros around the slice."""
    shape = shape_of(call.args[0])
    axes, begin, end = ([int(n) for n in call.args[i].fields] for i in (1, 2, 3))
    steps = [int(n) for n in call.args[4].fields] if len(call.args) > 4 else [1] * len(axes)
    if any(step != 1 for step in steps):
        raise refuse(call, f"the gradient of a slice with the steps {steps} is not known")
    widths = [0] * (2 * len(shape))
    for axis, low, high in zip(axes, begin, end, strict=True):
        d = axis % len(shape)
        n = int(shape[d])
        low = max(low + n, 0) if low < 0 else min(low, n)
        high = max(high + n, 0) if high < 0 else min(high, n)
        widths[2 * d], widths[2 * d + 1] = low, n - high
    return [relax.op.nn.pad(grad, widths, pad_value=0.0), *[None] * (len(call.args) - 1)]


@register_gradient("repeat")
def _repeat(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """Sum over the copies."""
    shape = list(shape_of(call.args[0]))
    if call.attrs.axis is None:
        raise refuse(call, "the gradient of a repeat of all elements is not known")
    axis, times = int(call.attrs.axis) % len(shape), int(call.attrs.repeats)
    copies = builder.emit(reshape(grad, [*shape[: axis + 1], times, *shape[axis + 1 :]]))
    return [sum_op(copies, axis + 1)]


@register_gradient("nn.dropout")
def _dropout(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    raise refuse(call, "a training step with dropout is not offered: its stream is not defined")


@register_gradient("topk")
def _topk(y: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """The values' gradients go back to where the values came from."""
    x = call.args[0]
    if str(call.attrs.ret_type) != "both":
        raise refuse(call, "the gradient of a topk needs its indices")
    places = builder.emit(astype(builder.emit(relax.TupleGetItem(y, 1)), "int64"))
    values = builder.emit(relax.TupleGetItem(grad, 0))
    empty = builder.emit(zeros(x.ty.shape, str(x.ty.dtype)))
    axis = int(call.attrs.axis) % len(shape_of(x))
    return [scatter_elements(empty, places, values, axis=axis, reduction="add")]


# -- look-ups


@register_gradient("take")
def _take(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """Rows of the gradient, summed where they were looked up.

    TVM's kernel takes flat indices, and of the table only the shape: zeros stand for it, so that
    a table that lies elsewhere need not come.
    """
    table, index = call.args
    shape, places = list(shape_of(table)), shape_of(index)
    if call.attrs.axis is None and len(shape) != 1:
        raise refuse(call, "the gradient of a look-up in a flattened table is not known")
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % len(shape)
    count: Any = 1
    for n in places:
        count = count * n
    if len(places) != 1:
        index = builder.emit(reshape(index, (count,)), "flat_index")
        grad = builder.emit(reshape(grad, (*shape[:axis], count, *shape[axis + 1 :])))
    empty = builder.emit(zeros(table.ty.shape, str(table.ty.dtype)), "rows")
    return [take_backward(grad, empty, index, axis), None]


# -- pools, attention


@register_gradient("nn.adaptive_avg_pool2d")
def _global_pool(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """Of a global mean: each pixel gets its share."""
    x = call.args[0]
    shape, layout = shape_of(x), str(call.attrs.layout)
    if any(int(n) != 1 for n in call.attrs.output_size or ()):
        raise refuse(call, "the gradient of an adaptive pool to more than one pixel is not known")
    pixels = math.prod(int(shape[layout.index(c)]) for c in "HW")
    share = builder.emit(multiply(grad, constant_like(1 / pixels, x)))
    return [broadcast_to(share, x.ty.shape)]


@register_gradient("image.resize2d")
def _resize(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """Of a nearest-neighbour enlargement by whole factors: the sum over the copies of a pixel."""
    x = call.args[0]
    shape, out, layout = list(shape_of(x)), list(shape_of(grad)), str(call.attrs.layout)
    whole = all(out[d] % shape[d] == 0 for d in range(len(shape)))
    if str(call.attrs.method) != "nearest_neighbor" or not whole:
        raise refuse(call, "the gradient of a resize is known for whole factors and nearest only")
    split: list[Any] = []
    copies = []
    for d, axis in enumerate(layout):
        split.append(shape[d])
        if axis in "HW":
            copies.append(len(split))
            split.append(out[d] // shape[d])
    return [sum_op(builder.emit(reshape(grad, split)), copies), *[None] * (len(call.args) - 1)]


@register_gradient("nn.attention", "nn.attention_bias")
def _attention(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """Operands ``(batch, seq, heads, width)``: softmax(q k^T scale + bias) v, differentiated."""
    query, key, value = call.args[:3]
    bias = call.args[3] if len(call.args) > 3 else None
    if call.attrs.causal_mask is not None or call.attrs.window_size is not None:
        raise refuse(call, "the gradient of an attention with a built-in mask is not known")
    given = call.attrs.scale
    scale = float(given) if given is not None else 1 / math.sqrt(int(shape_of(query)[3]))

    def heads_first(tensor: Any) -> Any:
        return builder.emit(permute_dims(tensor, [0, 2, 1, 3]))

    def flipped(tensor: Any) -> Any:
        return builder.emit(permute_dims(tensor, [0, 1, 3, 2]))

    q, k, v, g = (heads_first(t) for t in (query, key, value, grad))
    scores = builder.emit(multiply(builder.emit(matmul(q, flipped(k))), constant_like(scale, q)))
    if bias is not None:
        scores = builder.emit(add(scores, bias))
    probs = builder.emit(relax.op.nn.softmax(scores, -1))
    by_value = builder.emit(matmul(flipped(probs), g))
    by_probs = builder.emit(matmul(g, flipped(v)))
    along = builder.emit(sum_op(builder.emit(multiply(by_probs, probs)), -1, keepdims=True))
    by_scores = builder.emit(multiply(builder.emit(subtract(by_probs, along)), probs))
    scaled = builder.emit(multiply(by_scores, constant_like(scale, q)))
    by_query = builder.emit(matmul(scaled, k))
    by_key = builder.emit(matmul(flipped(scaled), q))
    found = [permute_dims(t, [0, 2, 1, 3]) for t in (by_query, by_key, by_value)]
    return found if bias is None else [*found, fitted(builder, by_scores, bias)]
