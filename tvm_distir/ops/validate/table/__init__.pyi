# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .table import TABLE as TABLE
from .table import UNPROVED as UNPROVED
from .table import WHOLE as WHOLE
from .table import all_cases as all_cases
from .table import quick as quick
