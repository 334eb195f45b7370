# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute which bytes each rank sends to which when a value moves to another mesh.

The full tensor is sharded along both placements; every overlap of a source shard with a
destination shard is a tile. A destination that holds a separate copy (a replica) gets its
own tile, so each element of each destination is written exactly once, and padding never travels.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tvm_distir.core.ir.placement import check_placement, shard_slices
from tvm_distir.support import lists_by_key

Bounds = tuple[tuple[int, int], ...]
Side = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""A side of a transfer: mesh shape, device ids in row-major order, labels."""


@dataclass(frozen=True)
class Tile:
    """A box of elements that travels between two ranks.

    Attributes
    ----------
    src, dst : int
        Ranks.
    src_bounds, dst_bounds : tuple of (start, stop)
        The box in the local (padded) tensor of either side, a pair per dim.
    """

    src: int
    dst: int
    src_bounds: Bounds
    dst_bounds: Bounds

    @property
    def elements(self) -> int:
        """Return the number of elements of the box."""
        return _volume(self.src_bounds)

    def src_slices(self) -> tuple[slice, ...]:
        """Return the index of the box in the source rank's tensor."""
        return tuple(slice(a, b) for a, b in self.src_bounds)

    def dst_slices(self) -> tuple[slice, ...]:
        """Return the index of the box in the destination rank's tensor."""
        return tuple(slice(a, b) for a, b in self.dst_bounds)


def _volume(bounds: Bounds) -> int:
    return math.prod(b - a for a, b in bounds)


def _copies(side: Side, shape: Sequence[int]) -> int:
    """Return the number of replicas of each part on a side of the transfer."""
    mesh, _, labels = side
    return math.prod(n for n, label in zip(mesh, labels) if not 0 <= label < len(shape))


def _shards(shape: Sequence[int], side: Side) -> list[tuple[int, Bounds]]:
    mesh, devices, labels = side
    check_placement(labels, mesh, len(shape), "transfer")
    coords = itertools.product(*(range(n) for n in mesh))
    return [(d, tuple(shard_slices(shape, labels, mesh, c))) for d, c in zip(devices, coords)]


@functools.lru_cache(maxsize=1024)
def transfer_tiles(shape: tuple[int, ...], src: Side, dst: Side) -> tuple[Tile, ...]:
    """Split a transfer into tiles, in order of destination, then of position.

    Parameters
    ----------
    shape : tuple of int
        Shape of the full tensor.
    src, dst : Side
        Mesh shape, device ids and labels (no partial sums) of either end.

    Returns
    -------
    tiles : tuple of Tile
        The tiles. Where the source holds replicas, the destination itself is preferred (no
        traffic), then the replica whose turn it is: destinations take the r replicas of a shard
        round-robin, so that the loads of any two replicas differ by at most a tile.
    """
    replicas = lists_by_key((bounds, device) for device, bounds in _shards(shape, src))
    turn = dict.fromkeys(replicas, 0)
    number = {bounds: i for i, bounds in enumerate(replicas)}
    # Axes cut one dim each, so the shards are all combinations of the cuts of their dims.
    cuts = [dict.fromkeys(bounds[d] for bounds in replicas) for d in range(len(shape))]

    @functools.cache
    def meeting(dim: int, want: tuple[int, int]) -> tuple[tuple[int, int], ...]:
        return tuple(c for c in cuts[dim] if max(c[0], want[0]) < min(c[1], want[1]))

    tiles = []
    for device, want in _shards(shape, dst):
        sources = itertools.product(*(meeting(d, extent) for d, extent in enumerate(want)))
        for have in sorted(sources, key=number.__getitem__):
            holders = replicas[have]
            box = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(have, want)]
            if device in holders:
                source = device
            else:
                source = holders[turn[have] % len(holders)]
                turn[have] += 1
            parts = [[(a - x[0], b - x[0]) for (a, b), x in zip(box, y)] for y in (have, want)]
            tiles.append(Tile(source, device, *map(tuple, parts)))
    return tuple(tiles)


@dataclass(frozen=True)
class Transfer:
    """A ``send`` or ``recv``: the two sides, the full shape and the tag that joins them."""

    tag: int
    shape: tuple[int, ...]
    src: Side
    dst: Side

    def tiles(self) -> tuple[Tile, ...]:
        """Return the tiles of the transfer; the same on both sides."""
        return transfer_tiles(self.shape, self.src, self.dst)

    def crossing_elements(self, sends: bool, devices: Collection[int] = ()) -> int:
        """Return the maximum number of elements that a device sends or receives.

        Parameters
        ----------
        sends : bool
        devices : collection of int
            The devices that are counted; all devices where it is empty.
        """
        selected = set(devices)
        side = self.src if sends else self.dst
        if not set(self.src[1]) & set(self.dst[1]):
            shards = [(d, b) for d, b in _shards(self.shape, side) if not selected or d in selected]
            largest = max((_volume(bounds) for _, bounds in shards), default=0)
            if not sends:
                return largest
            if _copies(self.src, self.shape) == 1:  # each device sends all that it has
                return largest * _copies(self.dst, self.shape)
        sums: dict[int, int] = {}
        for tile in self.tiles():
            here = tile.src if sends else tile.dst
            if tile.src != tile.dst and (not selected or here in selected):
                sums[here] = sums.get(here, 0) + tile.elements
        return max(sums.values(), default=0)

    def text(self) -> str:
        """Return a description for messages."""
        return f"transfer {self.tag} from ranks {list(self.src[1])} to ranks {list(self.dst[1])}"
