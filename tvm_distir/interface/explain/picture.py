# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Show which device holds which part of a tensor, as data and as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import (
    P,
    check_placement,
    mesh_devices,
    mesh_shape,
    parse_placement,
    shard_counts,
    shard_slices,
)
from tvm_distir.interface.report.text_table import runs

MOST_CELLS = 16
"""Rows or columns of a grid, or runs of device ids in a cell; what is more is left out."""

MOST_ROWS = 64
"""Rows of a table."""


@dataclass(frozen=True)
class HeldShard:
    """A shard and the devices that hold it.

    Attributes
    ----------
    position : tuple of int
        Per dim, the number of the shard along it.
    bounds : tuple of (int, int) or None
        Per dim, start and stop in the whole tensor (they are equal where only padding is left);
        None for a symbolic dim.
    devices : tuple of int
        Ids, ascending.
    """

    position: tuple[int, ...]
    bounds: tuple[tuple[int, int] | None, ...]
    devices: tuple[int, ...]


def parts(shape: Sequence[int], labels: Sequence[int], mesh: DeviceMesh) -> list[HeldShard]:
    """Return all distinct shards of a tensor, in row-major order of their positions.

    Parameters
    ----------
    shape : sequence of int or tvm Expr
        Of the whole tensor.
    labels : sequence of int
        Per mesh axis a dim, ``R`` (-1) or ``P`` (-2).
    mesh : DeviceMesh

    Raises
    ------
    MeshError
        DIST0204, DIST0205 where the labels do not fit the mesh or the tensor.
    """
    sizes = mesh_shape(mesh)
    check_placement(labels, sizes, len(shape), "picture")
    static = [n if isinstance(n, int) else math.prod(sizes) for n in shape]
    devices_of: dict[tuple[int, ...], list[int]] = {}
    bounds: dict[tuple[int, ...], tuple[tuple[int, int] | None, ...]] = {}
    for coords, device in np.ndenumerate(mesh_devices(mesh)):
        position = [0] * len(shape)
        for label, size, c in zip(labels, sizes, coords):
            if label >= 0:
                position[label] = position[label] * size + int(c)
        key = tuple(position)
        devices_of.setdefault(key, []).append(int(device))
        if key not in bounds:
            slices = shard_slices(static, labels, sizes, coords)
            bounds[key] = tuple(
                bound if isinstance(n, int) else None for bound, n in zip(slices, shape)
            )
    return [
        HeldShard(key, bounds[key], tuple(sorted(devices_of[key]))) for key in sorted(devices_of)
    ]


def picture(shape: Sequence[int], labels: Sequence[int] | str, mesh: DeviceMesh) -> str:
    """Draw which device holds which part of a tensor.

    Tensors of one or two dims are drawn as a grid of shards with the ids of the devices that hold
    each; others as a table of index ranges. Replicas stand together, ``0-3`` is a run of ids.

    Parameters
    ----------
    shape : sequence of int or tvm Expr
        Of the whole tensor. A sharded symbolic dim is shown as ``1/4``, ``2/4``, ...
    labels : sequence of int or str
        Per mesh axis a dim, ``R`` (-1) or ``P`` (-2); or TVM's text, ``"S[0], R"``.
    mesh : DeviceMesh

    Returns
    -------
    str
        Lines without a newline at the end.

    Raises
    ------
    MeshError
        DIST0203 for a text that cannot be read, DIST0204 and DIST0205 where the placement does
        not fit.

    Examples
    --------
    >>> print(picture((8, 6), "S[0], S[1]", device_mesh({"dp": 2, "tp": 2})))
        | 0:3 | 3:6
    ----+-----+----
    0:4 | 0   | 1
    4:8 | 2   | 3
    """
    parsed = parse_placement(labels) if isinstance(labels, str) else tuple(labels)
    shards = parts(shape, parsed, mesh)
    lines = shard_lines(shards, shard_counts(parsed, mesh_shape(mesh), len(shape)))
    partial = [i for i, label in enumerate(parsed) if label == P]
    if partial:
        axes = " and ".join(str(i) for i in partial)
        lines.append(f"along mesh axis {axes} each device holds a partial sum")
    if any(bound is not None and bound[0] == bound[1] for part in shards for bound in part.bounds):
        lines.append("empty ranges contain only padding")
    return "\n".join(line.rstrip() for line in lines)


def ids_text(devices: Sequence[int]) -> str:
    """Format ascending ids; runs of three and more are written as ``0-3``."""
    words = []
    for first, last in runs(devices):
        words += (
            [f"{first}-{last}"] if last - first > 1 else [str(i) for i in range(first, last + 1)]
        )
    if len(words) > MOST_CELLS:
        words = [*words[: MOST_CELLS // 2], f"... ({len(devices)} devices)"]
    return ", ".join(words)


def shard_lines(shards: Sequence[HeldShard], counts: Sequence[int]) -> list[str]:
    """Draw shards as lines: a grid for one or two dims, a table of index ranges otherwise.

    Parameters
    ----------
    shards : sequence of HeldShard
    counts : sequence of int
        The number of shards of each dim.
    """
    complete = len(shards) == math.prod(counts)
    return _grid(shards, counts) if len(counts) in (1, 2) and complete else _table(shards, counts)


def bounds_text(part: HeldShard, dim: int, counts: Sequence[int]) -> str:
    """Return the index range of a shard along a dim."""
    bound = part.bounds[dim]
    if bound is not None:
        return f"{bound[0]}:{bound[1]}"
    return ":" if counts[dim] == 1 else f"{part.position[dim] + 1}/{counts[dim]}"


def shown_numbers(count: int) -> list[int | None]:
    """Return the numbers to show of ``count`` rows or columns, None where some are left out."""
    if count <= MOST_CELLS:
        return list(range(count))
    half = MOST_CELLS // 2
    return [*range(half), None, *range(count - half, count)]


def _grid(shards: Sequence[HeldShard], counts: Sequence[int]) -> list[str]:
    """Draw the shards of dim 0 as rows and those of dim 1 as columns; a vector is a row."""
    by_position = {part.position: part for part in shards}
    vector = len(counts) == 1
    across = shown_numbers(counts[-1])
    down: list[int | None] = [0] if vector else shown_numbers(counts[0])

    def part_at(row: int, column: int) -> HeldShard:
        return by_position[(column,) if vector else (row, column)]

    head = [""] + ["..." if c is None else bounds_text(part_at(0, c), -1, counts) for c in across]
    rows = [head]
    for r in down:
        if r is None:
            rows.append(["..."] * len(head))
            continue
        name = "" if vector else bounds_text(part_at(r, 0), 0, counts)
        cells = ["..." if c is None else ids_text(part_at(r, c).devices) for c in across]
        rows.append([name, *cells])
    if vector:
        rows = [row[1:] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [" | ".join(word.ljust(n) for word, n in zip(row, widths)) for row in rows]
    lines.insert(1, "-+-".join("-" * n for n in widths))
    return lines


def _table(shards: Sequence[HeldShard], counts: Sequence[int]) -> list[str]:
    rows = [["devices", *[f"dim {d}" for d in range(len(counts))]]]
    for part in shards[:MOST_ROWS]:
        ranges = [bounds_text(part, d, counts) for d in range(len(counts))]
        rows.append([ids_text(part.devices), *ranges])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(word.ljust(n) for word, n in zip(row, widths)) for row in rows]
    if len(shards) > MOST_ROWS:
        lines.append(f"... ({len(shards)} shards)")
    return lines
