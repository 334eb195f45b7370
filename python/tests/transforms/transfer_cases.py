# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Transfers between meshes of any devices, executed tile by tile on NumPy shards."""

from __future__ import annotations

import itertools
import math

import numpy as np

from tests.core.passes import redistribute_harness as h
from tvm_distir.core.collectives.tiles import transfer_tiles
from tvm_distir.core.ir.placement import R, local_shape, placement_text

MESHES = [
    ((2,), (0, 1)),
    ((4,), (0, 1, 2, 3)),
    ((4,), (2, 0, 3, 1)),
    ((2, 2), (0, 1, 2, 3)),
    ((2, 2), (3, 1, 0, 2)),
    ((2,), (2, 3)),
    ((3,), (1, 2, 3)),
    ((1,), (3,)),
    ((2, 3), (4, 5, 6, 7, 8, 9)),
    ((2, 2, 2), tuple(range(8))),
    ((4, 2), (7, 3, 5, 1, 6, 2, 4, 0)),
]
"""Disjoint, overlapping, one inside the other, and the same devices in other shapes and orders."""


SHAPES = [(9,), (8,), (7, 5), (8, 4), (5, 4, 3)]


def cases():
    """All pairs of placements on all ordered pairs of meshes, a mesh with itself included."""
    for shape in SHAPES:
        ends = [
            (mesh, devices, labels)
            for mesh, devices in MESHES
            for labels in itertools.product([R, *range(len(shape))], repeat=len(mesh))
        ]
        for src, dst in itertools.product(ends, ends):
            yield shape, src, dst


def fault(shape, src, dst):
    """Move a tensor by the tiles of a transfer; what is wrong, or an empty text."""
    whole = np.arange(1, math.prod(shape) + 1, dtype="int32").reshape(shape)
    rng = np.random.default_rng(0)
    have = dict(zip(src[1], h.shards_of(whole, src[2], src[0], "sum", rng)))
    size = local_shape(shape, dst[2], dst[0])
    got = {d: np.zeros(size, "int32") for d in dst[1]}
    times = {d: np.zeros(size, int) for d in dst[1]}
    received = dict.fromkeys(dst[1], 0)
    for tile in transfer_tiles(shape, src, dst):
        got[tile.dst][tile.dst_slices()] = have[tile.src][tile.src_slices()]
        times[tile.dst][tile.dst_slices()] += 1
        received[tile.dst] += tile.elements * (tile.src != tile.dst)
    boxes = dict(zip(src[1], h.shard_bounds(shape, src[2], src[0])))
    words = (
        f"{shape} {placement_text(src[2])} on {src[:2]} -> {placement_text(dst[2])} on {dst[:2]}"
    )
    for device, box in zip(dst[1], h.shard_bounds(shape, dst[2], dst[0])):
        want = whole[box]
        inside = tuple(slice(0, n) for n in want.shape)
        if not np.array_equal(got[device][inside], want):
            return f"{words}: device {device} holds something else"
        if times[device].sum() != want.size or times[device].max(initial=0) > 1:
            return f"{words}: device {device} gets an element twice, or padding"
        local = np.intersect1d(whole[boxes[device]], want).size if device in boxes else 0
        if received[device] != want.size - local:
            return (
                f"{words}: device {device} receives {received[device]}, lacks {want.size - local}"
            )
    return ""


def prove(every):
    """Move one case of ``every``; the number of cases, and what is wrong."""
    matches = [fault(*case) for case in itertools.islice(cases(), 0, None, every)]
    return len(matches), [text for text in matches if text]
