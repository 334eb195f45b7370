# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read GSPMD shardings as axes of a single mesh that fits all tiles of devices."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_distir.models.common.translation import Unsupported

_TILES = re.compile(
    r"devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))"
    r"(\s*last_tile_dim_replicate)?"
)


@dataclass(frozen=True)
class _Tiles:
    """Tile dims, and the devices in an array of their shape; the last dim may be replicas."""

    devices: npt.NDArray[np.intp]
    dims: int
    sizes: tuple[int, ...]


def _numbers(text: str | None) -> list[int]:
    return [int(n) for n in text.split(",")] if text else []


def _read(text: str) -> _Tiles | None:
    match = _TILES.search(text)
    if match is None:
        return None
    shape, sizes = _numbers(match.group(1)), _numbers(match.group(2))
    count = math.prod(shape)
    if sizes:
        order = _numbers(match.group(3)) or list(range(len(sizes)))
        devices = np.arange(count).reshape(sizes).transpose(order).reshape(shape)
    else:
        listed = _numbers(match.group(4))
        if len(listed) != count:
            raise Unsupported(f'the sharding "{text}"')
        devices = np.array(listed).reshape(shape)
    return _Tiles(devices, len(shape) - bool(match.group(5)), tuple(sizes or shape))


def mesh_of_tiles(texts: Sequence[str]) -> list[int]:
    """Return the axis sizes of the coarsest mesh that expresses all shardings.

    Examples
    --------
    >>> mesh_of_tiles(["{devices=[4,1]<=[4]}", "{devices=[1,2,2]<=[2,2]T(1,0)}"])
    [2, 2]
    """
    tilings = [tiles for tiles in map(_read, texts) if tiles is not None]
    if not tilings:
        return []
    count = tilings[0].devices.size
    if any(tiles.devices.size != count for tiles in tilings):
        raise Unsupported("shardings over different numbers of devices")
    boundaries = {count, 1}
    for tiles in tilings:
        for sizes in (tiles.sizes, tiles.devices.shape):
            boundaries.update(itertools.accumulate(reversed(sizes), lambda a, b: a * b))
    ordered = sorted(boundaries)
    pairs = [(ordered[i], ordered[i + 1]) for i in range(len(ordered) - 1)]
    if any(b % a for a, b in pairs):
        raise Unsupported("shardings that cannot share a mesh")
    return [b // a for a, b in reversed(pairs)]


def axes_of_tiles(text: str, mesh: Sequence[int]) -> list[list[int]]:
    """Return, per dim, the mesh axes that shard it, major first.

    Raises
    ------
    Unsupported
        Where devices do not lie along the axes.
    """
    tiles = _read(text)
    if tiles is None:
        if "replicated" in text and "maximal" not in text:
            return []
        raise Unsupported(f'the sharding "{text}"')
    positions = np.empty((tiles.devices.size, tiles.devices.ndim), int)
    for position, device in np.ndenumerate(tiles.devices):
        positions[device] = position
    grid = positions[:, : tiles.dims].reshape(*mesh, tiles.dims)
    strides: list[list[tuple[int, int]]] = [[] for _ in range(tiles.dims)]
    for axis, size in enumerate(mesh):
        steps = np.take(grid, min(1, size - 1), axis) - np.take(grid, 0, axis)
        for dim in range(tiles.dims):
            if steps[..., dim].any():
                strides[dim].append((-int(steps[..., dim].max()), axis))
    dims = [[axis for _, axis in sorted(of_dim)] for of_dim in strides]
    cutting = [axis for axes in dims for axis in axes]
    if len({*cutting}) < len(cutting) or not np.array_equal(grid, _tile_positions(dims, mesh)):
        raise Unsupported(f'the sharding "{text}", which mesh axes do not express')
    return dims


def _tile_positions(dims: Sequence[Sequence[int]], mesh: Sequence[int]) -> npt.NDArray[np.intp]:
    """Return the tile of each device by the axes of each dim."""
    positions = np.indices(mesh)
    result = np.zeros((*mesh, len(dims)), int)
    for dim, axes in enumerate(dims):
        for axis in axes:
            result[..., dim] = result[..., dim] * mesh[axis] + positions[axis]
    return result
