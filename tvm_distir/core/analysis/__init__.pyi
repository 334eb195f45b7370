# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .levels import check_level as check_level
from .levels import level_of as level_of
from .names import LEVELS as LEVELS
from .partial import PartialState as PartialState
