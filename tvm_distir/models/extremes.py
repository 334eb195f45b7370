# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Keep ``argmax`` and ``argmin`` valid where no element exceeds the bounds of its type."""

from __future__ import annotations

from typing import Any

from tvm import relax


def valid_place(place: Any, size: int) -> Any:
    """Return the result of ``argmax`` or ``argmin``, clipped to the axis.

    TVM compares with the lowest (highest) number of the type, and gives -1 where no element is
    greater (less): all are that number or infinite. The first of them, 0, is the place. Counted
    from the end, -1 is the size of the axis, and the last element is the place.

    Parameters
    ----------
    place : Expr
        Of type int64.
    size : int
        Of the axis, or of the whole operand where the place counts all elements.
    """
    return relax.op.clip(place, 0, max(size - 1, 0))
