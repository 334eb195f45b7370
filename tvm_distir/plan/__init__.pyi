# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .matching import MAIN as MAIN
from .matching import FunctionTargets as FunctionTargets
from .matching import match_name as match_name
from .matching import plain_name as plain_name
from .matching import resolve as resolve
from .plan import Plan as Plan
from .roles import data_positions as data_positions
from .schema import DEFAULT_MESH as DEFAULT_MESH
from .schema import SCHEMA_VERSION as SCHEMA_VERSION
from .schema import MeshSpec as MeshSpec
from .schema import OpenLabels as OpenLabels
from .schema import PlanRule as PlanRule
from .schema import faults_of_plan as faults_of_plan
from .schema import labels_text as labels_text
from .schema import parse_open_placement as parse_open_placement
