# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of pools: windows over sharded rows, with or without padding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.operators.names import AVERAGES, each_rank
from tvm_distir.core.ops.dims import elements
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.attrs import changed
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.local.sliding import halo_dims, lowest, pool_kernel, slid, spatial
from tvm_distir.core.ops.registration import SAME_OP, Family
from tvm_distir.core.ops.windows.halo import Window, exchange, windows
from tvm_distir.core.ops.windows.spatial import letters, tie_spatial, unsupported

FAMILY: Family = Family()


def _pool(cx: LocalCall, value: Any) -> ir.Call:
    a = cx.call.attrs
    x, pads = slid(cx, str(a.layout), pool_kernel(a), value)
    return ir.Call(cx.call.op, [x], changed(a, padding=pads))


def max_pool_on_shards(cx: LocalCall) -> ir.Call:
    """Exchange rows along sharded spatial dims; the border holds the lowest number."""
    return _pool(cx, lowest(cx.ins[0].shard.dtype))


@dataclass(frozen=True)
class _Border:
    """A sharded dim whose border windows average fewer rows than the others.

    Attributes
    ----------
    dim, result_dim, spatial : int
        The numbers of the dim among the operand's, the result's and the spatial dims.
    window : Window
    first, last : int
        The numbers of such rows of the full result at either end.
    end : int
        The end of the local shard in what the windows read.
    over : int
        Rows that the last window reaches behind the full operand.
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
    a, shard, out = cx.call.attrs, cx.ins[0].shard, cx.outs[0]
    borders = []
    for dim, result_dim in () if a.count_include_pad else halo_dims(cx):
        k = names.index(str(a.layout)[dim])
        extent, result = shard.global_shape[dim], out.global_shape[result_dim]
        count = shard.counts[dim]
        first, last = sliding[k].borders(extent, result)
        if not first and not last:
            continue
        plan = exchange(sliding[k], extent, result, count)
        if plan.drift or extent % count or result % count or first + last > result // count:
            raise cx.fault(
                "DIST0507",
                f"dim {dim} of size {extent} is sharded into {count} parts, which are too small "
                "or uneven for "
                "an average that excludes padding",
                "Use fewer devices, or replicate the dim.",
            )
        over = max(0, sliding[k].overhang(extent, result))
        end = sliding[k].before + shard.local[dim]
        borders.append(_Border(dim, result_dim, k, sliding[k], first, last, end, over))
    return borders


def _averaged(cx: LocalCall, x: ir.Expr, pads: list[int], borders: list[_Border]) -> ir.Expr:
    """Average; the border rows of the full result are computed apart, as the op pads them."""
    if not borders:
        return cx.emit(ir.Call(cx.call.op, [x], changed(cx.call.attrs, padding=pads)), "average")
    border, rest = borders[0], borders[1:]
    inner = _averaged(cx, x, pads, rest)
    rows, step, parts = int(inner.ty.shape[border.result_dim]), border.window.stride, []
    axes, ranks = cx.axes_of_dim(0, border.dim), cx.ins[0].shard.counts[border.dim]

    def part(value: ir.Expr, dim: int, begin: int, end: int) -> ir.Expr:
        return cx.emit(relax.op.strided_slice(value, [dim], [begin], [end]), "rows")

    def chosen(
        position: int, begin: int, end: int, before: int, after: int, at: int, to: int
    ) -> None:
        """Compute result rows at:to of the rank ``position`` from rows begin:end with padding."""
        mine = list(pads)
        mine[border.spatial], mine[border.spatial + len(pads) // 2] = before, after
        border_rows = _averaged(cx, part(x, border.dim, begin, end), mine, rest)
        here = relax.op.equal(cx.position(axes), relax.const(position, "int64"))
        usual = part(inner, border.result_dim, at, to)
        parts.append(cx.emit(relax.op.where(cx.emit(here, "here"), border_rows, usual), "rows"))

    before, last = border.window.before, rows - border.last
    if border.first:
        end = (border.first - 1) * step + border.window.reach
        chosen(0, before, end, before, 0, 0, border.first)
    if last > border.first:
        parts.append(part(inner, border.result_dim, border.first, last))
    if border.last:
        chosen(ranks - 1, last * step, border.end, 0, border.over, last, rows)
    return cx.emit(relax.op.concat(parts, border.result_dim), "average")


def avg_pool_on_shards(cx: LocalCall) -> ir.Expr:
    """Exchange rows along sharded spatial dims; the border holds zeros.

    Where zeros are not counted, the first and last rows of the full result are computed apart.
    """
    a = cx.call.attrs
    names, kernel = spatial(str(a.layout)), pool_kernel(a)
    borders = _borders(cx, names, windows(a, kernel))
    if not borders:
        return _pool(cx, 0)
    x, pads = slid(cx, str(a.layout), kernel, 0)
    return _averaged(cx, x, pads, borders)


@FAMILY.rule(*each_rank("relax.nn.max_pool{}d"), local=max_pool_on_shards)
@FAMILY.rule(*AVERAGES, local=avg_pool_on_shards)
def pool(call: CallShape) -> Draft:
    """Shard batch, channels and spatial dims; an average is linear."""
    draft = Draft(call)
    layouts = _tied_layouts(draft)
    if layouts is None:
        return unsupported(draft)
    data, out = layouts
    kernel = call.integers("pool_size") or (1,)
    kernel = kernel * ((len(data) - 2) // len(kernel))
    tie_spatial(draft, data, out, windows(call.attrs, kernel), "pool")
    if "avg" in call.op and call.floats:  # an integer average rounds
        draft.linear((0,))
    return draft.per_element(math.prod(kernel))


def _tied_layouts(draft: Draft) -> tuple[str, str] | None:
    """Tie batch and channels; return the layouts of data and result if they are supported."""
    attrs = draft.call.attrs
    data, out = letters(str(attrs.layout)), letters(str(attrs.out_layout) or str(attrs.layout))
    if data is None or out is None:
        return None
    for c in "NC":
        draft.tie({0: data.index(c)}, {0: out.index(c)})
    return data, out


@FAMILY.rule(*each_rank("relax.nn.adaptive_avg_pool{}d"), local=SAME_OP)
def adaptive_pool(call: CallShape) -> Draft:
    """Shard batch and channels; spatial windows depend on the full extents."""
    draft = Draft(call, why="the windows of an adaptive pool depend on the full extent")
    if _tied_layouts(draft) is None:
        return unsupported(draft)
    if call.floats:
        draft.linear((0,))
    return draft.work(elements(call.ins[0]))
