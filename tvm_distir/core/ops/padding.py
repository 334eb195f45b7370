# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describes the needs of an op for the padding of uneven dims, as its registration declares.

A dim of n elements over k devices is padded to ``ceil(n/k)`` per shard.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class Reduced(enum.Enum):
    """Value that the padding of a reduced dim must hold."""

    UNKNOWN = "unknown: such a dim is only sharded evenly"
    ZEROS = "zeros in all operands: partial sums are products of their elements"
    NEUTRAL = "the neutral element of the reduction"
    UNREAD = "any value: the local form excludes it"


class Zeros(enum.Enum):
    """Condition under which the padding of the results holds zeros."""

    UNKNOWN = "not known"
    KEPT = "where the condition of all operands holds"
    ALIGNED = "where the condition of all operands holds, and none is broadcast"
    MADE = "always"


@dataclass(frozen=True)
class Padding:
    """Values that an op reads and leaves in the padding of uneven dims.

    Ops that keep a dim compute something in its padding that nobody looks at: they need nothing.

    Attributes
    ----------
    reduced : Reduced
        The values that the padding of a reduced dim must have.
    indices : tuple of int
        Operands used as indices, which must lie inside what they index even in the padding.
    divisor : int or None
        Operand that divides: integers trap on a zero.
    zeros : Zeros
        The condition under which the padding of the results is zero.
    """

    reduced: Reduced = Reduced.UNKNOWN
    indices: tuple[int, ...] = ()
    divisor: int | None = None
    zeros: Zeros = Zeros.UNKNOWN


NO_PADDING: Final = Padding()
"""Padding of an op of which nothing is known."""
ZERO_TERMS: Final = Padding(Reduced.ZEROS)
"""Padding of a sum whose terms are products of operand elements."""
ZEROS_KEPT: Final = Padding(zeros=Zeros.KEPT)
"""Padding of an op that returns zeros for zeros."""
