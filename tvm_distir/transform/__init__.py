# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Factories of the passes that take a module from level to level."""

from __future__ import annotations

from .annotate import AnnotateSharding
from .inline import InlinePrivateFunctions
from .legalize import LegalizeRedistribute
from .lower import LowerDistIR
from .optimize import OptimizeCollectives
from .outline import OutlineRepeatedLayers
from .pipeline import distribute, pipeline
from .propagate import PropagateSharding

__all__ = [
    "AnnotateSharding",
    "InlinePrivateFunctions",
    "LegalizeRedistribute",
    "LowerDistIR",
    "OptimizeCollectives",
    "OutlineRepeatedLayers",
    "PropagateSharding",
    "distribute",
    "pipeline",
]
