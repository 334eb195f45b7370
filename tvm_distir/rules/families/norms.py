# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules of normalizations: what the statistics run over is cut too, they are reduced inside."""

from __future__ import annotations

from collections.abc import Iterable

from ..dims import Shape, same, size_bytes
from ..draft import CallShape, Draft
from ..registry import register_sharding_rule


def statistic_bytes(shape: Shape, reduced: Iterable[int], dtype: str = "float32") -> int:
    """Bytes of one statistic: a number for each place along the dims that are not reduced."""
    gone = set(reduced)
    return size_bytes(tuple(n for d, n in enumerate(shape) if d not in gone), dtype)


@register_sharding_rule("relax.nn.layer_norm", "relax.nn.rms_norm")
def layer_norm(call: CallShape) -> Draft:
    """All dims are kept; those that are normalized with statistics reduced inside.

    A layer norm reduces mean and variance, an rms norm the mean square. Gamma and beta are cut
    as the dims they scale.
    """
    draft = Draft(call)
    shape = call.ins[0]
    axes = call.axes("axes", len(shape))
    rows = statistic_bytes(shape, axes)
    if call.op == "relax.nn.rms_norm":
        rows = -(-rows // 2)  # the mean square only, where a factor counts two statistics
    for d in range(len(shape)):
        if d in axes:
            own = axes.index(d)
            scales = dict.fromkeys(range(1, len(call.ins)), own)
            draft.tie({0: d, **scales}, {0: d}, "stat", comm_bytes=rows)
        else:
            draft.tie({0: d}, {0: d})
    draft.per_element(8 if len(call.ins) > 2 else 5)
    return draft


@register_sharding_rule("relax.nn.group_norm")
def group_norm(call: CallShape) -> Draft:
    """Channels are cut in whole groups; dims in ``axes`` with two sums reduced inside."""
    draft = Draft(call)
    ndim, groups = len(call.ins[0]), int(call.attrs.num_groups)
    axes, channel = call.axes("axes", ndim), int(call.attrs.channel_axis) % ndim
    rows = statistic_bytes(call.ins[0], (*axes, channel)) * groups
    for d in range(ndim):
        if d == channel:
            draft.tie({0: d, 1: 0, 2: 0}, {0: d}, size=groups, uneven=False)
        elif d in axes:
            draft.tie({0: d}, {0: d}, "stat", comm_bytes=rows)
        else:
            draft.tie({0: d}, {0: d})
    draft.default_why = "a group of channels is normalized together"
    draft.per_element(8)
    return draft


@register_sharding_rule("relax.nn.instance_norm")
def instance_norm(call: CallShape) -> Draft:
    """Channels and dims outside ``axes`` are kept; those in ``axes`` with two sums inside."""
    draft = Draft(call)
    ndim = len(call.ins[0])
    axes, channel = call.axes("axes", ndim), int(call.attrs.channel_axis) % ndim
    rows = statistic_bytes(call.ins[0], axes)
    for d in range(ndim):
        if d == channel and d not in axes:
            draft.tie({0: d, 1: 0, 2: 0}, {0: d})
        elif d == channel:
            draft.whole("in", 0, d, "channels are normalized together, and scaled one by one")
        elif d in axes:
            draft.tie({0: d}, {0: d}, "stat", comm_bytes=rows)
        else:
            draft.tie({0: d}, {0: d})
    draft.default_why = "channels are normalized together, and scaled one by one"
    draft.per_element(8)
    return draft


@register_sharding_rule("relax.nn.batch_norm")
def batch_norm(call: CallShape) -> Draft:
    """Channels are kept, with the weights and statistics; the others too.

    In training mean and variance of the other dims are reduced inside, and the running
    statistics come out whole. Operands data, gamma, beta, moving mean, moving variance; results
    data, mean, variance.
    """
    draft = Draft(call)
    shape = call.ins[0]
    channel = int(call.attrs.axis) % len(shape)
    others = [d for d in range(len(shape)) if d != channel]
    row = statistic_bytes(shape, others, call.in_dtypes[0])
    for d, extent in enumerate(shape):
        if d == channel:
            matching = {i: 0 for i in range(1, 5) if same(call.ins[i][0], extent)}
            draft.tie({0: d, **matching}, {0: d, 1: 0, 2: 0})
        elif call.attrs.training:
            draft.tie({0: d}, {0: d}, "stat", comm_bytes=row)
        else:
            draft.tie({0: d}, {0: d})
    draft.default_why = "it is not provably one per channel"
    draft.per_element(10 if call.attrs.training else 5)
    return draft
