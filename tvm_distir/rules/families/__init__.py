# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Hand-written sharding rules, a file per family of ops."""

from __future__ import annotations

from . import (
    attention,
    contraction,
    creation,
    elementwise,
    indexing,
    joining,
    layout,
    losses,
    norms,
    ordering,
    reductions,
    vision,
    windows,
    windows_back,
)

__all__ = [
    "attention",
    "contraction",
    "creation",
    "elementwise",
    "indexing",
    "joining",
    "layout",
    "losses",
    "norms",
    "ordering",
    "reductions",
    "vision",
    "windows",
    "windows_back",
]
