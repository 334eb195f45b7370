# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute which part of a tensor every device holds, and how much of another part it lacks."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir.mesh import mesh_shape
from tvm_distir.core.ir.operators.async_ops import collective_op
from tvm_distir.core.ir.operators.ops import call_axes
from tvm_distir.core.ir.placement import Labels, R, blocks_fault, labels_of
from tvm_distir.core.ir.types import static_shape
from tvm_distir.core.ir.views.tilings import Axes

Bounds = npt.NDArray[np.int64]


def bounds_of(shape: tuple[int, ...], labels: Labels, mesh: tuple[int, ...]) -> Bounds:
    """Return the bounds of every device's shard: (2, devices, dims); partial counts as replicated.

    Those of :func:`tvm_distir.core.ir.placement.shard_slices`, of all devices at once.
    """
    dims = [tuple(a for a, x in enumerate(labels) if x == d) for d in range(len(shape))]
    return tile_bounds(shape, tuple(dims), mesh)


@functools.lru_cache(maxsize=4096)
def tile_bounds(shape: tuple[int, ...], dims: tuple[Axes, ...], mesh: tuple[int, ...]) -> Bounds:
    """Return the bounds of tiles whose dims are sharded by mesh axes, from major to minor."""
    bounds = np.zeros((2, *mesh, len(shape)), np.int64)
    for dim, extent in enumerate(shape):
        start: Any = 0
        stop: Any = int(extent)
        block = int(extent)
        for axis in dims[dim]:
            block = -(-block // mesh[axis])
            positions = np.arange(mesh[axis]).reshape(
                [-1 if a == axis else 1 for a in range(len(mesh))]
            )
            start = np.minimum(stop, start + positions * block)
            stop = np.minimum(stop, start + block)
        bounds[0, ..., dim], bounds[1, ..., dim] = start, stop
    return bounds.reshape(2, math.prod(mesh), len(shape))


def lacking(before: Bounds, after: Any) -> npt.NDArray[np.int64]:
    """Return the elements that the worst-off device lacks of its new shard.

    Parameters
    ----------
    before : (2, devices, dims)
    after : (2, ..., devices, dims)

    Returns
    -------
    elements : (...)
    """
    width = np.minimum(before[1], after[1]) - np.maximum(before[0], after[0])
    present = np.prod(np.maximum(width, 0), axis=-1)
    want = np.prod(after[1] - after[0], axis=-1)
    result: npt.NDArray[np.int64] = np.max(want - present, axis=-1)
    return result


def lacking_elements(
    shape: Sequence[int], before: Labels, after: Labels, mesh: Sequence[int]
) -> int:
    """Return the most elements that a device receives in an exchange between two placements."""
    sizes = tuple(mesh)
    source = bounds_of(tuple(shape), before, sizes)
    return int(lacking(source, bounds_of(tuple(shape), after, sizes)))


@dataclass(frozen=True)
class TermsMove:
    """A reduction as an exchange, whose partial terms are elements along an added first dim.

    Attributes
    ----------
    shape : tuple of int
        The number of terms, then the full shape.
    before, after : tuple of int
        The labels of the two ends: each device holds a single term, then all terms of its new
        shard.
    """

    shape: tuple[int, ...]
    before: Labels
    after: Labels


def terms_move(
    shape: Sequence[int], labels: Sequence[int], axes: Sequence[int], dim: int, mesh: Sequence[int]
) -> TermsMove | None:
    """Return how a ``reduce_scatter`` is done whose shards are no parts of its groups' blocks.

    Parameters
    ----------
    shape : sequence of int
        Whole shape.
    labels : sequence of int
        Placement of the operand; along ``axes``, and where it stays unfinished, R or P.
    axes : sequence of int
        Mesh axes of the step.
    dim : int
        The dim that is cut.
    mesh : sequence of int

    Returns
    -------
    move : TermsMove or None
        None where the groups cut their blocks: a plain ``reduce_scatter`` does.
    """
    count = math.prod(mesh[a] for a in axes)
    if count == 1 or not blocks_fault(labels, axes, dim):
        return None
    moved = [x + 1 if x >= 0 else R for x in labels]
    before = tuple(0 if a in axes else x for a, x in enumerate(moved))
    after = tuple(dim + 1 if a in axes else x for a, x in enumerate(moved))
    return TermsMove((count, *shape), before, after)


def terms_of(call: ir.Call) -> TermsMove | None:
    """Return how a ``reduce_scatter`` of level 4 moves terms; None for all other calls."""
    if collective_op(call) != "reduce_scatter" or not isinstance(call.args[0].ty, DTensorType):
        return None
    ty = call.args[0].ty
    shape, mesh = static_shape(ty), mesh_shape(ty.device_mesh)
    if shape is None:
        return None
    dim = int(call.attrs["dim"])
    return terms_move(shape, labels_of(ty.placement), call_axes(call), dim, mesh)


def split_dims(
    shape: Sequence[int], before: Labels, after: Labels, mesh: Sequence[int]
) -> tuple[tuple[int, ...], Labels, Labels] | None:
    """Split the dims of a tensor that several axes shard, so that each axis has its own dim.

    Returns
    -------
    shape, before, after : tuples of int
        The shape and its labels at both ends. None where axes do not divide a dim evenly, or where
        those of one end are not the major ones of the other.
    """
    split: list[int] = []
    labels = [R] * len(mesh), [R] * len(mesh)
    for d, extent in enumerate(shape):
        ends = [[a for a, n in enumerate(mesh) if x[a] == d and n > 1] for x in (before, after)]
        axes = max(ends, key=len)
        parts = [mesh[a] for a in axes]
        if extent % math.prod(parts) or any(end != axes[: len(end)] for end in ends):
            return None
        for end, new in zip(ends, labels, strict=True):
            for number, axis in enumerate(end, len(split)):
                new[axis] = number
        split += [*parts[:-1], extent // math.prod(parts[:-1])]
    return tuple(split), tuple(labels[0]), tuple(labels[1])
