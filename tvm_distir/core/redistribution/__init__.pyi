# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .matrix import price_matrix as price_matrix
from .planner import Planner as Planner
from .planner import plan_steps as plan_steps
from .steps import Step as Step
