# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define in NumPy the collectives that have no level-5 op, over the arrays of a group.

The native library must give these bits; see :mod:`~.collective_results.meaning` for the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.support import EngineError

from .meaning import all_reduce, wide_dtype

Array = npt.NDArray[Any]

AVERAGE = "avg"
"""Reduction that only these functions and the native library have; its code follows the others."""


def reduce_terms(terms: Sequence[Array], op: str) -> Array:
    """Reduce arrays of equal shape in their order, by :data:`AVERAGE` too.

    The average is the sum divided by the number of terms; of integers it is the sum modulo their
    width, divided toward zero. ``float16`` and ``bfloat16`` are rounded once, after the division.

    Raises
    ------
    EngineError
        DIST0611 for the average of bool.
    """
    if op != AVERAGE:
        return all_reduce(terms, op)
    dtype = terms[0].dtype
    if dtype == np.bool_:
        raise EngineError("DIST0611", "bool has no average", remedy="Cast it first.")
    wide = [term.astype(wide_dtype(dtype)) for term in terms]
    total = all_reduce(wide, "sum")
    if dtype.kind in "iu":
        # Not floor_divide: toward zero, as C++ does.
        quotient = np.abs(total.astype(object)) // len(terms) * np.sign(total.astype(object))
        return np.asarray(quotient).astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(total / total.dtype.type(len(terms))).astype(dtype)


def _cut(x: Array, sizes: Sequence[int], dim: int) -> list[Array]:
    if sum(sizes) != x.shape[dim]:
        raise EngineError(
            "DIST0611",
            f"the ranks expect {sum(sizes)} along dim {dim}, the operand has {x.shape[dim]}",
            remedy="Make the sizes of the results those of the parts.",
        )
    ends = list(itertools.accumulate(sizes))
    return [np.ascontiguousarray(part) for part in np.split(x, ends[:-1], axis=dim)]


def broadcast(xs: Sequence[Array], root: int) -> list[Array]:
    """Give every rank the array at position ``root``."""
    return [xs[root].copy() for _ in xs]


def scatter(x: Array, sizes: Sequence[int], dim: int) -> list[Array]:
    """Split the root's array along ``dim`` into a part of the given size per rank."""
    return _cut(x, sizes, dim)


def gather(xs: Sequence[Array], dim: int) -> Array:
    """Concatenate along ``dim``, in group order, sizes as they are; the root gets the result."""
    return np.concatenate(list(xs), axis=dim)
