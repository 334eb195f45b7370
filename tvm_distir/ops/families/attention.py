# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules of attention ops."""

from __future__ import annotations

from ..dims import elements, nominal, same
from ..draft import CallShape, Draft
from ..registration import SAME_OP, Family

FAMILY: Family = Family()


@FAMILY.rule("relax.nn.attention", "relax.nn.attention_bias", local=SAME_OP)
def attention(call: CallShape) -> Draft:
    """Batch, heads, query positions (without a causal mask) and value features are kept.

    Shapes: query ``(B, S, H, D)``, key ``(B, T, H, D)``, value ``(B, T, H, E)``, bias broadcastable
    to ``(B, H, S, T)``, result ``(B, S, H, E)``. FLOPs: 2 B H S T (D + E) for the two products
    plus 5 per score for the softmax.
    """
    draft = Draft(call)
    q, k, v, out = *call.ins[:3], call.outs[0]
    scores = (q[0], q[2], q[1], k[1])
    bias = call.ins[3] if len(call.ins) > 3 else ()
    masked = call.attrs.causal_mask is not None or call.attrs.window_size is not None

    def tied(ins: dict[int, int], score: int) -> dict[int, int]:
        own = score - 4 + len(bias)
        if bias and own >= 0 and same(bias[own], scores[score]):
            return {**ins, 3: own}
        return ins

    draft.tie(tied({0: 0, 1: 0, 2: 0}, 0), {0: 0})
    if same(q[2], k[2]) and same(q[2], v[2]):
        draft.tie(tied({0: 2, 1: 2, 2: 2}, 1), {0: 2})
    else:
        draft.whole("in", 0, 2, "query and key have different numbers of heads")
    if masked:
        draft.whole("in", 0, 1, "the causal mask depends on the position")
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
