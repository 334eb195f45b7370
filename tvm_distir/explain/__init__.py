# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Says why a value lies where it lies, what else would have cost, and draws who holds what."""

from __future__ import annotations

from .explainer import explain
from .explanation import Alternative, AxisReason, Dim, Explanation, Move, Step
from .picture import Part, parts, picture

__all__ = [
    "Alternative",
    "AxisReason",
    "Dim",
    "Explanation",
    "Move",
    "Part",
    "Step",
    "explain",
    "parts",
    "picture",
]
