# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fewer and cheaper collectives, at level 4."""

from __future__ import annotations

from .passes import OptimizeCollectives

__all__ = ["OptimizeCollectives"]
