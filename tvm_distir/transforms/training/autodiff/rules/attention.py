# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define gradients of attention."""

from __future__ import annotations

import math
from typing import Any

from tvm import ir, relax
from tvm.relax.op import (
    add,
    arange,
    greater_equal,
    matmul,
    multiply,
    permute_dims,
    reshape,
    subtract,
    where,
)
from tvm.relax.op import sum as sum_op

from .registry import constant_like, fitted, refuse, register_gradient, shape_of

MASKED = -1e30
"""Score of what a query does not see."""


def _causal(scores: Any, mask: str, rows: int, columns: int, builder: relax.BlockBuilder) -> Any:
    """Mask the scores (..., rows, columns) of columns that a row must not see."""
    offset = 0 if mask == "TopLeft" else abs(rows - columns)
    last = builder.emit(reshape(arange(offset, offset + rows, 1, "int64"), (rows, 1)))
    seen = builder.emit(greater_equal(last, arange(0, columns, 1, "int64")))
    least = -6e4 if str(scores.ty.dtype) == "float16" else MASKED
    return builder.emit(where(seen, scores, constant_like(least, scores)))


@register_gradient("nn.attention", "nn.attention_bias")
def _attention(_: Any, call: ir.Call, grad: Any, builder: relax.BlockBuilder) -> list[Any]:
    """Differentiate softmax(q k^T scale + bias) v of operands ``(batch, seq, heads, width)``."""
    query, key, value = call.args[:3]
    bias = call.args[3] if len(call.args) > 3 else None
    if call.attrs.window_size is not None:
        raise refuse(call, "TVM has no kernel for attention with a window alone")
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
    if call.attrs.causal_mask is not None:
        rows, columns = int(shape_of(query)[1]), int(shape_of(key)[1])
        scores = _causal(scores, str(call.attrs.causal_mask), rows, columns, builder)
    probs = builder.emit(relax.op.nn.softmax(scores, -1))
    by_value = builder.emit(matmul(flipped(probs), g))
    by_probs = builder.emit(matmul(g, flipped(v)))
    along = builder.emit(sum_op(builder.emit(multiply(by_probs, probs)), -1, keepdims=True))
    by_scores = builder.emit(multiply(builder.emit(subtract(by_probs, along)), probs))
    scaled = builder.emit(multiply(by_scores, constant_like(scale, q)))
    by_query = builder.emit(matmul(scaled, k))
    by_key = builder.emit(matmul(flipped(scaled), q))
    gradients = [permute_dims(t, [0, 2, 1, 3]) for t in (by_query, by_key, by_value)]
    return gradients if bias is None else [*gradients, fitted(builder, by_scores, bias)]
