# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe dims whose segments are interleaved, so that a contiguous shard has a part of each.

A fused weight holds the rows of q, k and v one after the other. Cut into two contiguous shards, the
first device would hold q and half of k. Interleaved for two parts, the rows are in the order
``q0 k0 v0 q1 k1 v1``: contiguous shards are then the parts that tensor parallelism needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SEGMENTS_ATTR = "dist.segments"
"""Public function: the parameters with interleaved segments, by name: dim, parts, and sizes."""


@dataclass(frozen=True)
class Segments:
    """The order of a dim whose segments are interleaved.

    Attributes
    ----------
    dim : int
    sizes : tuple of int
        The extents of the segments, whose sum is that of the dim; each a multiple of ``parts``.
    parts : int
        Into how many parts each segment is divided.
    """

    dim: int
    sizes: tuple[int, ...]
    parts: int

    @property
    def pieces(self) -> tuple[int, ...]:
        """Return the extent of each segment's piece in a part."""
        return tuple(size // self.parts for size in self.sizes)

    def sources(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of the original order that a range of the interleaved one consists of.

        Parameters
        ----------
        start, stop : int
            The range in the interleaved order.
        """
        at = 0
        for part in range(self.parts):
            first = 0
            for size, piece in zip(self.sizes, self.pieces, strict=True):
                low, high = max(start, at), min(stop, at + piece)
                if low < high:
                    begin = first + part * piece - at
                    yield begin + low, begin + high
                at += piece
                first += size

    def targets(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of the interleaved order that a range of the original one consists of.

        Parameters
        ----------
        start, stop : int
            The range in the original order.
        """
        at = first = 0
        width = sum(self.pieces)
        for piece in self.pieces:
            for part in range(self.parts):
                low, high = max(start, at), min(stop, at + piece)
                if low < high:
                    begin = part * width + first - at
                    yield begin + low, begin + high
                at += piece
            first += piece

    def check(self, shape: Sequence[int]) -> None:
        """Refuse (ValueError) a tensor whose dim does not consist of the segments."""
        if self.dim >= len(shape) or shape[self.dim] != sum(self.sizes):
            raise ValueError(f"segments of {sum(self.sizes)} rows in dim {self.dim} of {shape}")

    def to_list(self) -> list[int]:
        """Return the description in attributes: dim, parts, and sizes."""
        return [self.dim, self.parts, *self.sizes]

    @staticmethod
    def from_list(numbers: Sequence[Any]) -> Segments:
        """Return the segments that :meth:`to_list` describes (ValueError for others)."""
        dim, parts, *sizes = (int(n) for n in numbers)
        if parts < 1 or dim < 0 or not sizes or any(n < 1 or n % parts for n in sizes):
            raise ValueError(f"{list(numbers)} are no segments")
        return Segments(dim, tuple(sizes), parts)


def segments_of(attrs: Mapping[str, Any] | None) -> dict[str, Segments]:
    """Return the interleaved parameters that the attributes of a function name."""
    if not attrs or SEGMENTS_ATTR not in attrs:
        return {}
    return {str(name): Segments.from_list(row) for name, row in attrs[SEGMENTS_ATTR].items()}
