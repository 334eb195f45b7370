# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .configuration import Configuration as Configuration
from .driver import Progress as Progress
from .driver import SweepResult as SweepResult
from .driver import sweep as sweep
from .pipeline import Pipeline as Pipeline
