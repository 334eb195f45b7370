# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .partition_spec import PartitionSpec as PartitionSpec
from .plan import Plan as Plan
from .schema import DEFAULT_MESH as DEFAULT_MESH
from .schema import MeshSpec as MeshSpec
from .schema import PlanRule as PlanRule
from .schema import parse_open_placement as parse_open_placement
