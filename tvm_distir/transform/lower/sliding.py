# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ops that slide a window: convolutions, pools and padding on shards."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir

from ...rules.halo import Window, windows
from .calls import LocalCall, register_local
from .fold import changed
from .halo import with_halo
from .padding import neutral_element


def _halo_dims(cx: LocalCall) -> list[tuple[int, int]]:
    """Dims of operand and result that follow a halo factor over more than one device."""
    found = []
    for factor in cx.form.factors:
        if factor is None or factor.kind != "halo":
            continue
        dim, result_dim = factor.ins[0], factor.outs[0]
        if dim is None or result_dim is None or cx.ins[0].shard.counts[dim] == 1:
            continue
        if (dim, result_dim) not in found:
            found.append((dim, result_dim))
    return found


def _slid(cx: LocalCall, layout: str, kernel: tuple[int, ...], value: Any) -> tuple[Any, list[int]]:
    """First operand with all neighbour rows, and the padding that is left to the op."""
    names = [c for c in layout if c not in "NC"]
    sliding = windows(cx.call.attrs, kernel)
    pads = [w.before for w in sliding] + [w.after for w in sliding]
    x = cx.operand(0)
    for dim, result_dim in _halo_dims(cx):
        k = names.index(layout[dim])
        x = with_halo(cx, x, dim, result_dim, sliding[k], value)
        pads[k] = pads[k + len(names)] = 0
    return x, pads


@register_local(*(f"relax.nn.conv{n}d" for n in (1, 2, 3)))
def convolution(cx: LocalCall) -> Any:
    """Neighbour rows along cut spatial dims; cut along its channels, a device's own groups."""
    a, weight = cx.call.attrs, cx.ins[1].shard
    layout, kernel_layout = str(a.data_layout), str(a.kernel_layout)
    kernel = tuple(weight.whole[kernel_layout.index(c)] for c in layout if c not in "NC")
    x, pads = _slid(cx, layout, kernel, 0)
    groups = int(a.groups)
    if groups > 1:
        groups //= cx.ins[0].shard.counts[layout.index("C")]
    attrs = changed(a, padding=pads, groups=groups)
    return ir.Call(cx.call.op, [x, cx.operand(1)], attrs)


@register_local(*(f"relax.nn.conv{n}d_transpose" for n in (1, 2, 3)))
def transposed_convolution(cx: LocalCall) -> Any:
    """A grouped one cut along its channels has its own groups only."""
    a = cx.call.attrs
    groups = int(a.groups)
    if groups > 1:
        groups //= cx.ins[0].shard.counts[str(a.data_layout).index("C")]
    return ir.Call(cx.call.op, [cx.operand(0), cx.operand(1)], changed(a, groups=groups))


def _lowest(dtype: str) -> Any:
    """What a max pool pads with: the lowest finite number."""
    if dtype == "bfloat16":
        return np.float32(-3.3895313892515355e38)
    if np.dtype(dtype).kind == "f":
        return np.finfo(dtype).min
    return neutral_element("max", dtype)


def _pool(cx: LocalCall, value: Any) -> Any:
    a = cx.call.attrs
    layout = str(a.layout)
    kernel = tuple(int(n) for n in a.pool_size)
    kernel = kernel * ((len(layout) - 2) // len(kernel))
    x, pads = _slid(cx, layout, kernel, value)
    return ir.Call(cx.call.op, [x], changed(a, padding=pads))


@register_local(*(f"relax.nn.max_pool{n}d" for n in (1, 2, 3)))
def max_pool(cx: LocalCall) -> Any:
    """Neighbour rows along cut spatial dims; the lowest number around the border."""
    return _pool(cx, _lowest(cx.ins[0].shard.dtype))


@register_local(*(f"relax.nn.avg_pool{n}d" for n in (1, 2, 3)))
def avg_pool(cx: LocalCall) -> Any:
    """Neighbour rows along cut spatial dims; zeros around the border, which are counted."""
    return _pool(cx, 0)


@register_local("relax.nn.pad")
def pad(cx: LocalCall) -> Any:
    """Along a cut dim rows move to where the longer result is cut; other dims are padded."""
    a = cx.call.attrs
    widths, value, x = [int(n) for n in a.pad_width], float(a.pad_value), cx.operand(0)
    halo = _halo_dims(cx)
    if not halo:
        return cx.same()
    for dim, result_dim in halo:
        window = Window(1, 1, 1, widths[2 * dim], widths[2 * dim + 1])
        x = with_halo(cx, x, dim, result_dim, window, value)
        widths[2 * dim] = widths[2 * dim + 1] = 0
    if not any(widths):
        return x
    return ir.Call(cx.call.op, [x], changed(a, pad_width=widths))
