# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules of ops that slide a window over spatial dims: convolutions and pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..dims import elements, nominal, same
from ..draft import CallShape, Draft
from ..registry import register_sharding_rule


@dataclass(frozen=True)
class Window:
    """A window along one spatial dim, in elements of the operand."""

    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        """Extent the window covers."""
        return (self.kernel - 1) * self.dilation + 1

    def separate(self, extent: Any, result: Any) -> bool:
        """Whether windows neither overlap nor leave the operand: blocks need no neighbour rows."""
        if self.before or self.after or self.reach > self.stride:
            return False
        return same(extent, result * self.stride)


def _letters(layout: str) -> str | None:
    """Dim names of a layout without split dims (NCHW4c has one)."""
    return layout if layout.isalpha() and layout.isupper() else None


def windows(call: CallShape, kernel: tuple[int, ...]) -> list[Window]:
    """Windows per spatial dim from strides, dilation and padding of the attributes."""
    count = len(kernel)
    pads = call.integers("padding") or (0,)
    if len(pads) == 1:
        pads = pads * (2 * count)
    elif len(pads) == count:
        pads = pads * 2
    strides, dilation = call.integers("strides") or (1,), call.integers("dilation") or (1,)
    strides, dilation = strides * (count // len(strides)), dilation * (count // len(dilation))
    return [
        Window(kernel[k], strides[k], dilation[k], pads[k], pads[k + count]) for k in range(count)
    ]


def _tie_spatial(draft: Draft, data: str, out: str, sliding: list[Window], what: str) -> None:
    names = [c for c in data if c not in "NC"]
    for name, window in zip(names, sliding):
        d, o = data.index(name), out.index(name)
        shape, result = draft.call.ins[0], draft.call.outs[0]
        if window.separate(shape[d], result[o]):
            draft.tie({0: d}, {0: o}, size=result[o], uneven=window.stride == 1)
        else:
            why = f"spatial dim of a {what}: blocks need neighbour rows (a halo)"
            draft.whole("in", 0, d, why)
            draft.whole("out", 0, o, why)


def _unsupported(draft: Draft) -> Draft:
    draft.default_why = "the layout has split dims"
    return draft


@register_sharding_rule("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")
def convolution(call: CallShape) -> Draft:
    """Batch and output channels are kept, input channels summed; groups are cut as a whole.

    FLOPs: 2 x results x (input channels per group) x kernel.
    """
    draft = Draft(call)
    data = _letters(str(call.attrs.data_layout))
    weight = _letters(str(call.attrs.kernel_layout))
    out = _letters(str(call.attrs.out_layout) or str(call.attrs.data_layout))
    if data is None or weight is None or out is None:
        return _unsupported(draft)
    groups = int(call.attrs.groups)
    w = call.ins[1]
    kernel = tuple(nominal(w[weight.index(c)]) for c in data if c not in "NC")
    draft.tie({0: data.index("N")}, {0: out.index("N")})
    if groups == 1:
        draft.tie({1: weight.index("O")}, {0: out.index("C")})
        draft.tie({0: data.index("C"), 1: weight.index("I")}, {}, "sum")
    else:
        draft.tie(
            {0: data.index("C"), 1: weight.index("O")},
            {0: out.index("C")},
            size=groups,
            uneven=False,
        )
        draft.whole("in", 1, weight.index("I"), "channels are cut in whole groups")
    for c in data:
        if c not in "NC":
            draft.whole("in", 1, weight.index(c), "kernel positions move together")
    _tie_spatial(draft, data, out, windows(call, kernel), "convolution")
    draft.linear((0,), (1,))
    taps = nominal(w[weight.index("I")])
    for n in kernel:
        taps *= n
    draft.work(2 * elements(call.outs[0]) * taps, "conv")
    return draft


@register_sharding_rule(
    "relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose", "relax.nn.conv3d_transpose"
)
def transposed_convolution(call: CallShape) -> Draft:
    """As a convolution; spatial dims are whole. The kernel's O counts one group's channels.

    FLOPs: 2 x operand elements x (output channels per group) x kernel.
    """
    draft = Draft(call)
    data = _letters(str(call.attrs.data_layout))
    weight = _letters(str(call.attrs.kernel_layout))
    out = _letters(str(call.attrs.out_layout) or str(call.attrs.data_layout))
    if data is None or weight is None or out is None:
        return _unsupported(draft)
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
    draft.default_why = "spatial dim of a transposed convolution: blocks overlap (a halo)"
    draft.linear((0,), (1,))
    taps = nominal(w[weight.index("O")])
    for c in data:
        if c not in "NC":
            taps *= nominal(w[weight.index(c)])
    draft.work(2 * elements(call.ins[0]) * taps, "conv")
    return draft


_POOLS = [f"relax.nn.{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)]


@register_sharding_rule(*_POOLS)
def pool(call: CallShape) -> Draft:
    """Batch and channels are kept; an average is linear."""
    draft = Draft(call)
    data = _letters(str(call.attrs.layout))
    out = _letters(str(call.attrs.out_layout) or str(call.attrs.layout))
    if data is None or out is None:
        return _unsupported(draft)
    kernel = call.integers("pool_size") or (1,)
    count = len(data) - 2
    kernel = kernel * (count // len(kernel))
    for c in "NC":
        draft.tie({0: data.index(c)}, {0: out.index(c)})
    _tie_spatial(draft, data, out, windows(call, kernel), "pool")
    if "avg" in call.op:
        draft.linear((0,))
    taps = 1
    for n in kernel:
        taps *= n
    draft.per_element(taps)
    return draft


@register_sharding_rule(*(f"relax.nn.adaptive_avg_pool{n}d" for n in (1, 2, 3)))
def adaptive_pool(call: CallShape) -> Draft:
    """Batch and channels are kept; spatial windows depend on the whole extents."""
    draft = Draft(call)
    data = _letters(str(call.attrs.layout))
    out = _letters(str(call.attrs.out_layout) or str(call.attrs.layout))
    if data is None or out is None:
        return _unsupported(draft)
    for c in "NC":
        draft.tie({0: data.index(c)}, {0: out.index(c)})
    draft.default_why = "the windows of an adaptive pool depend on the whole extent"
    draft.linear((0,))
    draft.work(elements(call.ins[0]))
    return draft


@register_sharding_rule("relax.grad.max_pool2d_backward", "relax.grad.avg_pool2d_backward")
def pool_backward(call: CallShape) -> Draft:
    """Batch and channels are kept; linear in the gradient."""
    draft = Draft(call)
    data = _letters(str(call.attrs.layout))
    if data is None:
        return _unsupported(draft)
    for c in "NC":
        d = data.index(c)
        draft.tie({0: d, 1: d}, {0: d})
    draft.default_why = "spatial dim of a pool: blocks need neighbour rows (a halo)"
    draft.linear((0,))
    taps = 1
    for n in call.integers("pool_size") or (1,):
        taps *= n
    draft.per_element(taps)
    return draft


@register_sharding_rule("relax.image.resize2d", "relax.image.resize3d")
def resize(call: CallShape) -> Draft:
    """Batch and channels are kept."""
    draft = Draft(call)
    data = _letters(str(call.attrs.layout))
    if data is None:
        return _unsupported(draft)
    for c in "NC":
        draft.tie({0: data.index(c)}, {0: data.index(c)})
    draft.default_why = "sampled positions depend on the whole extent"
    draft.per_element(8)
    return draft
