# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define a sum of integer cost tables to minimize."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

INFINITE = 1 << 60
"""Cost of an infeasible state; sums saturate at it, and twice its value fits in an int64."""

Scope = tuple[int, ...]
Factors = dict[Scope, int]
Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """A sum of tables to minimize.

    Attributes
    ----------
    domains : sequence of int
        Number of alternatives per variable.
    factors : mapping of scope to table number
        Scopes are sorted tuples of variables.
    """

    domains: Sequence[int]
    factors: Mapping[Scope, int]

    @functools.cached_property
    def arrays(self) -> tuple[Array, Array]:
        """Return the domains; per factor its table, the number of its variables, the variables."""
        flat: list[int] = []
        append, extend = flat.append, flat.extend
        for scope, table in self.factors.items():
            append(table)
            append(len(scope))
            extend(scope)
        return ints(self.domains), ints(flat)


def ints(values: Sequence[int]) -> Array:
    """Convert integers to an int64 array, as the native library takes them."""
    return np.array(values, dtype=np.int64)
