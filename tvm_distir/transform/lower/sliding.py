# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ops that slide a window: convolutions, pools, padding and resizing on shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, relax

from ...rules.halo import Exchange, Window, exchange, windows
from ...rules.halo_back import turned
from .calls import LocalCall, register_local
from .fold import changed
from .halo import with_halo
from .padding import neutral_element


def halo_dims(cx: LocalCall) -> list[tuple[int, int]]:
    """Dims of operand and result that follow a halo factor over more than one device."""
    found = []
    for factor in cx.form.factors:
        if factor is None or factor.kind != "halo":
            continue
        dim, result_dim = factor.ins[0], factor.outs[0]
        if dim is None or result_dim is None or cx.ins[0].shard.counts[dim] == 1:
            continue
        if (dim, result_dim) not in found:
            cx.check_order(cx.ins[0].shard, dim)
            cx.check_order(cx.outs[0], result_dim)
            found.append((dim, result_dim))
    return found


def _planned(cx: LocalCall, dim: int, result_dim: int, window: Window) -> Exchange:
    """Exchange of the first operand for windows that give the first result."""
    own = cx.ins[0].shard
    return exchange(window, own.whole[dim], cx.outs[0].whole[result_dim], own.counts[dim])


def _slid(cx: LocalCall, layout: str, kernel: tuple[int, ...], value: Any) -> tuple[Any, list[int]]:
    """First operand with all neighbour rows, and the padding that is left to the op."""
    names = spatial(layout)
    sliding = windows(cx.call.attrs, kernel)
    pads = [w.before for w in sliding] + [w.after for w in sliding]
    x = cx.operand(0)
    for dim, result_dim in halo_dims(cx):
        k = names.index(layout[dim])
        x = with_halo(cx, 0, x, dim, _planned(cx, dim, result_dim, sliding[k]), value)
        pads[k] = pads[k + len(names)] = 0
    return x, pads


def spatial(layout: str) -> list[str]:
    """Names of the spatial dims of a layout, in order."""
    return [c for c in layout if c not in "NC"]


def _contracted(cx: LocalCall, layout: str) -> list[tuple[int, int]]:
    """Spatial dims, of data and kernel, that several devices sum over (a weight's gradient)."""
    found = []
    for factor in cx.form.factors:
        if factor is None or not factor.reduces:
            continue
        dim, kernel_dim = factor.ins
        if dim is None or kernel_dim is None or layout[dim] in "NC":
            continue
        if cx.ins[0].shard.counts[dim] > 1 and (dim, kernel_dim) not in found:
            cx.check_order(cx.ins[0].shard, dim)
            cx.check_order(cx.ins[1].shard, kernel_dim)
            found.append((dim, kernel_dim))
    return found


@register_local(*(f"relax.nn.conv{n}d" for n in (1, 2, 3)))
def convolution(cx: LocalCall) -> Any:
    """Neighbour rows along cut spatial dims; cut along its channels, a device's own groups.

    A weight's gradient gets those that the windows at its own positions read.
    """
    a, weight = cx.call.attrs, cx.ins[1].shard
    layout, kernel_layout = str(a.data_layout), str(a.kernel_layout)
    kernel = tuple(weight.whole[kernel_layout.index(c)] for c in layout if c not in "NC")
    x, pads = _slid(cx, layout, kernel, 0)
    for dim, kernel_dim in _contracted(cx, layout):
        k = spatial(layout).index(layout[dim])
        own, taps = cx.ins[0].shard, cx.outs[0].whole[str(a.out_layout).index(layout[dim])]
        window = turned(windows(a, kernel)[k], taps)
        plan = exchange(window, own.whole[dim], weight.whole[kernel_dim], own.counts[dim])
        x = with_halo(cx, 0, x, dim, plan)
        pads[k] = pads[k + len(kernel)] = 0
    groups = int(a.groups)
    if groups > 1:
        groups //= cx.ins[0].shard.counts[layout.index("C")]
    attrs = changed(a, padding=pads, groups=groups)
    return ir.Call(cx.call.op, [x, cx.operand(1)], attrs)


def lowest(dtype: str) -> Any:
    """What a max pool pads with: the lowest finite number."""
    if dtype == "bfloat16":
        return np.float32(-3.3895313892515355e38)
    if np.dtype(dtype).kind == "f":
        return np.finfo(dtype).min
    return neutral_element("max", dtype)


def pool_kernel(attrs: Any) -> tuple[int, ...]:
    """Window of a pool, one extent per spatial dim."""
    kernel = tuple(int(n) for n in attrs.pool_size)
    return kernel * ((len(str(attrs.layout)) - 2) // len(kernel))


def _pool(cx: LocalCall, value: Any) -> Any:
    a = cx.call.attrs
    x, pads = _slid(cx, str(a.layout), pool_kernel(a), value)
    return ir.Call(cx.call.op, [x], changed(a, padding=pads))


@register_local(*(f"relax.nn.max_pool{n}d" for n in (1, 2, 3)))
def max_pool(cx: LocalCall) -> Any:
    """Neighbour rows along cut spatial dims; the lowest number around the border."""
    return _pool(cx, lowest(cx.ins[0].shard.dtype))


@dataclass(frozen=True)
class _Border:
    """A cut dim whose border windows average fewer rows than the others.

    Attributes
    ----------
    dim, result_dim, spatial : int
        Its numbers among the operand's, the result's and the spatial dims.
    window : Window
    first, last : int
        How many rows of the whole result they are at either end.
    end : int
        Where the own shard ends in what the windows read.
    over : int
        Rows that the last window reaches behind the whole operand.
    """

    dim: int
    result_dim: int
    spatial: int
    window: Window
    first: int
    last: int
    end: int
    over: int


def _borders(cx: LocalCall, names: list[str], sliding: list[Window]) -> list[_Border]:
    a, own, out = cx.call.attrs, cx.ins[0].shard, cx.outs[0]
    found = []
    for dim, result_dim in () if a.count_include_pad else halo_dims(cx):
        k = names.index(str(a.layout)[dim])
        extent, result, count = own.whole[dim], out.whole[result_dim], own.counts[dim]
        first, last = sliding[k].borders(extent, result)
        if not first and not last:
            continue
        plan = exchange(sliding[k], extent, result, count)
        if plan.drift or extent % count or result % count or first + last > result // count:
            raise cx.fault(
                "DIST0507",
                f"dim {dim} of size {extent} is cut into {count} parts, too small or uneven for "
                "an average that counts no padding",
                "Use fewer devices, or replicate the dim.",
            )
        over = max(0, sliding[k].overhang(extent, result))
        end = sliding[k].before + own.local[dim]
        found.append(_Border(dim, result_dim, k, sliding[k], first, last, end, over))
    return found


def _averaged(cx: LocalCall, x: Any, pads: list[int], borders: list[_Border]) -> Any:
    """Average; the border rows of the whole result apart, as the op does with its padding."""
    if not borders:
        return cx.emit(ir.Call(cx.call.op, [x], changed(cx.call.attrs, padding=pads)), "average")
    one, rest = borders[0], borders[1:]
    inner = _averaged(cx, x, pads, rest)
    rows, step, parts = int(inner.ty.shape[one.result_dim]), one.window.stride, []
    axes, ranks = cx.axes_of_dim(0, one.dim), cx.ins[0].shard.counts[one.dim]

    def part(value: Any, dim: int, begin: int, end: int) -> Any:
        return cx.emit(relax.op.strided_slice(value, [dim], [begin], [end]), "rows")

    def chosen(place: int, begin: int, end: int, before: int, after: int, at: int, to: int) -> None:
        """Result rows at:to of the rank at ``place`` come of rows begin:end with padding."""
        mine = list(pads)
        mine[one.spatial], mine[one.spatial + len(pads) // 2] = before, after
        apart = _averaged(cx, part(x, one.dim, begin, end), mine, rest)
        here = relax.op.equal(cx.position(axes), relax.const(place, "int64"))
        usual = part(inner, one.result_dim, at, to)
        parts.append(cx.emit(relax.op.where(cx.emit(here, "here"), apart, usual), "rows"))

    before, last = one.window.before, rows - one.last
    if one.first:
        end = (one.first - 1) * step + one.window.reach
        chosen(0, before, end, before, 0, 0, one.first)
    if last > one.first:
        parts.append(part(inner, one.result_dim, one.first, last))
    if one.last:
        chosen(ranks - 1, last * step, one.end, 0, one.over, last, rows)
    return cx.emit(relax.op.concat(parts, one.result_dim), "average")


@register_local(*(f"relax.nn.avg_pool{n}d" for n in (1, 2, 3)))
def avg_pool(cx: LocalCall) -> Any:
    """Neighbour rows along cut spatial dims; zeros around the border.

    Where zeros are not counted, the first and last rows of the whole result are computed apart.
    """
    a = cx.call.attrs
    names, kernel = spatial(str(a.layout)), pool_kernel(a)
    borders = _borders(cx, names, windows(a, kernel))
    if not borders:
        return _pool(cx, 0)
    x, pads = _slid(cx, str(a.layout), kernel, 0)
    return _averaged(cx, x, pads, borders)


@register_local("relax.nn.pad")
def pad(cx: LocalCall) -> Any:
    """Along a cut dim rows move to where the longer result is cut; other dims are padded."""
    a = cx.call.attrs
    widths, value, x = [int(n) for n in a.pad_width], float(a.pad_value), cx.operand(0)
    halo = halo_dims(cx)
    if not halo:
        return cx.same()
    for dim, result_dim in halo:
        window = Window(1, 1, 1, widths[2 * dim], widths[2 * dim + 1])
        x = with_halo(cx, 0, x, dim, _planned(cx, dim, result_dim, window), value)
        widths[2 * dim] = widths[2 * dim + 1] = 0
    if not any(widths):
        return x
    return ir.Call(cx.call.op, [x], changed(a, pad_width=widths))


@register_local("relax.image.resize2d", "relax.image.resize3d")
def resize(cx: LocalCall) -> Any:
    """A cut spatial dim is one of copied pixels: its local size is that of the local result."""
    attrs, out = cx.call.attrs, cx.outs[0].local
    size = [n for n, letter in zip(out, str(attrs.layout), strict=True) if letter not in "NC"]
    return ir.Call(cx.call.op, [cx.operand(0), relax.ShapeExpr(size)], attrs)
