# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .restore import Choice as Choice
from .restore import choices as choices
from .restore import restore_branches as restore_branches
from .results import branch_results as branch_results
from .results import is_choice as is_choice
from .sink import sink_collectives as sink_collectives
from .sink import sink_conversions as sink_conversions
