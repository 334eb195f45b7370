# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fewer, cheaper and overlapped collectives: passes at level 4, then at level 5."""

from __future__ import annotations

from .bucket import BucketGathers, BucketReductions
from .fuse import FuseCollectives
from .merge import MergeReductions
from .move import MoveGathers, MoveSlices
from .passes import OptimizeCollectives
from .schedule import ScheduleCollectives
from .share import CancelCollectives, ShareCollectives
from .split import SplitCollectives
from .traffic import Change, Kind, Traffic, TrafficInstrument, traffic
from .unused import RemoveUnused

__all__ = [
    "BucketGathers",
    "BucketReductions",
    "CancelCollectives",
    "Change",
    "FuseCollectives",
    "Kind",
    "MergeReductions",
    "MoveGathers",
    "MoveSlices",
    "OptimizeCollectives",
    "RemoveUnused",
    "ScheduleCollectives",
    "ShareCollectives",
    "SplitCollectives",
    "Traffic",
    "TrafficInstrument",
    "traffic",
]
