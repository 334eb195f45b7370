# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Names that mean the same in Relax and in StableHLO, for the importer and the exporter."""

from __future__ import annotations

from tvm_distir.support import shipped_data

_NAMES = shipped_data(__file__, "hlo_names.json")
ELEMENTS: dict[str, str] = _NAMES["elements"]
"""The types of elements."""
UNARY: dict[str, str] = _NAMES["unary"]
CHLO: list[str] = _NAMES["chlo"]
"""Functions of the dialect CHLO, with the names of Relax."""
BINARY: list[str] = _NAMES["binary"]
COMPARISONS: dict[str, str] = _NAMES["comparisons"]
REDUCTIONS: dict[str, str] = _NAMES["reductions"]
SCATTERS: dict[str, str] = _NAMES["scatters"]
"""The reductions of a scatter."""

KERNEL_OPERATION = "dist.stablehlo"
"""Attribute of a kernel: the operation that it computes, whose types alone define it."""
