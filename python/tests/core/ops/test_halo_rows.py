# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rows that devices fetch of their neighbors, against the rows that their results read."""

from __future__ import annotations

import random

import pytest
from tvm import relax, tirx

from tvm_distir.core.ops.lookup import rule_of
from tvm_distir.core.ops.windows.halo import Window, fetching, most_blocks, windows
from tvm_distir.core.ops.windows.spatial import suits_map


@pytest.mark.parametrize("seed", range(60))
def test_each_rank_has_the_rows_that_its_results_read_and_no_more(seed: int) -> None:
    """Some rank needs each row that is fetched, or put around: all ranks have the same counts."""
    rng = random.Random(seed)
    ranks, rows = rng.randint(1, 4), rng.randint(1, 6)
    extent = rng.randint(max(1, (ranks - 1) * rows), ranks * rows)
    base, drift = rng.randint(-5, 5), rng.randint(-3, 3)
    per, span = rng.randint(1, 3), rng.randint(1, 9)
    phase = rng.randint(0, per - 1)
    offsets = [base + (rank * drift + phase) // per for rank in range(ranks)]
    reads = []
    for rank, offset in enumerate(offsets):
        first = rank * rows + offset
        # Fewer than the op reads count where a shard is not full; some ranks have no results.
        reads.append((first, first + (0 if rng.random() < 0.2 else rng.randint(1, span))))
    plan = fetching(rows, extent, span, base, reads, drift, phase, per)
    shared = plan.rows, plan.span, plan.drift, plan.phase, plan.per
    assert shared == (rows, span, drift, phase, per)

    def begin(rank: int) -> int:
        return plan.start + (rank * drift + phase) // per

    lefts, rights = [0], [0]
    for rank, (first, end) in enumerate(reads):
        for row in range(max(first, 0), min(end, extent)):
            lefts.append(rank * rows - row)
            rights.append(row + 1 - (rank + 1) * rows)
            # The row is where the local op reads it.
            assert begin(rank) + row - first == plan.low + plan.left + row - rank * rows
    assert (plan.left, plan.right) == (max(lefts), max(rights))
    begins = [begin(rank) for rank in range(ranks)]
    assert min(begins) >= 0 and max(begins) + span <= plan.extended
    assert plan.low == 0 or min(begins) == 0
    assert plan.high == 0 or max(begins) + span == plan.extended
    every = [row for first, end in reads for row in range(first, end)]
    assert plan.in_front == any(row < 0 for row in every)
    assert plan.behind == any(row >= extent for row in every)


@pytest.mark.parametrize("seed", range(40))
def test_windows_reach_over_the_ends_by_as_many_rows_as_they_read(seed: int) -> None:
    rng = random.Random(seed)
    kernel, stride, dilation = (rng.randint(1, 4) for _ in range(3))
    pads = rng.choice((0, 3))
    window = Window(kernel, stride, dilation, rng.randint(0, pads), rng.randint(0, pads))
    extent = rng.choice(
        (
            rng.randint(window.reach, 20),
            stride * rng.randint(-(-window.reach // stride), 6 + window.reach),
        )
    )
    result = (extent + window.before + window.after - window.reach) // stride + 1
    starts = [number * stride - window.before for number in range(result)]
    reads = [[start + k * dilation for k in range(kernel)] for start in starts]
    assert window.overhang(extent, result) == max(reads[-1]) + 1 - extent
    first = sum(min(rows) < 0 for rows in reads)
    last = sum(max(rows) >= extent for rows in reads)
    assert tuple(min(rows, result) for rows in window.borders(extent, result)) == (first, last)
    touched = [set(range(min(rows), max(rows) + 1)) for rows in reads]
    apart = all(a.isdisjoint(b) for k, a in enumerate(touched) for b in touched[:k])
    inside = all(rows <= set(range(extent)) for rows in touched)
    aligned = extent == result * stride and not window.after
    assert window.separate(extent, result) == (apart and inside and aligned)


@pytest.mark.parametrize("strides", [[2, 2], [2, 1], [1, 2], [1, 1]])
def test_each_spatial_dim_of_a_pool_may_be_sharded(strides: list[int]) -> None:
    """Windows that lie apart, and windows that overlap, in any order of the dims."""
    x = relax.Var("x", relax.TensorType([2, 3, 8, 8], "float32"))
    call = relax.BlockBuilder().normalize(
        relax.op.nn.max_pool2d(x, pool_size=[2, 2], strides=strides)
    )
    tied = {(factor.ins[0], factor.outs[0]) for factor in rule_of(call).factors}
    assert {(dim, dim) for dim in range(4)} <= tied


def test_separate_windows_are_split_evenly_where_many_devices_divide_them() -> None:
    """Of windows with a stride of 1, which are single rows, any number of rows."""
    rows = Window(1, 1, 1, 0, 0)
    assert suits_map(rows, 7) is True
    pairs = Window(2, 2, 1, 0, 0)
    assert [n for n in range(1, 13) if suits_map(pairs, n)] == [1, 2, 4, 8, 12]
    assert suits_map(pairs, tirx.Var("n", "int64")) is True


@pytest.mark.parametrize(
    ("extent", "result", "blocks"),
    [(6, 6, 6), (7, 14, 7), (14, 7, 7), (16, 24, 8), (9, 12, 7), (13, 12, 11), (12, 13, 11)],
)
def test_blocks_are_the_common_divisor_or_a_prime(extent: int, result: int, blocks: int) -> None:
    """A divisor counts from 8 on, or where it is one of the extents; both hold the prime."""
    assert most_blocks(extent, result) == blocks


@pytest.mark.parametrize("padding", [(1,), (1, 1), (1, 1, 1, 1)])
def test_paddings_of_gradients_of_pools_are_completed(padding: tuple[int, ...]) -> None:
    """TVM completes those of other ops."""
    grad, x = (relax.Var(name, relax.TensorType([1, 2, 8, 8], "float32")) for name in ("grad", "x"))
    call = relax.op.grad.max_pool2d_backward(grad, x, (3, 3), (1, 1), padding)
    assert windows(call.attrs, (3, 3)) == [Window(3, 1, 1, 1, 1)] * 2
