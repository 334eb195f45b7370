# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Factories of the passes that take a module from level to level."""

from __future__ import annotations

from .annotate import AnnotateSharding
from .inline import InlinePrivateFunctions
from .legalize import LegalizeRedistribute, UseStockCollectives
from .lower import LowerDistIR
from .optimize import (
    BucketGathers,
    BucketReductions,
    CancelCollectives,
    FuseCollectives,
    MergeReductions,
    MoveGathers,
    MoveSlices,
    OptimizeCollectives,
    RemoveUnused,
    ScheduleCollectives,
    ShareCollectives,
    SplitCollectives,
    Traffic,
    TrafficInstrument,
    traffic,
)
from .outline import OutlineRepeatedLayers
from .pipeline import distribute, pipeline
from .propagate import PropagateSharding

__all__ = [
    "AnnotateSharding",
    "BucketGathers",
    "BucketReductions",
    "CancelCollectives",
    "FuseCollectives",
    "InlinePrivateFunctions",
    "LegalizeRedistribute",
    "LowerDistIR",
    "MergeReductions",
    "MoveGathers",
    "MoveSlices",
    "OptimizeCollectives",
    "OutlineRepeatedLayers",
    "PropagateSharding",
    "RemoveUnused",
    "ScheduleCollectives",
    "ShareCollectives",
    "SplitCollectives",
    "Traffic",
    "TrafficInstrument",
    "UseStockCollectives",
    "distribute",
    "pipeline",
    "traffic",
]
