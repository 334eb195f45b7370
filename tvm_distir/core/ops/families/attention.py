# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of attention ops."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvm_distir.core.ops.dims import elements, nominal, same
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.registration import Family

FAMILY: Family = Family()

UNSEEN = {"float16": -6e4}
"""Score of a key that a query does not see, by type; -1e30 in others."""


def attention_on_shards(cx: LocalCall) -> Any:
    """Apply a causal mask by global positions where queries are sharded."""
    attrs = cx.call.attrs
    if attrs.causal_mask is None or not cx.axes_of_dim(0, 1):
        return cx.same()
    query = cx.ins[0].shard
    keys = cx.ins[1].shard.whole[1]
    offset = 0 if str(attrs.causal_mask) == "TopLeft" else abs(query.whole[1] - keys)
    rows = cx.emit(relax.op.arange(offset, offset + query.local[1], 1, "int64"), "rows")
    rows = cx.emit(relax.op.add(rows, cx.start(0, 1)), "rows")
    rows = cx.emit(relax.op.reshape(rows, (query.local[1], 1)), "rows")
    columns = cx.emit(relax.op.arange(0, keys, 1, "int64"), "columns")
    seen = cx.emit(relax.op.greater_equal(rows, columns), "seen")
    zero, low = (cx.scalar(x, query.dtype) for x in (0.0, UNSEEN.get(query.dtype, -1e30)))
    mask = cx.emit(relax.op.where(seen, zero, low), "mask")
    mask = cx.emit(relax.op.reshape(mask, (1, 1, query.local[1], keys)), "mask")
    if len(cx.ins) > 3:
        mask = cx.emit(relax.op.add(cx.operand(3), mask), "mask")
    else:
        batch, heads = cx.outs[0].local[0], cx.outs[0].local[2]
        mask = cx.emit(relax.op.broadcast_to(mask, (batch, heads, query.local[1], keys)), "mask")
    scale = None if attrs.scale is None else float(attrs.scale)
    operands = [cx.operand(i) for i in range(3)]
    return relax.op.nn.attention(*operands, bias=mask, scale=scale)


@FAMILY.rule("relax.nn.attention", "relax.nn.attention_bias", local=attention_on_shards)
def attention(call: CallShape) -> Draft:
    """Shard batch, heads, query positions (without a window) and value features.

    Shapes: query ``(B, S, H, D)``, key ``(B, T, H, D)``, value ``(B, T, H, E)``, bias broadcastable
    to ``(B, H, S, T)``, result ``(B, S, H, E)``. FLOPs: 2 B H S T (D + E) for the two products
    plus 5 per score for the softmax.
    """
    draft = Draft(call)
    q, k, v, out = *call.ins[:3], call.outs[0]
    scores = (q[0], q[2], q[1], k[1])
    bias = call.ins[3] if len(call.ins) > 3 else ()

    def tied(ins: dict[int, int], score: int) -> dict[int, int]:
        dim = score - 4 + len(bias)
        if bias and dim >= 0 and same(bias[dim], scores[score]):
            return {**ins, 3: dim}
        return ins

    draft.tie(tied({0: 0, 1: 0, 2: 0}, 0), {0: 0})
    if same(q[2], k[2]) and same(q[2], v[2]):
        draft.tie(tied({0: 2, 1: 2, 2: 2}, 1), {0: 2})
    else:
        draft.whole("in", 0, 2, "query and key have different numbers of heads")
    if call.attrs.window_size is not None:
        draft.whole("in", 0, 1, "the window depends on the position")
    else:
        draft.tie(tied({0: 1}, 2), {0: 1})
    draft.tie({2: 3}, {0: 3})
    draft.linear((2,))
    draft.default_why = "the softmax runs over all keys"
    for i in (0, 1):
        draft.whole("in", i, 3, "the scores' scale depends on its extent")
    pairs = elements(scores)
    flops = 2 * pairs * (nominal(q[3]) + nominal(out[3])) + 5 * pairs
    draft.work(flops, "attention")
    return draft
