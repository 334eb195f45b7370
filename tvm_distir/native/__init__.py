# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The native library: its loader, a wrapper per kernel, and each kernel's reference in Python."""

from __future__ import annotations

from .loader import ABI_VERSION, LIBRARY_VARIABLE, library_path, load_library
from .schedule import Tasks, schedule
from .survey import Survey, survey
from .tables import INFINITE, Elimination, Problem, Tables

__all__ = [
    "ABI_VERSION",
    "INFINITE",
    "LIBRARY_VARIABLE",
    "Elimination",
    "Problem",
    "Survey",
    "Tables",
    "Tasks",
    "library_path",
    "load_library",
    "schedule",
    "survey",
]
