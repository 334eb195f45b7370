# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules of ops whose windows write: transposed convolutions, and the gradients of pools."""

from __future__ import annotations

import math

from ..dims import elements, nominal
from ..draft import CallShape, Draft
from ..halo import Window, windows
from ..halo_back import tie_argmax, tie_spread
from ..registry import register_sharding_rule
from .windows import convolution_layouts, letters, no_blocks, suits_map, unsupported


@register_sharding_rule(
    "relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose", "relax.nn.conv3d_transpose"
)
def transposed_convolution(call: CallShape) -> Draft:
    """As a convolution, its windows spread. The kernel's O counts one group's channels.

    FLOPs: 2 x operand elements x (output channels per group) x kernel.
    """
    draft = Draft(call)
    found = convolution_layouts(call)
    if found is None:
        return unsupported(draft)
    data, weight, out = found
    w = call.ins[1]
    draft.tie({0: data.index("N")}, {0: out.index("N")})
    if int(call.attrs.groups) == 1:
        draft.tie({1: weight.index("O")}, {0: out.index("C")})
        draft.tie({0: data.index("C"), 1: weight.index("I")}, {}, "sum")
    else:
        draft.tie(
            {0: data.index("C"), 1: weight.index("I")},
            {0: out.index("C")},
            size=int(call.attrs.groups),
            uneven=False,
        )
        draft.whole("in", 1, weight.index("O"), "channels are cut in whole groups")
    names = [c for c in data if c not in "NC"]
    kernel = tuple(nominal(w[weight.index(c)]) for c in names)
    for c, window in zip(names, windows(call.attrs, kernel)):
        _tie_spatial(draft, data.index(c), out.index(c), window, "transposed convolution")
        draft.whole("in", 1, weight.index(c), "kernel positions move together")
    draft.linear((0,), (1,))
    taps = nominal(w[weight.index("O")]) * math.prod(kernel)
    draft.work(2 * elements(call.ins[0]) * taps, "conv")
    return draft


def _tie_spatial(
    draft: Draft, dim: int, result_dim: int, window: Window, what: str, cut: tuple[int, ...] = ()
) -> None:
    """Tie a dim of short rows with one of long rows; ``cut``: operands cut as the result is."""
    short, long = draft.call.ins[0][dim], draft.call.outs[0][result_dim]
    others = dict.fromkeys(cut, dim)
    if window.separate(long, short) and suits_map(window, short):
        draft.tie({0: dim, **others}, {0: result_dim}, size=short, uneven=window.stride == 1)
    elif (why := no_blocks(short, long)) is not None:
        for side, number, d in (("in", 0, dim), ("out", 0, result_dim)):
            draft.whole(side, number, d, f"spatial dim of a {what}: {why}")
        for number in cut:
            draft.whole("in", number, dim, f"spatial dim of a {what}: {why}")
    elif "max_pool" in draft.call.op:
        tie_argmax(draft, dim, window)
    else:
        tie_spread(draft, dim, result_dim, window, others)


@register_sharding_rule("relax.grad.max_pool2d_backward", "relax.grad.avg_pool2d_backward")
def pool_backward(call: CallShape) -> Draft:
    """Batch and channels are kept, spatial dims exchange rows; linear in the gradient.

    Operands: gradient of the result, data (of which an average needs the shape only).
    """
    draft = Draft(call)
    data = letters(str(call.attrs.layout))
    if data is None or str(call.attrs.out_layout or data) != data:
        return unsupported(draft)
    kernel = call.integers("pool_size") or (1,)
    names = [c for c in data if c not in "NC"]
    kernel = kernel * (len(names) // len(kernel))
    for c in "NC":
        d = data.index(c)
        draft.tie({0: d, 1: d}, {0: d})
    for c, window in zip(names, windows(call.attrs, kernel)):
        d = data.index(c)
        _tie_spatial(draft, d, d, window, "pool's gradient", (1,))
    draft.linear((0,))
    draft.per_element(math.prod(kernel))
    return draft
