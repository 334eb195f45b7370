# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Checkers: whether a module is at the IR level it should be at."""

from __future__ import annotations

from .levels import LEVELS, check_level
from .partial import PartialState

__all__ = ["LEVELS", "PartialState", "check_level"]
