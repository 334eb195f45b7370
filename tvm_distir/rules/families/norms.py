# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules of normalizations."""

from __future__ import annotations

from ..dims import same
from ..draft import CallShape, Draft
from ..registry import register_sharding_rule

_NORMED = "the statistics run over it"


@register_sharding_rule("relax.nn.layer_norm", "relax.nn.rms_norm")
def layer_norm(call: CallShape) -> Draft:
    """Dims that are not normalized are kept; the weights are whole."""
    draft = Draft(call)
    axes = call.axes("axes", len(call.ins[0]))
    for d in range(len(call.ins[0])):
        if d not in axes:
            draft.tie({0: d}, {0: d})
    draft.default_why = _NORMED
    draft.per_element(8 if len(call.ins) > 2 else 5)
    return draft


@register_sharding_rule("relax.nn.group_norm")
def group_norm(call: CallShape) -> Draft:
    """Channels are cut in whole groups; dims outside ``axes`` are kept."""
    draft = Draft(call)
    ndim, groups = len(call.ins[0]), int(call.attrs.num_groups)
    axes, channel = call.axes("axes", ndim), int(call.attrs.channel_axis) % ndim
    for d in range(ndim):
        if d == channel:
            draft.tie({0: d, 1: 0, 2: 0}, {0: d}, size=groups, uneven=False)
        elif d not in axes:
            draft.tie({0: d}, {0: d})
    draft.default_why = _NORMED
    draft.per_element(8)
    return draft


@register_sharding_rule("relax.nn.instance_norm")
def instance_norm(call: CallShape) -> Draft:
    """Channels and dims outside ``axes`` are kept."""
    draft = Draft(call)
    ndim = len(call.ins[0])
    axes, channel = call.axes("axes", ndim), int(call.attrs.channel_axis) % ndim
    for d in range(ndim):
        if d == channel and d not in axes:
            draft.tie({0: d, 1: 0, 2: 0}, {0: d})
        elif d not in axes:
            draft.tie({0: d}, {0: d})
    draft.default_why = _NORMED
    draft.per_element(8)
    return draft


@register_sharding_rule("relax.nn.batch_norm")
def batch_norm(call: CallShape) -> Draft:
    """Channels are kept, with the weights and statistics; the rest only outside training.

    Operands data, gamma, beta, moving mean, moving variance; results data, mean, variance.
    """
    draft = Draft(call)
    channel = int(call.attrs.axis) % len(call.ins[0])
    for d, extent in enumerate(call.ins[0]):
        if d == channel:
            matching = {i: 0 for i in range(1, 5) if same(call.ins[i][0], extent)}
            draft.tie({0: d, **matching}, {0: d, 1: 0, 2: 0})
        elif not call.attrs.training:
            draft.tie({0: d}, {0: d})
    draft.default_why = "the statistics of a training batch run over it"
    draft.per_element(10 if call.attrs.training else 5)
    return draft
