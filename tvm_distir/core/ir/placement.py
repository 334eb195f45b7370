# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent placements as tuples of labels, and compute the shapes of shards.

A *label* is the placement of a value along a mesh axis: ``d >= 0`` sharded on dim d,
:data:`R` replicated, :data:`P` a partial sum (never part of TVM's ``Placement``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm_distir.support import MeshError, parse_int, shortened

if TYPE_CHECKING:
    from tvm import ir

if TYPE_CHECKING:
    from tvm.relax.distributed import Placement

R = -1
P = -2
Labels = tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def parse_placement(text: str) -> Labels:
    """Read TVM's text form: ``"S[0], R"`` gives ``(0, -1)``.

    Raises
    ------
    MeshError
        DIST0203 when an entry is neither ``R`` nor ``S[d]`` with d >= 0.
    """
    labels = []
    for word in text.split(","):
        entry = word.strip()
        if entry == "R":
            labels.append(R)
            continue
        shards = entry.startswith("S[") and entry.endswith("]")
        dim = parse_int(entry[2:-1]) if shards else None
        if dim is None:
            raise MeshError(
                "DIST0203",
                f'"{shortened(entry)}" in the placement "{shortened(text)}" is neither R nor '
                "S(dim)",
                remedy='Write one entry per mesh axis, as in "S[0], R".',
            )
        labels.append(dim)
    return tuple(labels)


def placement_text(labels: Sequence[int]) -> str:
    """Return the text form of labels; :data:`P` is written ``P`` (for messages only)."""
    return ", ".join("R" if x == R else "P" if x == P else f"S[{x}]" for x in labels)


@functools.lru_cache(maxsize=4096)
def _placement(labels: Labels) -> Placement:
    if any(x < R for x in labels):
        problem = f"partial sums have no placement text: {placement_text(labels)}"
        raise MeshError("DIST0203", problem, remedy="Reduce the partial sums first.")
    from tvm.relax.distributed import Placement

    return Placement.from_text(placement_text(labels))


def placement_of(labels: Sequence[int]) -> Placement:
    """Return the TVM ``Placement`` of labels (without :data:`P`)."""
    return _placement(tuple(labels))


@functools.lru_cache(maxsize=4096)
def labels_of(placement: Placement) -> Labels:
    """Return the labels of a TVM ``Placement``."""
    out = []
    for spec in placement.dim_specs[:]:
        kind = int(spec.kind)
        axis = int(spec.axis)
        if kind == 0 and axis < 0:
            raise MeshError(
                "DIST0203", f"a placement shards dim {axis}", remedy="Number dims from 0."
            )
        out.append(axis if kind == 0 else R)
    return tuple(out)


def check_placement(
    labels: Sequence[int], mesh_shape: Sequence[int], ndim: int, location: str
) -> None:
    """Refuse labels that do not fit a mesh or a tensor (DIST0204, DIST0205)."""
    if len(labels) != len(mesh_shape):
        problem = (
            f'the placement "{placement_text(labels)}" has {len(labels)} entries, '
            f"the mesh {len(mesh_shape)} axes"
        )
        raise MeshError(
            "DIST0204", problem, location=location, remedy="Give one entry per mesh axis."
        )
    for x in labels:
        if x >= ndim:
            raise MeshError(
                "DIST0205",
                f'the placement "{placement_text(labels)}" shards dim {x} of a tensor '
                f"with {ndim} dims",
                location=location,
                remedy=f"Use dims 0 to {ndim - 1}." if ndim else "Replicate it.",
            )


def shard_counts(labels: Sequence[int], mesh_shape: Sequence[int], ndim: int) -> list[int]:
    """Return the number of shards of each dim."""
    counts = [1] * ndim
    for x, n in zip(labels, mesh_shape):
        if x >= 0:
            counts[x] *= n
    return counts


def ceil_div(size: int | ir.Expr, count: int) -> int | ir.Expr:
    """Return ``ceil(size / count)``, for ints and symbolic sizes."""
    if count == 1:
        return size
    if isinstance(size, int):
        return -(-size // count)
    try:
        return -(-int(size) // count)
    except TypeError:
        from tvm import tirx

        from tvm_distir.support import Analyzer

        return Analyzer().simplify(tirx.floordiv(size + (count - 1), count))


def local_shape(
    shape: Sequence[int | ir.Expr], labels: Sequence[int], mesh_shape: Sequence[int]
) -> list[int | ir.Expr]:
    """Return the shape of a (padded) shard."""
    counts = shard_counts(labels, mesh_shape, len(shape))
    return [ceil_div(n, k) for n, k in zip(shape, counts)]


def blocks_fault(labels: Sequence[int], axes: Sequence[int], dim: int) -> str:
    """Return why cutting ``dim`` along more mesh axes (or joining it) is not local to their groups.

    Each block that the other axes leave must be the shards of a group, consecutively: no
    later axis may shard the dim.

    Parameters
    ----------
    labels : sequence of int
        Placement on the side of the step where ``axes`` do not shard the dim.
    axes : sequence of int
        Mesh axes of the step.
    dim : int

    Returns
    -------
    why : str
        Empty when the step is sound.
    """
    first = min(axes)
    for axis, label in enumerate(labels):
        if label == dim and axis > first:
            return (
                f"dim {dim} is sharded by mesh axis {axis} after axis {first} too: "
                "its blocks are not contiguous"
            )
    return ""


def is_padded_inside(size: int, parts: Sequence[int]) -> bool:
    """Return whether a dim sharded by several axes is padded elsewhere than at its end.

    ``parts`` are the sizes of the axes, in mesh order. So it is where the blocks of an axis do
    not hold whole shards of the axes behind it: 250 in 2 blocks of 125, each in shards of 63.
    """
    count = math.prod(parts)
    shard = -(-size // count) if count else 0
    for k in parts:
        block, count = -(-size // k), count // k
        if size > block != count * shard:
            return True
        size = block
    return False


def shard_range(size: int, parts: Sequence[int], coords: Sequence[int]) -> tuple[int, int]:
    """Return the range of a device's shard of a dim that several axes may shard.

    Each axis cuts the blocks of those before it into parts of ``ceil(block / k)`` elements, the
    last of which may be short or empty; so the largest shard has ``ceil(size / (k1 k2 ...))``.

    Parameters
    ----------
    size : int
    parts, coords : sequence of int
        Sizes of the axes in mesh order, and the device's places along them.
    """
    start, stop, block = 0, size, size
    for k, c in zip(parts, coords, strict=True):
        block = -(-block // k)
        start = min(stop, start + c * block)
        stop = min(stop, start + block)
    return start, stop


def shard_slices(
    shape: Sequence[int], labels: Sequence[int], mesh_shape: Sequence[int], coords: Sequence[int]
) -> list[tuple[int, int]]:
    """Return per dim the (start, stop) that a device holds of a tensor (:func:`shard_range`).

    ``start`` may equal ``stop``: with ceil-sized shards the last ones of a block can be empty.
    """
    bounds = []
    for d, n in enumerate(shape):
        cutting = [a for a, x in enumerate(labels) if x == d]
        parts, positions = [mesh_shape[a] for a in cutting], [coords[a] for a in cutting]
        bounds.append(shard_range(int(n), parts, positions))
    return bounds
