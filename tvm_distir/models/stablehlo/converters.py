# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collect the converters of all operations."""

from __future__ import annotations

from . import (
    bit_generators,
    contraction,
    control,
    elementwise,
    indexing,
    random_numbers,
    reductions,
    shapes,
    windows,
)
from .operation_call import Converter

CONVERTERS: dict[str, Converter] = {
    **elementwise.CONVERTERS,
    **shapes.CONVERTERS,
    **contraction.CONVERTERS,
    **reductions.CONVERTERS,
    **windows.CONVERTERS,
    **indexing.CONVERTERS,
    **control.CONVERTERS,
    **random_numbers.CONVERTERS,
    **bit_generators.CONVERTERS,
}
"""The converter of each operation, by its name."""

BRANCHES = ("stablehlo.case", "stablehlo.if")
CALLS = ("func.call", "stablehlo.composite")
MANUAL = "sdy.manual_computation"
RETURNS = ("func.return", "stablehlo.return", "sdy.return")
ANNOTATIONS = ("sdy.sharding_constraint", "stablehlo.custom_call")
SHARDING_CALL = "Sharding"
"""The custom call of JAX that only annotates its operand with a placement."""
