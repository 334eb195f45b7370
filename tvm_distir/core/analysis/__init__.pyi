# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .aliases import ParamAliases as ParamAliases
from .aliases import param_aliases as param_aliases
from .levels import check_level as check_level
from .levels import has_dtensor as has_dtensor
from .levels import level_of as level_of
from .levels import refuse_dtensors as refuse_dtensors
from .liveness import last_reads as last_reads
from .liveness import live_bytes as live_bytes
from .names import LEVELS as LEVELS
from .partial import PartialState as PartialState
from .reads import dependencies as dependencies
from .well_formed import broken_rule as broken_rule
from .well_formed import check_well_formed as check_well_formed
