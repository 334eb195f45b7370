# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The error tree: every failure a user can meet has a code, a place, a remedy and an exit code."""

from __future__ import annotations

from .codes import CODES
from .tree import (
    DistIRError,
    EnvironmentError_,
    InfeasibleError,
    InternalError,
    LevelError,
    LoweringError,
    MeshError,
    MismatchError,
    ModelError,
    PlanError,
    PropagationError,
    RuntimeError_,
    SimulationError,
    SystemError_,
    UsageError,
    nearest,
)

__all__ = [
    "CODES",
    "DistIRError",
    "EnvironmentError_",
    "InfeasibleError",
    "InternalError",
    "LevelError",
    "LoweringError",
    "MeshError",
    "MismatchError",
    "ModelError",
    "PlanError",
    "PropagationError",
    "RuntimeError_",
    "SimulationError",
    "SystemError_",
    "UsageError",
    "nearest",
]
