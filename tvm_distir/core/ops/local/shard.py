# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describes tensors and operands on a device: global shape, local shape and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm_distir.core.ir.placement import Labels, is_padded_inside, shard_counts


@dataclass(frozen=True)
class Shard:
    """Global and local shape of a tensor.

    Attributes
    ----------
    whole, local : tuple of int
        The local shape is that of a padded shard.
    labels : Labels
        Placement on the function's mesh.
    dtype : str
    counts : tuple of int
        Number of shards of each dim.
    inner_dims : tuple of int
        Dims with padding not at their end only: several mesh axes cut them unevenly.
    """

    whole: tuple[int, ...]
    local: tuple[int, ...]
    labels: Labels
    dtype: str
    counts: tuple[int, ...]
    inner_dims: tuple[int, ...] = ()

    @property
    def padded_dims(self) -> tuple[int, ...]:
        """Return the dims whose last shards end in padding."""
        return tuple(d for d, (n, k) in enumerate(zip(self.whole, self.counts)) if n % k)


def shard(whole: Sequence[int], labels: Labels, mesh: Sequence[int], dtype: str) -> Shard:
    """Describe how a tensor is placed on a mesh."""
    counts = tuple(shard_counts(labels, mesh, len(whole)))
    local = tuple(-(-n // k) for n, k in zip(whole, counts))
    inner = tuple(
        d
        for d, n in enumerate(whole)
        if labels.count(d) > 1 and is_padded_inside(n, [k for k, x in zip(mesh, labels) if x == d])
    )
    return Shard(tuple(whole), local, tuple(labels), dtype, counts, inner)


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

    source: Any
    number: int | None
    shard: Shard
    zero: bool
    changed: bool = False
