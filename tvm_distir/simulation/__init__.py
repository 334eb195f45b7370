# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Predicts time, memory and traffic of a ``Program`` on a ``System``."""

from __future__ import annotations

from .result import Branch, Collective, DeviceResult, Event, FunctionTime, Lane, OpTime, Result
from .simulator import simulate

__all__ = [
    "Branch",
    "Collective",
    "DeviceResult",
    "Event",
    "FunctionTime",
    "Lane",
    "OpTime",
    "Result",
    "simulate",
]
