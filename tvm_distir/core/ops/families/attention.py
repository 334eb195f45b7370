# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of attention ops and of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax
from tvm.ir import Expr

from tvm_distir.core.ir.operators.attention_ops import (
    ATTENTION_BACKWARD_OP,
    ATTENTION_BIAS_OP,
    ATTENTION_OP,
    UNSEEN,
    AttentionOptions,
)
from tvm_distir.core.ops.dims import elements, nominal, same
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.padding import ZERO_TERMS
from tvm_distir.core.ops.registration import Family

FAMILY: Family = Family()

LOWEST = {"float16": -6e4}
"""Score of a key that a query does not see, by type; :data:`UNSEEN` in others."""


def attention_on_shards(cx: LocalCall) -> ir.Call:
    """Apply a causal mask by global positions where queries are sharded."""
    attrs = cx.call.attrs
    if attrs.causal_mask is None or not cx.axes_of_dim(0, 1):
        return cx.same()
    query = cx.ins[0].shard
    keys = cx.ins[1].shard.global_shape[1]
    offset = 0 if str(attrs.causal_mask) == "TopLeft" else abs(query.global_shape[1] - keys)
    rows = cx.emit(relax.op.arange(offset, offset + query.local[1], 1, "int64"), "rows")
    rows = cx.emit(relax.op.add(rows, cx.start(0, 1)), "rows")
    rows = cx.emit(relax.op.reshape(rows, (query.local[1], 1)), "rows")
    columns = cx.emit(relax.op.arange(0, keys, 1, "int64"), "columns")
    seen = cx.emit(relax.op.greater_equal(rows, columns), "seen")
    zero, low = (cx.scalar(x, query.dtype) for x in (0.0, LOWEST.get(query.dtype, UNSEEN)))
    mask = cx.emit(relax.op.where(seen, zero, low), "mask")
    mask = cx.emit(relax.op.reshape(mask, (1, 1, query.local[1], keys)), "mask")
    if len(cx.ins) > 3:
        mask = cx.emit(relax.op.add(cx.operand(3), mask), "mask")
    else:
        batch, heads = cx.outs[0].local[0], cx.outs[0].local[2]
        mask = cx.emit(relax.op.broadcast_to(mask, (batch, heads, query.local[1], keys)), "mask")
    scale = None if attrs.scale is None else float(attrs.scale)
    return relax.op.nn.attention(*[cx.operand(i) for i in range(3)], bias=mask, scale=scale)


def _tied(
    bias: Sequence[int | Expr], position: int, ins: dict[int, int], score: int, size: int | Expr
) -> Any:
    """Add to tied operand dims that of a bias which runs over the same dim of the scores."""
    dim = score - 4 + len(bias)
    if bias and dim >= 0 and same(bias[dim], size):
        return {**ins, position: dim}
    return ins


@FAMILY.rule("relax.nn.attention", "relax.nn.attention_bias", local=attention_on_shards)
def nn_attention(call: CallShape) -> Draft:
    """Shard batch, heads, query positions (without a window) and value features.

    Shapes: query ``(B, S, H, D)``, key ``(B, T, H, D)``, value ``(B, T, H, E)``, bias broadcastable
    to ``(B, H, S, T)``, result ``(B, S, H, E)``. FLOPs: 2 B H S T (D + E) for the two products
    plus 5 per score for the softmax.
    """
    draft = Draft(call, why="the softmax runs over all keys")
    q, k, v, out = *call.ins[:3], call.outs[0]
    scores = (q[0], q[2], q[1], k[1])
    bias = call.ins[3] if len(call.ins) > 3 else ()
    draft.tie(_tied(bias, 3, {0: 0, 1: 0, 2: 0}, 0, scores[0]), {0: 0})
    if same(q[2], k[2]) and same(q[2], v[2]):
        draft.tie(_tied(bias, 3, {0: 2, 1: 2, 2: 2}, 1, scores[1]), {0: 2})
    else:
        draft.replicate("in", 0, 2, "query and key have different numbers of heads")
    if call.attrs.window_size is not None:
        draft.replicate("in", 0, 1, "the window depends on the position")
    else:
        draft.tie(_tied(bias, 3, {0: 1}, 2, scores[2]), {0: 1})
    draft.tie({2: 3}, {0: 3})
    draft.linear((2,))
    for i in (0, 1):
        draft.replicate("in", i, 3, "the scores' scale depends on its extent")
    pairs = elements(scores)
    flops = 2 * pairs * (nominal(q[3]) + nominal(out[3])) + 5 * pairs
    return draft.work(flops, "attention")


def _bias_of(call: CallShape, first: int) -> Sequence[int | Expr]:
    return next((shape for shape in call.ins[first:] if len(shape) == 4), ())


def _forward_flops(call: CallShape) -> int:
    """Return the FLOPs of the two products, of which causal attention computes half.

    With a window, a query sees that many keys at most, and with documents those of its own.
    """
    q, k, v = call.ins[:3]
    pairs = AttentionOptions.of(call).pairs(elements((q[0], q[2], q[1])), nominal(k[1]))
    return 2 * pairs * (nominal(q[3]) + nominal(v[3]))


def _tie_heads(draft: Draft, ins: dict[int, int], outs: dict[int, int]) -> None:
    """Tie dims of heads, which are cut into as many parts as there are key heads at most."""
    q, k = draft.call.ins[:2]
    if same(q[2], k[2]):
        draft.tie(ins, outs)
    else:
        draft.tie(ins, outs, size=k[2])


def shifted_on_shards(cx: LocalCall) -> ir.Call:
    """Tell the op where its queries and keys begin, if it has a mask and a part of them."""
    options, count = AttentionOptions.of(cx.call), len(cx.ins)
    if not options.causal:
        return cx.same()
    parts = [(sign, cx.start(i, 1)) for i, sign in ((0, 1), (1, -1)) if cx.axes_of_dim(i, 1)]
    if not parts:
        return cx.same()
    shift: Any = None
    if not cx.ins[-1].shard.global_shape:
        count -= 1
        shift = cx.operand(count)
    for sign, start in parts:
        if shift is None:
            shift = start if sign > 0 else cx.emit(relax.op.negative(start), "shift")
        else:
            write = relax.op.add if sign > 0 else relax.op.subtract
            shift = cx.emit(write(shift, start), "shift")
    return ir.Call(cx.call.op, [*[cx.operand(i) for i in range(count)], shift], cx.call.attrs)


@FAMILY.rule(ATTENTION_OP, local=shifted_on_shards)
def attention(call: CallShape) -> Draft:
    """Shard batch, heads (by key heads, with the sinks) and query positions.

    FLOPs: 2 B H S T (D + E) for the two products, half of it with a causal mask.
    """
    draft = Draft(call, why="the softmax runs over all keys")
    q, _k, _v = call.ins[:3]
    bias = _bias_of(call, 3)
    draft.tie(_tied(bias, 3, {0: 0, 1: 0, 2: 0}, 0, q[0]), {0: 0, 1: 0})
    heads = _tied(bias, 3, {0: 2, 1: 2, 2: 2}, 1, q[2])
    heads |= {i: 0 for i, shape in enumerate(call.ins) if len(shape) == 1}
    _tie_heads(draft, heads, {0: 2, 1: 1})
    draft.tie(_tied(bias, 3, {0: 1}, 2, q[1]), {0: 1, 1: 2})
    draft.replicate("in", 0, 3, "the products run over all features")
    return draft.work(_forward_flops(call), "attention")


@FAMILY.rule(ATTENTION_BACKWARD_OP, local=shifted_on_shards, padding=ZERO_TERMS)
def attention_backward(call: CallShape) -> Draft:
    """Shard batch and heads; parts of queries or of keys leave terms of the others' gradients.

    FLOPs: 2.5 times those of the forward pass, for five products instead of two.
    """
    draft = Draft(call, why="the products run over all features")
    q, k, _v = call.ins[:3]
    bias = _bias_of(call, 6)
    every = dict.fromkeys(range(6), 0)
    draft.tie(_tied(bias, 6, every, 0, q[0]), dict.fromkeys(range(3), 0))
    heads = {**dict.fromkeys(range(5), 2), 5: 1}
    _tie_heads(draft, _tied(bias, 6, heads, 1, q[2]), dict.fromkeys(range(3), 2))
    draft.tie(_tied(bias, 6, {0: 1, 3: 1, 4: 1, 5: 2}, 2, q[1]), {0: 1}, "sum")
    if not AttentionOptions.of(call).documents:
        draft.tie(_tied(bias, 6, {1: 1, 2: 1}, 3, k[1]), {1: 1, 2: 1}, "sum", uneven=False)
    return draft.work(_forward_flops(call) * 5 // 2, "attention_backward")


@FAMILY.rule(ATTENTION_BIAS_OP, local=shifted_on_shards, padding=ZERO_TERMS)
def attention_bias_gradient(call: CallShape) -> Draft:
    """Shard batch, heads and positions: blocks of the dims that the bias has, terms of others."""
    draft = Draft(call, why="the products run over all features")
    q, k, _v = call.ins[:3]
    bias = _bias_of(call, 6)

    def tie(ins: dict[int, int], score: int, extent: int | Expr, **more: Any) -> None:
        tied = _tied(bias, 6, ins, score, extent)
        draft.tie(tied, {0: tied[6]} if 6 in tied else {}, "map" if 6 in tied else "sum", **more)

    tie(dict.fromkeys(range(6), 0), 0, q[0])
    grouped = {} if same(q[2], k[2]) else {"size": k[2]}
    tie({**dict.fromkeys(range(5), 2), 5: 1}, 1, q[2], **grouped)
    tie({0: 1, 3: 1, 4: 1, 5: 2}, 2, q[1])
    if not AttentionOptions.of(call).documents:
        tie({1: 1, 2: 1}, 3, k[1], uneven=False)
    return draft.work(_forward_flops(call) * 3 // 2, "attention_backward")
