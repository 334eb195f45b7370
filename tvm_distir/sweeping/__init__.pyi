# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .configuration import Configuration as Configuration
from .driver import sweep as sweep
from .kept import kept_program as kept_program
from .pipeline import Pipeline as Pipeline
from .result import Progress as Progress
from .result import SweepResult as SweepResult
