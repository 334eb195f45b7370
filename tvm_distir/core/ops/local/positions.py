# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Computes a device's position among the shards of a dim, and which part of a shard is padding.

Positions are emitted once and serve all calls of a block: see :class:`BlockMemo`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir.operators import ops
from tvm_distir.core.rewriting.writer import BlockWriter

from .shard import Shard

Axes = tuple[int, ...]
"""Mesh axes that shard a dim, major first."""


@dataclass(frozen=True)
class RowsKey:
    """Key of fetched rows: which rows of which tensor, and of which rank.

    Attributes
    ----------
    x : variable
        The tensor whose boundary rows travel.
    dim : int
    axes : Axes
    hop : int
        The number of places by which their rank precedes this rank (follows it when negative).
    count : int
    border : float
        The value that is used where there is no such rank.
    """

    x: Any
    dim: int
    axes: Axes
    hop: int
    count: int
    border: float


@dataclass
class BlockMemo:
    """Values emitted in a block that later calls of it may read again.

    Attributes
    ----------
    positions : dict
        Mesh axes to my number among the shards they cut.
    starts : dict
        (Mesh axes, whole extent) to where my shard begins.
    parts : dict
        (Mesh axes, whole extent) to begin and length of a part with padding inside.
    valid : dict
        (Mesh axes, whole extent, rank of the tensor, dim) to the mask of what is no padding.
    rows : dict
        Rows fetched of other devices.
    """

    positions: dict[Axes, ir.Expr] = field(default_factory=dict)
    starts: dict[tuple[Axes, int], ir.Expr] = field(default_factory=dict)
    parts: dict[tuple[Axes, int], tuple[Any, Any]] = field(default_factory=dict)
    valid: dict[tuple[Axes, int, int, int], ir.Expr] = field(default_factory=dict)
    rows: dict[RowsKey, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Positions:
    """Emits positions along a mesh for a call.

    Attributes
    ----------
    mesh : DeviceMesh
    writer : BlockWriter
    emit : callable
        Binds a value under a name of the call and a hint.
    memo : BlockMemo
    """

    mesh: DeviceMesh
    writer: BlockWriter
    emit: Callable[[Any, str], Any]
    memo: BlockMemo

    def number(self, axes: Sequence[int]) -> ir.Expr:
        """Return the rank's number among the shards of a dim split by ``axes`` (int64 scalar)."""
        key = tuple(axes)
        if key not in self.memo.positions:
            sizes = [int(n) for n in self.mesh.shape]
            rank = None
            for axis in axes:
                mine = self.writer.emit(ops.axis_index(self.mesh, axis), "axis_index")
                if rank is not None:
                    scaled = relax.op.multiply(rank, relax.const(sizes[axis], "int64"))
                    mine = self.writer.emit(relax.op.add(self.emit(scaled, ""), mine), "shard")
                rank = mine
            self.memo.positions[key] = rank
        return self.memo.positions[key]

    def start(self, shard: Shard, axes: Axes, dim: int) -> ir.Expr:
        """Return where a shard begins along a dim split by ``axes`` (int64 scalar)."""
        if dim in shard.inner_dims:
            return self.part(shard.global_shape[dim], axes)[0]
        key = (axes, shard.global_shape[dim])
        if key not in self.memo.starts:
            chunk = relax.const(shard.local[dim], "int64")
            begin = relax.op.multiply(self.number(axes), chunk)
            self.memo.starts[key] = self.emit(begin, "start")
        return self.memo.starts[key]

    def part(self, size: int, axes: Axes) -> tuple[Any, Any]:
        """Return start and length of the rank's part of a dim, as in :func:`.shard_range`."""
        key = (axes, size)
        if key not in self.memo.parts:
            emit, begin = self.emit, None
            length_var, block = relax.const(size, "int64"), size
            for axis in axes:
                block = -(-block // int(self.mesh.shape[axis]))
                length = relax.const(block, "int64")
                skipped = emit(relax.op.multiply(self.number((axis,)), length), "skipped")
                skipped = emit(relax.op.minimum(skipped, length_var), "skipped")
                begin = skipped if begin is None else relax.op.add(begin, skipped)
                begin = emit(begin, "start")
                rest = emit(relax.op.subtract(length_var, skipped), "rest")
                length_var = emit(relax.op.minimum(rest, length), "held")
            self.memo.parts[key] = begin, length_var
        return self.memo.parts[key]

    def valid(self, shard: Shard, axes: Axes, dim: int) -> ir.Expr:
        """Return a boolean tensor, broadcastable to a shard: True where its dim has no padding."""
        ndim = len(shard.local)
        key = (axes, shard.global_shape[dim], ndim, dim)
        if key not in self.memo.valid:
            chunk = shard.local[dim]
            positions = self.emit(relax.op.arange(0, chunk, 1, "int64"), "places")
            if dim in shard.inner_dims:
                end = self.part(shard.global_shape[dim], axes)[1]
            else:
                positions = self.emit(
                    relax.op.add(positions, self.start(shard, axes, dim)), "places"
                )
                end = relax.const(shard.global_shape[dim], "int64")
            inside = self.emit(relax.op.less(positions, end), "inside")
            shape = [chunk if d == dim else 1 for d in range(ndim)]
            self.memo.valid[key] = self.emit(relax.op.reshape(inside, shape), "valid")
        return self.memo.valid[key]
