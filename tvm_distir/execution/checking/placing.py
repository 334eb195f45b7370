# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find how inputs are sharded from their shapes, and shard arrays so."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from tvm import relax

from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import ModelError

Axes = Mapping[str, int]
"""Sizes of mesh axes by name, major first."""
Sharding = dict[str, int]
"""The dim that each mesh axis shards."""
Coordinates = tuple[tuple[str, int], ...]
"""Coordinates of a rank along the axes of a value."""


def coordinates(axes: Axes) -> list[dict[str, int]]:
    """Return the coordinates of each rank, in row-major order."""
    return [dict(zip(axes, c)) for c in itertools.product(*(range(size) for size in axes.values()))]


def inferred_sharding(
    name: str, local: Sequence[int], full: Sequence[int], axes: Axes, hint: Mapping[str, int]
) -> Sharding:
    """Return the sharding of an input: dims whose size differs, by the axes of that factor.

    Parameters
    ----------
    name : str
    local, full : sequence of int
        Shapes.
    axes : mapping of str to int
    hint : mapping of str to int
        The dims that some axes shard, where sizes leave a choice; the first is the major one.

    Raises
    ------
    ModelError
        DIST0366 shapes or a hint that do not fit, or sizes that leave a choice.
    """

    def refuse(problem: str, remedy: str = "") -> ModelError:
        remedy = remedy or f'Say it: hints={{"{name}": {{"AXIS": DIM}}}}.'
        return ModelError("DIST0366", problem, location=f'input "{name}"', remedy=remedy)

    if len(local) != len(full):
        raise refuse(f"a rank holds {list(local)} of {list(full)}")
    factors = {}
    for dim, (mine, full_size) in enumerate(zip(local, full)):
        if mine == 0 or full_size % mine:
            problem = f"a rank holds {list(local)} of {list(full)}, which is not one of equal parts"
            raise refuse(problem, "Shard dims evenly: trace sizes that the axes divide.")
        factors[dim] = full_size // mine
    for axis in sorted(hint.keys() - axes.keys()):
        raise refuse(f'no axis of the mesh ({", ".join(axes)}) is "{axis}"')
    sharding = {axis: dim for axis, dim in hint.items() if axes[axis] > 1}
    for axis, dim in sharding.items():
        if factors.get(dim, 1) % axes[axis]:
            raise refuse(f'the axis "{axis}" of size {axes[axis]} does not shard dim {dim}')
        factors[dim] //= axes[axis]
    for dim, factor in factors.items():
        if factor == 1:
            continue
        free = [axis for axis in axes if axis not in sharding and axes[axis] > 1]
        choices = [
            chosen
            for count in range(1, len(free) + 1)
            for chosen in itertools.combinations(free, count)
            if math.prod(axes[axis] for axis in chosen) == factor
        ]
        if len(choices) != 1:
            which = " or ".join("+".join(c) for c in choices) or "no axis"
            raise refuse(f"dim {dim} is divided by {factor}: by {which}")
        sharding.update(dict.fromkeys(choices[0], dim))
    return sharding


def inferred_shardings(
    parts: Mapping[str, relax.Var],
    full: Mapping[str, relax.Var],
    axes: Axes,
    hints: Mapping[str, Mapping[str, int]],
) -> dict[str, Sharding]:
    """Return the sharding of each input, from the variables of ranks and of the reference."""
    return {
        name: inferred_sharding(
            name,
            [int(n) for n in var.ty.shape],
            [int(n) for n in full[name].ty.shape],
            axes,
            hints.get(name, {}),
        )
        for name, var in parts.items()
    }


def shard(value: Array, sharding: Sharding, axes: Axes, at: Mapping[str, int]) -> Array:
    """Return the part of an array at the coordinates of a rank; the first axes are major."""
    for axis, dim in sharding.items():
        value = np.split(value, axes[axis], dim)[at[axis]]
    return value


def holds_parts(
    values: Mapping[Coordinates, Array], full: Array, sharding: Sharding, axes: Axes, most: float
) -> bool:
    """Return whether ranks hold the parts of an array, up to an absolute difference."""
    sizes = list(full.shape)
    for axis, dim in sharding.items():
        if dim >= len(sizes) or sizes[dim] % axes[axis]:
            return False
        sizes[dim] //= axes[axis]
    for at, value in values.items():
        part = shard(full, sharding, axes, {**dict.fromkeys(axes, 0), **dict(at)})
        if value.shape != part.shape:
            return False
        if np.abs(value.astype("float64") - part).max(initial=0) > most:
            return False
    return True
