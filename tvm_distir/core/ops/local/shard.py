# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describes tensors and operands on a device: global shape, local shape and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvm_distir.core.ir.placement import Labels, ceil_div, is_padded_inside, shard_counts
from tvm_distir.support import Analyzer


@dataclass(frozen=True)
class Shard:
    """Global and local shape of a tensor.

    Attributes
    ----------
    global_shape, local : tuple of int or expression
        The local shape is that of a padded shard.
    labels : Labels
        Placement on the function's mesh.
    dtype : str
    counts : tuple of int
        Number of shards of each dim.
    inner_dims : tuple of int
        Dims with padding not at their end only: several mesh axes cut them unevenly.
    """

    global_shape: tuple[int, ...]
    local: tuple[int, ...]
    labels: Labels
    dtype: str
    counts: tuple[int, ...]
    inner_dims: tuple[int, ...] = ()

    @property
    def padded_dims(self) -> tuple[int, ...]:
        """Return the dims whose last shards end in padding."""
        sizes = enumerate(zip(self.global_shape, self.counts))
        return tuple(d for d, (n, k) in sizes if isinstance(n, int) and n % k)

    @property
    def symbolic_dims(self) -> tuple[int, ...]:
        """Return the dims without a size, of which shards have equal parts."""
        return tuple(d for d, n in enumerate(self.global_shape) if not isinstance(n, int))


def shard(full: Sequence[int], labels: Labels, mesh: Sequence[int], dtype: str) -> Shard:
    """Describe how a tensor is placed on a mesh."""
    counts = tuple(shard_counts(labels, mesh, len(full)))
    local = tuple(
        ceil_div(n, k) if isinstance(n, int) else _part(n, k) for n, k in zip(full, counts)
    )
    inner = tuple(
        d
        for d, n in enumerate(full)
        if labels.count(d) > 1
        and isinstance(n, int)
        and is_padded_inside(n, [k for k, x in zip(mesh, labels) if x == d])
    )
    return Shard(tuple(full), local, tuple(labels), dtype, counts, inner)


def _part(extent: Any, count: int) -> Any:
    """Return the part of a symbolic dim, which the devices divide without a remainder."""
    return extent if count == 1 else Analyzer().simplify(tirx.floordiv(extent, count))


@dataclass
class Operand:
    """A flattened tensor operand on a device.

    Attributes
    ----------
    source : expression
        A variable or constant of local type; of a tuple, the tuple.
    number : int or None
        Position in the tuple, None when ``source`` is the tensor itself.
    shard : Shard
    zero : bool
        Whether its padding is known to hold zeros.
    changed : bool
        Whether ``source`` no longer is what the argument held.
    """

    source: ir.Expr
    number: int | None
    shard: Shard
    zero: bool
    changed: bool = False
