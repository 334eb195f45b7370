# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .given import PlanLike as PlanLike
from .given import as_plan as as_plan
from .given import plan_of_meshes as plan_of_meshes
from .matching import FunctionTargets as FunctionTargets
from .matching import resolve as resolve
from .names import MAIN as MAIN
from .names import match_name as match_name
from .names import plain_name as plain_name
from .plan import Plan as Plan
from .recomputation import ATTENTION as ATTENTION
from .recomputation import CHECKPOINT as CHECKPOINT
from .recomputation import CORE as CORE
from .recomputation import CUT as CUT
from .recomputation import FULL as FULL
from .recomputation import MEGATRON as MEGATRON
from .recomputation import NONE as NONE
from .recomputation import SELECTIVE as SELECTIVE
from .recomputation import Recomputation as Recomputation
from .recomputation import Runs as Runs
from .recomputation import check_policies as check_policies
from .recomputation import policies_of as policies_of
from .recomputation import share_of as share_of
from .roles import data_positions as data_positions
from .schema import DEFAULT_MESH as DEFAULT_MESH
from .schema import SCHEMA_VERSION as SCHEMA_VERSION
from .schema import MeshSpec as MeshSpec
from .schema import OpenLabels as OpenLabels
from .schema import PlanRule as PlanRule
from .schema import faults_of_plan as faults_of_plan
from .schema import labels_text as labels_text
from .schema import parse_open_placement as parse_open_placement
