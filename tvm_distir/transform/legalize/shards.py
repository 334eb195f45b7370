# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Which part of a tensor every device holds, and how much of another part it lacks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ir import Labels, shard_slices

Bounds = npt.NDArray[np.int64]


@functools.lru_cache(maxsize=4096)
def bounds_of(shape: tuple[int, ...], labels: Labels, mesh: tuple[int, ...]) -> Bounds:
    """Start and stop of every device's shard: (2, devices, dims); partial counts as whole."""
    coords = itertools.product(*(range(n) for n in mesh))
    rows = [shard_slices(shape, labels, mesh, c) for c in coords]
    found = np.array(rows, np.int64).reshape(len(rows), len(shape), 2)
    return np.ascontiguousarray(found.transpose(2, 0, 1))


def lacking(before: Bounds, after: Any) -> npt.NDArray[np.int64]:
    """Elements that the worst-off device lacks of its new shard.

    Parameters
    ----------
    before : (2, devices, dims)
    after : (2, ..., devices, dims)

    Returns
    -------
    elements : (...)
    """
    width = np.minimum(before[1], after[1]) - np.maximum(before[0], after[0])
    own = np.prod(np.maximum(width, 0), axis=-1)
    want = np.prod(after[1] - after[0], axis=-1)
    found: npt.NDArray[np.int64] = np.max(want - own, axis=-1)
    return found


def lacking_elements(
    shape: Sequence[int], before: Labels, after: Labels, mesh: Sequence[int]
) -> int:
    """The most elements that a device receives in an exchange between two placements."""
    sizes = tuple(mesh)
    source = bounds_of(tuple(shape), before, sizes)
    return int(lacking(source, bounds_of(tuple(shape), after, sizes)))
