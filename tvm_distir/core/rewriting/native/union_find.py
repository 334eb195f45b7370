# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Merge overlapping groups into classes natively (union-find)."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_distir.support import native_function

from .function_index import numbers_of


def union_find(count: int, groups: Sequence[int]) -> tuple[int, ...]:
    """Return the smallest member of the class of each element.

    Parameters
    ----------
    count : int
        The things are numbered from 0 on.
    groups : sequence of int
        The number of members of each group, followed by the members, which are in the same class.
    """
    return numbers_of(native_function("joined_classes")(count, tuple(groups)))
