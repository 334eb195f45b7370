# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Recognise the views of a mesh: the same devices, with the mesh axes in another order.

A placement shards a dim by the axes of its mesh from major to minor. A view has the axes in another
order, and so its placements say which axis is major where several shard a dim. Meshes are views of
each other exactly when their tables of device ids are transposes: they are a *family*, whose axes
have numbers of their own, common to all views.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.mesh import (
    MeshKey,
    mesh_key,
    mesh_shape,
    same_mesh,
)
from tvm_distir.core.ir.placement import Labels, P, R

Axes = tuple[int, ...]

MOST_ORDERED_AXES = 3
"""The maximum number of axes of a mesh of which passes may use orders that the module has not."""


class View(NamedTuple):
    """A mesh as a view of its family.

    Attributes
    ----------
    family : (sizes, device ids)
        The family's own view: equal exactly for the views of one mesh.
    axes : tuple of int
        The family's number of each axis of the mesh.
    """

    family: MeshKey
    axes: Axes


class Tiling(NamedTuple):
    """The tiles of a tensor that devices hold, which does not depend on a view.

    Attributes
    ----------
    dims : tuple of tuple of int
        The family's axes that shard each dim, from major to minor; axes of a single device, whose
        order means nothing, are last.
    partial : frozenset of int
        The family's axes along which the values are partial.
    """

    dims: tuple[Axes, ...]
    partial: frozenset[int]


@functools.lru_cache(maxsize=256)
def _view(key: MeshKey) -> View:
    # Transposing a table keeps its first element, and the element next to it along an axis.
    shape, ids = key
    table = np.array(ids).reshape(shape)
    near = [
        int(table[tuple(int(b == a) for b in range(len(shape)))]) if size > 1 else -1
        for a, size in enumerate(shape)
    ]
    order = sorted(range(len(shape)), key=lambda a: (-near[a], a))
    sizes = tuple(shape[a] for a in order)
    base = sizes, tuple(table.transpose(order).ravel().tolist())
    return View(base, tuple(order.index(a) for a in range(len(shape))))


def family(mesh: DeviceMesh) -> View:
    """Return a mesh as a view of its family."""
    return _view(mesh_key(mesh))


def are_views(mesh: DeviceMesh, other: DeviceMesh) -> bool:
    """Return whether two meshes are views of one mesh, or the same."""
    return same_mesh(mesh, other) or family(mesh).family == family(other).family


def has_views(known: Sequence[DeviceMesh]) -> bool:
    """Return whether a mesh among some meshes is a view of another."""
    return len({family(mesh).family for mesh in known}) < len({mesh_key(mesh) for mesh in known})


def first_view(mesh: DeviceMesh, known: Sequence[DeviceMesh]) -> DeviceMesh:
    """Return the first view of a mesh among some meshes, which have the mesh."""
    return next(other for other in known if are_views(mesh, other))


def first_views(known: Sequence[DeviceMesh]) -> dict[MeshKey, tuple[MeshKey, Axes]]:
    """Return per mesh the first view of it among some meshes, and the axis there of each axis."""
    firsts: dict[MeshKey, DeviceMesh] = {}
    result = {}
    for mesh in known:
        first = firsts.setdefault(family(mesh).family, mesh)
        numbers = [next(iter(moved_axes((a,), mesh, first))) for a in range(len(mesh_shape(mesh)))]
        result[mesh_key(mesh)] = mesh_key(first), tuple(numbers)
    return result


def moved_axes(axes: Iterable[int], source: DeviceMesh, target: DeviceMesh) -> frozenset[int]:
    """Return the axes of a view that are some axes of another view; those of other meshes stay."""
    view, other = family(source), family(target)
    if view.axes == other.axes or view.family != other.family:
        return frozenset(axes)
    return frozenset(other.axes.index(view.axes[a]) for a in axes)


def order_of(mesh: DeviceMesh, source: DeviceMesh) -> Axes:
    """Return the axes of a mesh in the order that a view of it has, as numbers of the mesh."""
    first, view = family(source), family(mesh)
    return tuple(first.axes.index(a) for a in view.axes)


def view_of(mesh: DeviceMesh, order: Axes) -> DeviceMesh:
    """Return the view of a mesh with its axes in an order; the mesh itself in its own order."""
    return mesh if order == tuple(range(len(order))) else mesh_of(mesh_key(mesh), order)


def tiling(view: View, labels: Sequence[int], ndim: int) -> Tiling:
    """Return the tiles of labels along the axes of a view."""
    return _tiling(view.axes, view.family[0], tuple(labels), ndim)


@functools.lru_cache(maxsize=1 << 14)
def _tiling(order: Axes, sizes: tuple[int, ...], labels: Labels, ndim: int) -> Tiling:
    dims = []
    for d in range(ndim):
        axes = [n for n, x in zip(order, labels) if x == d]
        single = sorted(n for n in axes if sizes[n] == 1)
        dims.append((*(n for n in axes if sizes[n] > 1), *single))
    return Tiling(tuple(dims), frozenset(n for n, x in zip(order, labels) if x == P))


def unordered_labels(tiles: Tiling, axes: Axes) -> Labels:
    """Return the labels of tiles along some axes of the family, whatever order the tiles have."""
    dims = {n: d for d, cut_by in enumerate(tiles.dims) for n in cut_by}
    dims.update(dict.fromkeys(tiles.partial, P))
    return tuple(dims.get(n, R) for n in axes)


def labels_on(view: View, tiles: Tiling) -> Labels | None:
    """Return the labels of tiles along the axes of a view; None where that has another order."""
    return _labels_on(view.axes, view.family[0], tiles)


@functools.lru_cache(maxsize=1 << 14)
def _labels_on(order: Axes, sizes: tuple[int, ...], tiles: Tiling) -> Labels | None:
    labels = unordered_labels(tiles, order)
    return labels if _tiling(order, sizes, labels, len(tiles.dims)) == tiles else None


def relabelled(
    labels: Sequence[int], source: DeviceMesh, target: DeviceMesh, ndim: int
) -> Labels | None:
    """Return labels along the axes of another view; None where that has no such placement."""
    view, other = family(source), family(target)
    return None if view.family != other.family else labels_on(other, tiling(view, labels, ndim))


@functools.lru_cache(maxsize=256)
def mesh_of(base: MeshKey, axes: Axes) -> DeviceMesh:
    """Return the view of a family with axes in an order, always the same object."""
    table = np.array(base[1]).reshape(base[0]).transpose(axes)
    return DeviceMesh(table.shape, table.ravel().tolist())


def common_view(
    placed: Sequence[tuple[DeviceMesh, Labels, int]],
) -> tuple[DeviceMesh, list[Labels]] | None:
    """Return a view on which several placements of a family can be stated, and their labels there.

    Parameters
    ----------
    placed : sequence of (mesh, labels, dims of the tensor)

    Returns
    -------
    mesh, labels : DeviceMesh and list of labels, or None
        The first mesh among them that does, otherwise the view with the least changed order of the
        family's axes. None where two of them have mesh axes in opposite orders.
    """
    views = [family(mesh) for mesh, _, _ in placed]
    tiles = [tiling(view, labels, ndim) for view, (_, labels, ndim) in zip(views, placed)]
    for view, (mesh, _, _) in zip(views, placed):
        rows = [labels_on(view, x) for x in tiles]
        if None not in rows:
            return mesh, [row for row in rows if row is not None]
    base = views[0].family
    axes = ordered_axes(base, tiles)
    if axes is None:
        return None
    rows = [labels_on(View(base, axes), x) for x in tiles]
    return mesh_of(base, axes), [row for row in rows if row is not None]


def ordered_axes(base: MeshKey, tiles: Sequence[Tiling]) -> Axes | None:
    """Return the least changed order of a family's axes in which tilings can be stated.

    None where two of them have mesh axes in opposite orders.
    """
    before = {pair for x in tiles for axes in x.dims for pair in itertools.pairwise(axes)}
    order: list[int] = []
    while len(order) < len(base[0]):
        rest = [a for a in range(len(base[0])) if a not in order]
        free = [a for a in rest if not any(x in rest and y == a for x, y in before)]
        if not free:
            return None
        order.append(free[0])
    return tuple(order)
