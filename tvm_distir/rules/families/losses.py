# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules of losses."""

from __future__ import annotations

from ..dims import elements
from ..draft import CallShape, Draft
from ..registry import register_sharding_rule


@register_sharding_rule("relax.nn.cross_entropy_with_logits")
def cross_entropy(call: CallShape) -> Draft:
    """``-sum(predictions * labels) / extent of dim 0``: terms of a sum, rescaled along dim 0."""
    draft = Draft(call)
    ndim = len(call.ins[0])
    for d in range(ndim):
        draft.tie({0: d, 1: d}, {}, "sum", rescale=d == 0 and ndim > 1)
    draft.linear((0,), (1,))
    draft.work(2 * elements(call.ins[0]))
    return draft


@register_sharding_rule("relax.nn.nll_loss")
def nll_loss(call: CallShape) -> Draft:
    """Samples are kept (``none``) or summed (``sum``); classes are whole.

    Operands: predictions ``(N, C, d...)``, targets ``(N, d...)``, optionally weights ``(C,)``. A
    mean divides by the weight of the targets that count, known only when all are seen.
    """
    draft = Draft(call)
    reduction = str(call.attrs.reduction)
    single = len(call.ins[0]) == 1
    draft.default_why = "classes are looked up"
    for d in range(0 if single else len(call.ins[1])):
        own = d if d == 0 else d + 1
        if reduction == "none":
            draft.tie({0: own, 1: d}, {0: d})
        elif reduction == "sum":
            draft.tie({0: own, 1: d}, {}, "sum")
        else:
            for i, dim in ((0, own), (1, d)):
                draft.whole("in", i, dim, "the mean divides by the weight of all targets")
    draft.linear((0,))
    draft.work(2 * elements(call.ins[1]), "gather")
    return draft


@register_sharding_rule("relax.grad.nll_loss_backward")
def nll_loss_backward(call: CallShape) -> Draft:
    """Gradient of the predictions: samples are kept unless the loss was a mean.

    Operands: gradient of the loss, predictions, targets, optionally weights.
    """
    draft = Draft(call)
    reduction = str(call.attrs.reduction)
    draft.default_why = "classes are looked up"
    for d in range(0 if len(call.ins[1]) == 1 else len(call.ins[2])):
        own = d if d == 0 else d + 1
        if reduction == "none":
            draft.tie({0: d, 1: own, 2: d}, {0: own})
        elif reduction == "sum":
            draft.tie({1: own, 2: d}, {0: own})
        else:
            for side, i, dim in (("in", 1, own), ("in", 2, d), ("out", 0, own)):
                draft.whole(side, i, dim, "the mean divides by the weight of all targets")
    draft.linear((0,))
    draft.per_element()
    return draft
