# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write axes of a refined mesh as axes of Shardy, or as parts of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tvm_distir.models.common.sub_axes import piece

from .text import string


def joined_axes(axes: Iterable[tuple[str, int]]) -> list[tuple[str, int, int]]:
    """Return the name, the start and the size of axes, where parts that follow are joined.

    Examples
    --------
    >>> joined_axes([("x:(1)2", 2), ("x:(2)4", 4), ("y", 2)])
    [('x', 1, 8), ('y', 1, 2)]
    """
    joined: list[tuple[str, int, int]] = []
    for name, size in axes:
        axis, start = piece(name)
        if joined and joined[-1][0] == axis and joined[-1][1] * joined[-1][2] == start > 1:
            _, start, before = joined.pop()
            size *= before
        joined.append((axis, start, size))
    return joined


def sizes_of_joined(axes: Mapping[str, int]) -> Mapping[str, int]:
    """Return the axes of a mesh by name, joined unless a part of one is not there."""
    joined = joined_axes(axes.items())
    sizes = {axis: size for axis, start, size in joined if start == 1}
    return sizes if len(sizes) == len(joined) else axes


def axes_text(axes: Mapping[str, int], sizes: Mapping[str, int]) -> str:
    """Return the axes that shard a dim, major first, as text on a mesh of axes of some sizes."""
    if axes.keys() <= sizes.keys():
        return "{" + ", ".join(map(string, axes)) + "}"
    joined = joined_axes(axes.items())
    ends = ["" if size == sizes[axis] else f":({start}){size}" for axis, start, size in joined]
    return "{" + ", ".join(string(axis) + end for (axis, *_), end in zip(joined, ends)) + "}"
