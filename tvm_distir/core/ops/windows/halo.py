# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plans the neighbour rows that a block of a dim needs for windows that slide over it.

A dim of ``extent`` rows and a result of ``result`` rows are sharded over ``n`` ranks in shards of
``A = ceil(extent/n)`` and ``B = ceil(result/n)`` rows. Result row ``o`` reads the rows
``o stride - before + k dilation`` for ``k < kernel``. So the result rows of rank ``r`` read
``span = (B - 1) stride + reach`` rows; the first lies ``r (B stride - A) - before`` rows behind
the start of the rank's shard. Blocks are aligned when that does not depend on r.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_distir.core.ops.dims import same, size_bytes
from tvm_distir.core.ops.draft import Draft

if TYPE_CHECKING:
    from tvm import ir


@dataclass(frozen=True)
class Window:
    """A window along a dim, in rows of the operand.

    Attributes
    ----------
    kernel, stride, dilation : int
    before : int
        Rows of padding in front of the operand. What is behind it follows from the extents.
    after : int
        Rows of padding that the attributes put behind it.
    """

    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        """Return the extent the window covers."""
        return (self.kernel - 1) * self.dilation + 1

    def separate(self, extent: int | ir.Expr, result: int | ir.Expr) -> bool:
        """Return whether windows neither overlap nor leave the operand, so need no neighbours."""
        if self.before or self.after or self.reach > self.stride:
            return False
        return same(extent, result * self.stride)

    def overhang(self, extent: int, result: int) -> int:
        """Return how many rows the last window reaches behind the operand (negative: inside)."""
        return (result - 1) * self.stride - self.before + self.reach - extent

    def borders(self, extent: int, result: int) -> tuple[int, int]:
        """Return how many first and last result rows have windows that leave the operand."""
        over = max(0, self.overhang(extent, result))
        return -(-self.before // self.stride), -(-over // self.stride)


def windows(attrs: ir.Attrs, kernel: Sequence[int]) -> list[Window]:
    """Return a window per spatial dim from strides, dilation and padding of a call's attributes."""
    count = len(kernel)

    def listed(name: str, default: int) -> tuple[int, ...]:
        value = getattr(attrs, name)
        if value is None:
            return (default,)
        return (int(value),) if isinstance(value, int) else tuple(int(x) for x in value)

    pads = listed("padding", 0)
    if len(pads) == 1:
        pads = pads * (2 * count)
    elif len(pads) == count:
        pads = pads * 2
    strides, dilation = listed("strides", 1), listed("dilation", 1)
    strides, dilation = strides * (count // len(strides)), dilation * (count // len(dilation))
    return [
        Window(kernel[k], strides[k], dilation[k], pads[k], pads[k + count]) for k in range(count)
    ]


@dataclass(frozen=True)
class Exchange:
    """Rows that the ranks along a dim exchange, with the same counts on every rank.

    Attributes
    ----------
    rows : int
        Rows of a shard (padded).
    left, right : int
        Rows fetched of the ranks before and behind.
    span : int
        Rows the local op reads.
    start, drift, phase, per : int
        Rank r's first row is at ``start + (r drift + phase) // per``, in the shard extended by
        ``low + left`` rows in front.
    low, high : int
        Rows of filler before and behind what was fetched: no result that counts reads real data
        there.
    in_front, behind : bool
        Whether results that count read rows in front of, or behind, the full operand.
    """

    rows: int
    left: int
    right: int
    span: int
    start: int
    drift: int
    phase: int
    per: int
    low: int
    high: int
    in_front: bool
    behind: bool

    @property
    def extended(self) -> int:
        """Return the rows of the shard and of all that is put around it."""
        return self.low + self.left + self.rows + self.right + self.high


def fetching(
    rows: int,
    extent: int,
    span: int,
    base: int,
    reads: Sequence[tuple[int, int]],
    drift: int,
    phase: int = 0,
    per: int = 1,
) -> Exchange:
    """Plan the rows that each rank fetches, so that it has all rows that its results read.

    Parameters
    ----------
    rows, extent, span : int
        Rows of a shard, of the full operand, and those the local op reads.
    reads : sequence of (int, int)
        The first row that the results of each rank read, and the end of these rows; equal for a
        rank without results.
    base, drift, phase, per : int
        Rank r's rows start ``base + (r drift + phase) // per`` rows behind the start of its shard.
    """
    left = right = 0
    for rank, (first, end) in enumerate(reads):
        first, end = max(first, 0), min(end, extent)
        if first < end:
            left = max(left, rank * rows - first)
            right = max(right, end - (rank + 1) * rows)
    offsets = [base + (rank * drift + phase) // per for rank in range(len(reads))]
    low = max(0, -(min(offsets) + left))
    high = max(0, max(offsets) + span - rows - right)
    in_front = any(first < min(end, 0) for first, end in reads)
    behind = any(end > max(first, extent) for first, end in reads)
    start = low + left + base
    return Exchange(rows, left, right, span, start, drift, phase, per, low, high, in_front, behind)


def blocks_of(rows: int, ranks: int) -> list[tuple[int, int]]:
    """Return first row and end of each rank's block; equal for a rank without rows."""
    block = -(-rows // ranks)
    return [(min(r * block, rows), min((r + 1) * block, rows)) for r in range(ranks)]


def exchange(window: Window, extent: int, result: int, ranks: int) -> Exchange:
    """Plan the exchange along a dim sharded over ``ranks`` devices."""
    rows, out = -(-extent // ranks), -(-result // ranks)
    reads = []
    for first, end in blocks_of(result, ranks):
        begin = first * window.stride - window.before
        more = (end - first - 1) * window.stride + window.reach
        reads.append((begin, begin + more if first < end else begin))
    span = (out - 1) * window.stride + window.reach
    return fetching(rows, extent, span, -window.before, reads, out * window.stride - rows)


def most_blocks(extent: int, result: int) -> int:
    """Return the size of a halo factor: into how many blocks both dims may be split.

    Extents that agree, or whose common divisor is not small, count with that divisor: several
    mesh axes may then split them evenly. Otherwise the size is a prime, which no two axes
    divide: a single axis may split them, unevenly.
    """
    common, least = math.gcd(extent, result), min(extent, result)
    if common == least or common >= 8:
        return common
    return next(n for n in range(least, 1, -1) if all(n % k for k in range(2, math.isqrt(n) + 1)))


def blocks_with_borders(window: Window, extent: int, result: int) -> int:
    """Return the blocks of a result whose border rows are computed apart; 1 when there are none.

    Blocks must be aligned, and a block must hold the border rows of both ends.
    """
    least = max(1, sum(window.borders(extent, result)))
    if extent != result * window.stride:
        return 1
    return max((n for n in range(1, result // least + 1) if result % n == 0), default=1)


def rows_bytes(draft: Draft, side: str, number: int, dim: int, rows: int) -> int:
    """Return the size of some rows of an operand (``in``) or result (``out``)."""
    call = draft.call
    shapes, dtypes = (call.ins, call.in_dtypes) if side == "in" else (call.outs, call.out_dtypes)
    shape = shapes[number]
    return size_bytes((*shape[:dim], rows, *shape[dim + 1 :]), dtypes[number])


def tie_rows(
    draft: Draft,
    ins: Mapping[int, int],
    outs: Mapping[int, int],
    size: int,
    comm_bytes: int,
    uneven: bool = True,
) -> None:
    """Add a factor of spatial dims whose blocks exchange rows; a sum where no result has one."""
    kind = "halo" if outs else "sum"
    draft.tie(ins, outs, kind, size=size, comm_bytes=comm_bytes, uneven=uneven, apart=True)


def tie_halo(
    draft: Draft,
    dim: int,
    result_dim: int,
    window: Window,
    extent: int,
    result: int,
    blocks: int | None = None,
) -> None:
    """Add the factor of a dim whose blocks need neighbour rows.

    ``comm_bytes`` are those of the rows a rank fetches of both sides, over the whole other
    dims; where the blocks of operand and result are not aligned, those of two ranks. ``blocks``
    limits the factor to even blocks.
    """
    plan = exchange(window, extent, result, 2)
    sent_bytes = rows_bytes(draft, "in", 0, dim, plan.left + plan.right)
    size = most_blocks(extent, result) if blocks is None else blocks
    tie_rows(draft, {0: dim}, {0: result_dim}, size, sent_bytes, uneven=blocks is None)
