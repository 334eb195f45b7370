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

from .translated_values import UnsupportedOperation

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
            raise UnsupportedOperation(f'the sharding "{text}"')
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
        raise UnsupportedOperation("shardings over different numbers of devices")
    boundaries = {count, 1}
    for tiles in tilings:
        for sizes in (tiles.sizes, tiles.devices.shape):
            boundaries.update(itertools.accumulate(reversed(sizes), lambda a, b: a * b))
    ordered = sorted(boundaries)
    pairs = [(ordered[i], ordered[i + 1]) for i in range(len(ordered) - 1)]
    if any(b % a for a, b in pairs):
        raise UnsupportedOperation("shardings that cannot share a mesh")
    return [b // a for a, b in reversed(pairs)]


def labels_of_tiles(text: str, mesh: Sequence[int]) -> list[int]:
    """Return, per mesh axis, the dim that it shards, or -1.

    Raises
    ------
    UnsupportedOperation
        Where devices do not lie along the axes.
    """
    tiles = _read(text)
    if tiles is None:
        if "replicated" in text and "maximal" not in text:
            return [-1] * len(mesh)
        raise UnsupportedOperation(f'the sharding "{text}"')
    positions = np.empty((tiles.devices.size, tiles.devices.ndim), int)
    for position, device in np.ndenumerate(tiles.devices):
        positions[device] = position
    grid = positions[:, : tiles.dims].reshape(*mesh, tiles.dims)
    labels = []
    for axis, size in enumerate(mesh):
        moved = np.take(grid, min(1, size - 1), axis) != np.take(grid, 0, axis)
        dims = [dim for dim in range(tiles.dims) if moved[..., dim].any()]
        if len(dims) > 1:
            raise UnsupportedOperation(f'the sharding "{text}", which mesh axes do not express')
        labels.append(dims[0] if dims else -1)
    if not np.array_equal(grid, _tile_labels(labels, mesh, tiles.dims)):
        raise UnsupportedOperation(
            f'the sharding "{text}", which mesh axes in their order do not express'
        )
    return labels


def _tile_labels(labels: Sequence[int], mesh: Sequence[int], dims: int) -> npt.NDArray[np.intp]:
    """Return the tile of each device by labels."""
    positions = np.indices(mesh)
    result = np.zeros((*mesh, dims), int)
    for axis, (label, size) in enumerate(zip(labels, mesh)):
        if label >= 0:
            result[..., label] = result[..., label] * size + positions[axis]
    return result
