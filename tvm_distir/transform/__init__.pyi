# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .annotate import AnnotateSharding as AnnotateSharding
from .declaration import PassInfo as PassInfo
from .declaration import Rewrite as Rewrite
from .declaration import module_pass as module_pass
from .distribute import distribute as distribute
from .distribute import pipeline as pipeline
from .gradient import TrainStep as TrainStep
from .inline import InlinePrivateFunctions as InlinePrivateFunctions
from .legalize import LegalizeRedistribute as LegalizeRedistribute
from .legalize import UseStockCollectives as UseStockCollectives
from .lower import LowerDistIR as LowerDistIR
from .optimize import BucketGathers as BucketGathers
from .optimize import BucketReductions as BucketReductions
from .optimize import CancelCollectives as CancelCollectives
from .optimize import FuseCollectives as FuseCollectives
from .optimize import MergeReductions as MergeReductions
from .optimize import MoveGathers as MoveGathers
from .optimize import MoveSlices as MoveSlices
from .optimize import OptimizeCollectives as OptimizeCollectives
from .optimize import RemoveUnused as RemoveUnused
from .optimize import ScheduleCollectives as ScheduleCollectives
from .optimize import ShareCollectives as ShareCollectives
from .optimize import SplitCollectives as SplitCollectives
from .optimize import Traffic as Traffic
from .optimize import TrafficInstrument as TrafficInstrument
from .optimize import traffic as traffic
from .outline import OutlineRepeatedLayers as OutlineRepeatedLayers
from .propagate import PropagateSharding as PropagateSharding
from .registry import PIPELINE as PIPELINE
from .registry import check_name as check_name
from .registry import find_pass as find_pass
from .registry import pass_names as pass_names
from .spec import PassSpec as PassSpec
from .spec import levels_after as levels_after
from .spec import parse_passes as parse_passes
