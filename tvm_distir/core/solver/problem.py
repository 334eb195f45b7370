# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A sum of integer cost tables, to be minimised."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

INFINITE = 1 << 60
"""Cost of what may not be. Sums of tables saturate at it; two of it still fit in an int64."""

Scope = tuple[int, ...]
Factors = dict[Scope, int]
Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """A sum of tables to minimise.

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
        """The domains; per factor its table, the number of its variables, the variables."""
        flat: list[int] = []
        append, extend = flat.append, flat.extend
        for scope, table in self.factors.items():
            append(table)
            append(len(scope))
            extend(scope)
        return ints(self.domains), ints(flat)


def ints(values: Sequence[int]) -> Array:
    """As the library takes them."""
    return np.array(values, dtype=np.int64)
