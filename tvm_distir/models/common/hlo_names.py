# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Names that mean the same in Relax and in StableHLO, for the importer and the exporter."""

from __future__ import annotations

ELEMENTS = {
    "bool": "i1",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e5m2": "f8E5M2",
    **{f"float{n}": f"f{n}" for n in (16, 32, 64)},
    **{f"int{n}": f"i{n}" for n in (8, 16, 32, 64)},
    **{f"uint{n}": f"ui{n}" for n in (8, 16, 32, 64)},
}
"""The types of elements."""
UNARY = {
    **{name: name for name in ("abs", "ceil", "floor", "log", "rsqrt", "sign", "sqrt", "tanh")},
    "cos": "cosine",
    "exp": "exponential",
    "negative": "negate",
    "round": "round_nearest_even",
    "sigmoid": "logistic",
    "sin": "sine",
}
CHLO = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf", "sinh")
"""Functions of the dialect CHLO, with the names of Relax."""
BINARY = ("add", "divide", "maximum", "minimum", "multiply", "power", "subtract")
COMPARISONS = {
    "equal": "EQ",
    "not_equal": "NE",
    "less": "LT",
    "less_equal": "LE",
    "greater": "GT",
    "greater_equal": "GE",
}
REDUCTIONS = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "multiply"}
SCATTERS = {"add": "add", "max": "maximum", "min": "minimum", "mul": "multiply"}
"""The reductions of a scatter."""
