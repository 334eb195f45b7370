# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write out attention and its gradients as products, exponentials and sums of Relax.

This is what engines without a kernel of attention run, and what exporters write. Scores are
computed in float32 for half precision, and a query that sees no key has the result zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, op

from tvm_distir.core.ir.operators import (
    ATTENTION_BACKWARD_OP,
    ATTENTION_BIAS_OP,
    ATTENTION_OP,
    UNSEEN,
    AttentionOptions,
    accumulated,
    attention_operands,
    attention_sinks,
)
from tvm_distir.core.rewriting import scalar

_LEAST_SUM = 1e-37
"""A sum of exponentials that is smaller is that of a query that sees no key."""


def _same(heads: Any, shared: Any) -> bool:
    return bool(heads.same_as(shared)) or str(heads) == str(shared)


class _Written:
    """Writer of a call, with heads before positions.

    ``pairs``: key heads and queries of all heads that share one, ``(B, K, H / K * S, ...)``.
    Products read operands of the wide type, or of the type of the queries (``narrow``) as kernels
    of products do.
    """

    def __init__(self, builder: BlockBuilder, call: ir.Call, narrow: bool) -> None:
        self.builder, self.emit, self.options = builder, builder.emit, AttentionOptions.of(call)
        self.tensors, self.bias, self.shift = attention_operands(call)
        q, k = (x.ty for x in self.tensors[:2])
        self.batch, self.rows, self.heads, _ = q.shape
        self.columns, self.shared = k.shape[1], k.shape[2]
        self.wide = accumulated(str(q.dtype))
        self.products = str(q.dtype) if narrow else self.wide
        self.bounded: Any = None
        """The scores divided by the cap, between -1 and 1; None until scores are written."""
        self._seen: Any = None

    def const(self, value: float) -> Expr:
        """Return a constant of the wide type."""
        return scalar(value, self.wide)

    def widened(self, value: Expr) -> Expr:
        """Cast a value to the wide type."""
        return self.typed(value, self.wide)

    def typed(self, value: Expr, dtype: str) -> Expr:
        """Cast a value to a type."""
        return value if str(value.ty.dtype) == dtype else self.emit(op.astype(value, dtype))

    def product(self, first: Expr, second: Expr) -> Expr:
        """Return a product of matrices, in the wide type."""
        operands = [self.typed(x, self.products) for x in (first, second)]
        out = None if self.products == self.wide else self.wide
        return self.emit(op.matmul(*operands, out_dtype=out))

    def queries(self, tensor: Expr) -> Expr:
        """Return queries or results as pairs."""
        return self.paired(self.keys(tensor), tensor.ty.shape[3])

    def keys(self, tensor: Expr) -> Expr:
        """Return keys or values, ``(B, K, T, ...)``."""
        return self.emit(op.permute_dims(self.typed(tensor, self.products), [0, 2, 1, 3]))

    def paired(self, value: Expr, last: Expr) -> Expr:
        """Join the heads that share a key head with the positions."""
        if _same(self.heads, self.shared):
            return value
        rows = self.heads // self.shared * self.rows
        return self.emit(op.reshape(value, (self.batch, self.shared, rows, last)))

    def by_head(self, value: Expr, last: Expr) -> Expr:
        """Undo :meth:`paired`: ``(B, H, S, ...)``."""
        if _same(self.heads, self.shared):
            return value
        shape = (self.batch, self.heads, self.rows, last)
        return self.emit(op.reshape(value, shape))

    def scores(self) -> Expr:
        """Return the scores ``(B, H, S, T)``, of keys that are not seen too."""
        q, k = self.queries(self.tensors[0]), self.keys(self.tensors[1])
        k = self.emit(op.permute_dims(k, [0, 1, 3, 2]))
        scores = self.by_head(self.product(q, k), self.columns)
        scores = self.emit(op.multiply(scores, self.const(self.options.scale)))
        if self.options.cap:
            ratio = self.emit(op.divide(scores, self.const(self.options.cap)))
            self.bounded = self.emit(op.tanh(ratio))
            scores = self.emit(op.multiply(self.bounded, self.const(self.options.cap)))
        if self.bias is None:
            return scores
        return self.emit(op.add(scores, self.widened(self.bias)))

    def seen(self) -> Any:
        """Return which keys a query sees, ``(S, T)``; None: all."""
        if not self.options.causal:
            return None
        if self._seen is None:
            rows = op.arange(self.options.offset, self.rows + self.options.offset, 1, "int64")
            rows = self.emit(op.reshape(self.emit(rows), (self.rows, 1)))
            if self.shift is not None:
                rows = self.emit(op.add(rows, self.shift))
            columns = self.emit(op.arange(0, self.columns, 1, "int64"))
            seen = self.emit(op.less_equal(columns, rows))
            if self.options.window:
                first = self.emit(op.subtract(rows, relax.const(self.options.window, "int64")))
                near = self.emit(op.greater(columns, first))
                seen = self.emit(op.logical_and(seen, near))
            if self.options.documents:
                lengths = np.array(self.options.documents)
                first = relax.const(np.repeat(np.cumsum(lengths) - lengths, lengths))
                first = self.emit(op.take(first, rows, axis=0, mode="clip"))
                same = self.emit(op.greater_equal(columns, first))
                seen = self.emit(op.logical_and(seen, same))
            self._seen = seen
        return self._seen

    def masked(self, value: Expr, other: float) -> Expr:
        """Replace what belongs to keys that are not seen."""
        seen = self.seen()
        return value if seen is None else self.emit(op.where(seen, value, self.const(other)))

    def narrowed(self, value: Expr, like: Expr) -> Expr:
        """Turn ``(B, heads, positions, width)`` to the order and type of an operand."""
        turned = op.permute_dims(value, [0, 2, 1, 3])
        dtype = str(like.ty.dtype)
        return turned if dtype == self.wide else op.astype(self.emit(turned), dtype)

    def score_gradients(self) -> tuple[Expr, Expr]:
        """Return the weights ``(B, H, S, T)`` and the gradients of the scores."""
        _, _, v, o, do, lse = self.tensors
        rows = self.emit(op.reshape(lse, (self.batch, self.heads, self.rows, 1)))
        moved = self.masked(self.emit(op.subtract(self.scores(), rows)), UNSEEN)
        weights = self.emit(op.exp(moved))
        do_, o_ = self.widened(do), self.widened(o)
        along = self.emit(op.sum(self.emit(op.multiply(do_, o_)), [3], keepdims=True))
        along = self.emit(op.permute_dims(along, [0, 2, 1, 3]))
        values = self.emit(op.permute_dims(self.keys(v), [0, 1, 3, 2]))
        by_weights = self.product(self.queries(do), values)
        by_weights = self.by_head(by_weights, self.columns)
        return weights, self.emit(op.multiply(weights, self.emit(op.subtract(by_weights, along))))


def _forward(builder: BlockBuilder, call: ir.Call, narrow: bool = False) -> Expr:
    """Write out attention with the maxima and sums of its scores."""
    w = _Written(builder, call, narrow)
    q, _, v = w.tensors
    scores = w.masked(w.scores(), UNSEEN)
    top = w.emit(op.max(scores, [3], keepdims=True))
    sinks = attention_sinks(call)
    if sinks is not None:
        sinks = w.emit(op.reshape(w.widened(sinks), (1, w.heads, 1, 1)))
        top = w.emit(op.maximum(top, sinks))
    raised = w.emit(op.exp(w.emit(op.subtract(scores, top))))
    raised = w.masked(raised, 0.0)
    total = w.emit(op.sum(raised, [3], keepdims=True))
    if sinks is not None:
        total = w.emit(op.add(total, w.emit(op.exp(w.emit(op.subtract(sinks, top))))))
    if w.options.causal:
        total = w.emit(op.maximum(total, w.const(_LEAST_SUM)))
    weights = w.paired(w.emit(op.divide(raised, total)), w.columns)
    mixed = w.by_head(w.product(weights, w.keys(v)), v.ty.shape[3])
    lse = w.emit(op.add(top, w.emit(op.log(total))))
    lse = w.emit(op.reshape(lse, (w.batch, w.heads, w.rows)))
    return relax.Tuple([w.emit(w.narrowed(mixed, q)), lse])


def _backward(builder: BlockBuilder, call: ir.Call, narrow: bool = False) -> Expr:
    """Write out the gradients of queries, keys and values."""
    w = _Written(builder, call, narrow)
    q, k, v, _, do, _ = w.tensors
    weights, by_scores = w.score_gradients()
    weights = w.paired(weights, w.columns)
    if w.options.cap:  # the derivative of tanh
        slope = w.emit(op.subtract(w.const(1.0), w.emit(op.multiply(w.bounded, w.bounded))))
        by_scores = w.emit(op.multiply(by_scores, slope))
    by_scores = w.paired(w.emit(op.multiply(by_scores, w.const(w.options.scale))), w.columns)
    by_query = w.by_head(w.product(by_scores, w.keys(k)), q.ty.shape[3])
    turned = w.emit(op.permute_dims(by_scores, [0, 1, 3, 2]))
    by_key = w.product(turned, w.queries(q))
    turned = w.emit(op.permute_dims(weights, [0, 1, 3, 2]))
    pairs = ((by_query, q), (by_key, k), (w.product(turned, w.queries(do)), v))
    return relax.Tuple([w.emit(w.narrowed(value, like)) for value, like in pairs])


def _bias(builder: BlockBuilder, call: ir.Call, narrow: bool = False) -> Expr:
    """Write out the gradient of a bias: that of the scores, summed where it is broadcast."""
    w = _Written(builder, call, narrow)
    _, by_scores = w.score_gradients()
    by_bias = w.emit(op.collapse_sum_to(by_scores, w.bias.ty.shape))
    dtype = str(w.bias.ty.dtype)
    return by_bias if dtype == w.wide else op.astype(by_bias, dtype)


_WRITERS: dict[str, Callable[..., Expr]] = {
    ATTENTION_OP: _forward,
    ATTENTION_BACKWARD_OP: _backward,
    ATTENTION_BIAS_OP: _bias,
}
WRITTEN_ATTENTION: dict[str, Callable[[BlockBuilder, ir.Call], Expr]] = _WRITERS
"""Writers of calls, by the names of the ops."""
ATTENTION_PRODUCTS = {name: partial(write, narrow=True) for name, write in _WRITERS.items()}
"""Writers of calls with products of the type of the queries, as kernels of products take them."""
