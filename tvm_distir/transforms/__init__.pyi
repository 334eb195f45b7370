# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .attention.passes import FuseAttention as FuseAttention
from .attention.passes import with_log_sum_exp as with_log_sum_exp
from .core_passes import AnnotateSharding as AnnotateSharding
from .core_passes import LegalizeRedistribute as LegalizeRedistribute
from .core_passes import LowerDistIR as LowerDistIR
from .core_passes import PassInfo as PassInfo
from .core_passes import PropagateSharding as PropagateSharding
from .core_passes import Rewrite as Rewrite
from .core_passes import module_pass as module_pass
from .distribute import communication_passes as communication_passes
from .distribute import distribute as distribute
from .distribute import is_training_step as is_training_step
from .distribute import pipeline as pipeline
from .inline.passes import InlinePrivateFunctions as InlinePrivateFunctions
from .optimize.bucket import BucketGathers as BucketGathers
from .optimize.bucket import BucketReductions as BucketReductions
from .optimize.call_sites import CallSites as CallSites
from .optimize.call_sites import callee_of as callee_of
from .optimize.collective_schedule import ScheduleCollectives as ScheduleCollectives
from .optimize.collective_schedule import SplitCollectives as SplitCollectives
from .optimize.deferral import DeferReductions as DeferReductions
from .optimize.fuse import FuseCollectives as FuseCollectives
from .optimize.merge import MergeReductions as MergeReductions
from .optimize.move import MoveGathers as MoveGathers
from .optimize.move import MoveSlices as MoveSlices
from .optimize.passes import OptimizeCollectives as OptimizeCollectives
from .optimize.prefetch import PrefetchGathers as PrefetchGathers
from .optimize.regather import GatherAgain as GatherAgain
from .optimize.ring import RingAttention as RingAttention
from .optimize.share import CancelCollectives as CancelCollectives
from .optimize.share import ShareCollectives as ShareCollectives
from .optimize.traffic import Traffic as Traffic
from .optimize.traffic import TrafficChange as TrafficChange
from .optimize.traffic import TrafficInstrument as TrafficInstrument
from .optimize.traffic import traffic as traffic
from .optimize.unused import RemoveUnused as RemoveUnused
from .outline.outliner import OutlineRepeatedLayers as OutlineRepeatedLayers
from .registry import PIPELINE as PIPELINE
from .registry import check_name as check_name
from .registry import find_pass as find_pass
from .registry import pass_names as pass_names
from .registry import passes_for as passes_for
from .spec import PassSpec as PassSpec
from .spec import levels_after as levels_after
from .spec import parse_passes as parse_passes
from .training.autodiff.rules.primfuncs import (
    register_primfunc_gradient as register_primfunc_gradient,
)
from .training.optimizers.registry import optimizer_named as optimizer_named
from .training.optimizers.registry import optimizer_names as optimizer_names
from .training.optimizers.registry import read_optimizer as read_optimizer
from .training.passes import TrainStep as TrainStep
from .training.pipeline.body import StageBody as StageBody
from .training.pipeline.body import When as When
from .training.pipeline.expand_passes import ExpandSchedule as ExpandSchedule
from .training.pipeline.expand_passes import RunInTurn as RunInTurn
from .training.pipeline.places import IoPlacement as IoPlacement
from .training.pipeline.places import StageInterface as StageInterface
from .training.pipeline.sums import ContinuedAccumulation as ContinuedAccumulation
from .training.pipeline.wires import NEXT_STAGE as NEXT_STAGE
from .training.pipeline.wires import MessageEndpoints as MessageEndpoints
from .training.recompute.choice import AUTO as AUTO
from .training.recompute.choice import Auto as Auto
from .training.recompute.choice import read_recompute as read_recompute
from .training.train_step import train_step as train_step
