# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the sizes of dims that ``dist.io`` names, such as ``past + 2*batch*seq``.

Nothing here needs IR: TVM's runtime-only library is enough.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_TERM = re.compile(r"([+-]?)\s*([^+-]+)")


def extent_value(extent: int | str, sizes: Mapping[str, int]) -> int:
    """Return the value of an extent: a number, or a sum of products of numbers and names.

    Raises
    ------
    KeyError
        For a name without a size.
    """
    if isinstance(extent, int):
        return extent
    total = 0
    for sign, term in _TERM.findall(extent):
        factors = [factor.strip() for factor in term.split("*")]
        value = math.prod(int(f) if f.isdigit() else sizes[f] for f in factors)
        total += -value if sign == "-" else value
    return total
