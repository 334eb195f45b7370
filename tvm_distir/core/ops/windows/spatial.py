# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Determines which spatial dims of a layout can be split into blocks, and why others cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_distir.core.ops.draft import CallShape, Draft

from .halo import Window, blocks_with_borders, tie_halo
from .halo_back import tie_argmax, tie_spread

if TYPE_CHECKING:
    from tvm import ir


def letters(layout: str) -> str | None:
    """Return the dim names of a layout without split dims (NCHW4c has such a dim)."""
    return layout if layout.isalpha() and layout.isupper() else None


def convolution_layouts(call: CallShape) -> tuple[str, str, str] | None:
    """Return the dim names of data, weight and result; None where any of them has split dims."""
    data = letters(str(call.attrs.data_layout))
    weight = letters(str(call.attrs.kernel_layout))
    out = letters(str(call.attrs.out_layout) or str(call.attrs.data_layout))
    return None if data is None or weight is None or out is None else (data, weight, out)


def tie_channels(draft: Draft, data: str, weight: str, out: str, dims: str) -> None:
    """Tie samples and channels of a convolution: a weight's dim of all groups, and of each."""
    groups, sizes = int(draft.call.attrs.groups), [weight.index(c) for c in dims]
    draft.tie({0: data.index("N")}, {0: out.index("N")})
    if groups == 1:
        draft.tie({1: weight.index("O")}, {0: out.index("C")})
        draft.tie({0: data.index("C"), 1: weight.index("I")}, {}, "sum")
        return
    full = {0: data.index("C"), 1: sizes[0]}
    draft.tie(full, {0: out.index("C")}, size=groups, uneven=False)
    draft.replicate("in", 1, sizes[1], "channels are sharded in multiples of a group")


def no_blocks(extent: int | ir.Expr, result: int | ir.Expr) -> str | None:
    """Return why a spatial dim has no blocks: its extent is not known, or it is too short."""
    if not isinstance(extent, int) or not isinstance(result, int):
        return "spatial dim of unknown extent: the size of its halo is unknown"
    if extent < 2 or result < 2:
        return f"{extent} rows result in {result}: there are no blocks"
    return None


def suits_map(window: Window, result: int | ir.Expr) -> bool:
    """Return whether blocks of separate windows are best split evenly, without any exchange.

    Where few devices divide the rows, uneven blocks (which exchange rows) are offered instead.
    """
    if window.stride == 1 or not isinstance(result, int):
        return True
    return result <= 2 or result % 4 == 0


def unsupported(draft: Draft) -> Draft:
    """Forbid sharding all dims, for a reason."""
    draft.default_why = "the layout has split dims"
    return draft


def _obstacle(
    call: CallShape, window: Window, extent: int | ir.Expr, result: int | ir.Expr
) -> str | None:
    """Return why blocks of a spatial dim cannot be combined with rows of the neighbours."""
    if (why := no_blocks(extent, result)) is not None:
        return why
    if _counts_apart(call, window, extent, result):
        if bool(call.attrs.ceil_mode):
            return "with ceil_mode, windows at the border average fewer rows"
        if blocks_with_borders(window, extent, result) == 1:
            return "windows at the border average fewer rows, and even blocks are too small"
    return None


def _counts_apart(call: CallShape, window: Window, extent: int, result: int) -> bool:
    """Return whether an average divides by fewer elements at the border than elsewhere."""
    if "avg_pool" not in call.op:
        return False
    over = window.overhang(extent, result)
    if bool(call.attrs.count_include_pad):
        return over > window.after
    return bool(window.before) or over > 0


def tie_spatial(draft: Draft, data: str, out: str, sliding: list[Window], title: str) -> None:
    """Tie the spatial dims of operand and result: evenly, with neighbour rows, or not at all."""
    for name, window in zip([c for c in data if c not in "NC"], sliding):
        d, o = data.index(name), out.index(name)
        extent, result = draft.call.ins[0][d], draft.call.outs[0][o]
        if window.separate(extent, result) and suits_map(window, result):
            draft.tie({0: d}, {0: o}, size=result, uneven=window.stride == 1)
            continue
        why = _obstacle(draft.call, window, extent, result)
        if why is not None:
            draft.replicate("in", 0, d, f"spatial dim of a {title}: {why}")
            draft.replicate("out", 0, o, f"spatial dim of a {title}: {why}")
        elif _counts_apart(draft.call, window, extent, result):
            blocks = blocks_with_borders(window, extent, result)
            tie_halo(draft, d, o, window, extent, result, blocks)
        else:
            tie_halo(draft, d, o, window, extent, result)


def tie_spread_rows(
    draft: Draft, dim: int, result_dim: int, window: Window, title: str, cut: tuple[int, ...] = ()
) -> None:
    """Tie dims of short and of long rows; ``cut``: operands sharded like the result."""
    short, long = draft.call.ins[0][dim], draft.call.outs[0][result_dim]
    others = dict.fromkeys(cut, dim)
    if window.separate(long, short) and suits_map(window, short):
        draft.tie({0: dim, **others}, {0: result_dim}, size=short, uneven=window.stride == 1)
    elif (why := no_blocks(short, long)) is not None:
        for side, number, d in (("in", 0, dim), ("out", 0, result_dim)):
            draft.replicate(side, number, d, f"spatial dim of a {title}: {why}")
        for number in cut:
            draft.replicate("in", number, dim, f"spatial dim of a {title}: {why}")
    elif "max_pool" in draft.call.op:
        tie_argmax(draft, dim, window)
    else:
        tie_spread(draft, dim, result_dim, window, others)
