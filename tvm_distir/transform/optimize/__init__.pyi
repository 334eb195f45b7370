# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .bucket import BucketGathers as BucketGathers
from .bucket import BucketReductions as BucketReductions
from .fuse import FuseCollectives as FuseCollectives
from .merge import MergeReductions as MergeReductions
from .move import MoveGathers as MoveGathers
from .move import MoveSlices as MoveSlices
from .passes import OptimizeCollectives as OptimizeCollectives
from .prefetch import PrefetchGathers as PrefetchGathers
from .regather import GatherAgain as GatherAgain
from .ring import RingAttention as RingAttention
from .schedule import ScheduleCollectives as ScheduleCollectives
from .share import CancelCollectives as CancelCollectives
from .share import ShareCollectives as ShareCollectives
from .split import SplitCollectives as SplitCollectives
from .traffic import Change as Change
from .traffic import Traffic as Traffic
from .traffic import TrafficInstrument as TrafficInstrument
from .traffic import TrafficKind as TrafficKind
from .traffic import traffic as traffic
from .unused import RemoveUnused as RemoveUnused
