# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Computes the bytes of the statistics that a call reduces inside itself."""

from __future__ import annotations

from collections.abc import Iterable

from .dims import Shape, size_bytes


def statistic_bytes(shape: Shape, reduced: Iterable[int], dtype: str = "float32") -> int:
    """Return the bytes of a statistic, which has an element per index of the kept dims."""
    reduced_axes = set(reduced)
    return size_bytes(tuple(n for d, n in enumerate(shape) if d not in reduced_axes), dtype)
