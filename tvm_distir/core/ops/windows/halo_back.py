# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plans the row exchange of transposed convolutions and of gradients of windows.

A window maps ``long`` rows to ``short`` rows: short row ``i`` reads the long rows
``i stride - before + k dilation`` for ``k < kernel``. A transposed convolution, as the gradient
of an average pool, has the short rows as its operand and adds row ``i`` into those long rows.
Blocks of its results can be computed in two ways:

- *gathered*: each rank fetches the short rows that reach into its long rows;
- *returned*: each rank spreads its short rows, and sends sums outside of its long rows to the
  neighbours, which add them.

The gradient of a convolution's weight sums over both: rank by rank, over the local short rows and
the long rows that the windows there read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm_distir.core.ops.draft import Draft

from .halo import Exchange, Window, blocks_of, exchange, fetching, most_blocks, rows_bytes, tie_rows


@dataclass(frozen=True)
class RowSpread:
    """Plan by which a rank computes its block of long rows from short rows it has fetched.

    Attributes
    ----------
    fetch : Exchange
        The exchange of the short rows.
    count : int
        Long rows that the local op gives, from the ``front``-th on that its short rows reach.
    front, back : int
        Rows that the local op leaves out before and behind those.
    more : int
        The number of these rows at the end that no short row reaches.
    ragged : bool
        Whether the rank's block starts at its row ``(rank drift + phase) % per`` of these, with
        the numbers of ``fetch``; else it is all of them.
    """

    fetch: Exchange
    count: int
    front: int
    back: int
    more: int
    ragged: bool


def spread(window: Window, short: int, long: int, ranks: int) -> RowSpread:
    """Plan the fetch of short rows.

    Long row ``o`` is reached by the short rows from ``ceil((o + before - reach + 1) / stride)``
    to ``floor((o + before) / stride)``.
    """
    stride, reach, before = window.stride, window.reach, window.before
    rows, out = -(-short // ranks), -(-long // ranks)
    reads = []
    for first, end in blocks_of(long, ranks):
        least = -(-(first + before - reach + 1) // stride)
        reads.append((least, max(least, (end - 1 + before) // stride + 1 if first < end else 0)))
    drift = out - stride * rows
    ragged = drift % stride != 0
    rest = 0 if ragged else before % stride
    behind_by = max(0, (reach - 1 - rest) // stride)
    front, count = rest + behind_by * stride, out + (stride - 1 if ragged else 0)
    span = (rest + count - 1) // stride + behind_by + 1
    fetch = fetching(rows, short, span, -behind_by, reads, drift, before, stride)
    back = (span - 1) * stride + reach - front - count
    return RowSpread(fetch, count, front, max(0, back), max(0, -back), ragged)


def gathers(
    window: Window, short: int, long: int, ranks: int, short_bytes: int, long_bytes: int
) -> bool:
    """Return whether fetching short rows sends no more bytes than returning long rows.

    ``short_bytes`` and ``long_bytes`` are those of a row.
    """
    fetch = spread(window, short, long, ranks).fetch
    back = exchange(window, long, short, ranks)
    return (fetch.left + fetch.right) * short_bytes <= (back.left + back.right) * long_bytes


def tie_spread(
    draft: Draft, dim: int, result_dim: int, window: Window, others: Mapping[int, int]
) -> None:
    """Add the factor of a spatial dim with short rows in the operand and long rows in the result.

    ``comm_bytes`` are those of the cheaper way, over two ranks. ``others``: dims of operands that
    are sharded as the result is.
    """
    short, long = draft.call.ins[0][dim], draft.call.outs[0][result_dim]
    fetch, back = spread(window, short, long, 2).fetch, exchange(window, long, short, 2)
    gathered = rows_bytes(draft, "in", 0, dim, fetch.left + fetch.right)
    returned = rows_bytes(draft, "out", 0, result_dim, back.left + back.right)
    sent_bytes = gathered if others else min(gathered, returned)
    tie_rows(draft, {0: dim, **others}, {0: result_dim}, most_blocks(short, long), sent_bytes)


def tie_argmax(draft: Draft, dim: int, window: Window) -> None:
    """Add the factor of a spatial dim of a max pool's gradient (short rows, and long rows twice).

    A rank fetches the long rows its windows read, and returns what belongs to neighbours.
    """
    short, long = draft.call.ins[0][dim], draft.call.ins[1][dim]
    plan = exchange(window, long, short, 2)
    sent_bytes = 2 * rows_bytes(draft, "in", 1, dim, plan.left + plan.right)
    tie_rows(draft, {0: dim, 1: dim}, {0: dim}, most_blocks(short, long), sent_bytes)


def turned(window: Window, kernel: int) -> Window:
    """Return the window of a convolution whose weight gradient moves ``window`` to ``kernel``."""
    return Window(kernel, window.dilation, window.stride, window.before, window.after)


def tie_contracted(draft: Draft, dim: int, kernel_dim: int, window: Window, kernel: int) -> None:
    """Add the factor of a spatial dim that a weight's gradient sums over.

    The long rows are those of the first operand, the short ones those of the second; ``window``
    has as many positions as these, and the result ``kernel`` rows.
    """
    long, short = draft.call.ins[0][dim], draft.call.ins[1][kernel_dim]
    plan = exchange(turned(window, kernel), long, short, 2)
    sent_bytes = rows_bytes(draft, "in", 0, dim, plan.left + plan.right)
    tie_rows(draft, {0: dim, 1: kernel_dim}, {}, most_blocks(long, short), sent_bytes)
