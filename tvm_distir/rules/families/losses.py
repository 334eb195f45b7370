# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules of losses."""

from __future__ import annotations

from ..dims import Shape, elements, size_bytes
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


def _class_dim(shape: Shape) -> int:
    """Predictions are (classes,) or (samples, classes, ...)."""
    return min(1, len(shape) - 1)


_WEIGHTS = "a device needs the weights of all targets"


@register_sharding_rule("relax.nn.nll_loss")
def nll_loss(call: CallShape) -> Draft:
    """Samples are kept (``none``), summed (``sum``) or averaged; classes give terms of a sum.

    Operands: predictions ``(N, C, d...)``, targets ``(N, d...)``, optionally weights ``(C,)``. A
    device that holds some classes looks up the targets among them, and zeros for the rest. A
    mean over cut samples reduces the sum and its divisor, the weight of all targets, inside.
    """
    draft = Draft(call)
    reduction = str(call.attrs.reduction)
    classes = _class_dim(call.ins[0])
    draft.tie({0: classes}, {}, "sum")
    for d in range(len(call.ins[1])):
        ins = {0: d if d == 0 else d + 1, 1: d}
        if reduction == "none":
            draft.tie(ins, {0: d})
        elif reduction == "sum":
            draft.tie(ins, {}, "sum")
        else:
            draft.tie(ins, {}, "stat", comm_bytes=size_bytes((), call.out_dtypes[0]))
    draft.default_why = _WEIGHTS
    draft.linear((0,))
    draft.work(2 * elements(call.ins[1]), "gather")
    return draft


@register_sharding_rule("relax.grad.nll_loss_backward")
def nll_loss_backward(call: CallShape) -> Draft:
    """Gradient of the predictions: samples and classes are kept.

    Operands: gradient of the loss, predictions, targets, optionally weights. Of a mean over cut
    samples the divisor, the weight of all targets, is reduced inside.
    """
    draft = Draft(call)
    reduction = str(call.attrs.reduction)
    classes = _class_dim(call.ins[1])
    draft.tie({1: classes}, {0: classes})
    for d in range(len(call.ins[2])):
        own = d if d == 0 else d + 1
        ins = {1: own, 2: d}
        if reduction == "none":
            draft.tie({0: d, **ins}, {0: own})
        elif reduction == "sum":
            draft.tie(ins, {0: own})
        else:
            comm_bytes = size_bytes((), call.out_dtypes[0])
            draft.tie(ins, {0: own}, "stat", comm_bytes=comm_bytes)
    draft.default_why = _WEIGHTS
    draft.linear((0,))
    draft.per_element()
    return draft
