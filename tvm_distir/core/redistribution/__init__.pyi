# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .costs import EXCHANGE_EXTRA as EXCHANGE_EXTRA
from .costs import PLAIN_MOVES as PLAIN_MOVES
from .costs import StepCosts as StepCosts
from .matrix import CostMatrix as CostMatrix
from .matrix import cost_matrix as cost_matrix
from .planner import Planner as Planner
from .planner import plan_steps as plan_steps
from .shards import bounds_of as bounds_of
from .shards import terms_of as terms_of
from .steps import Step as Step
from .transfer import local_bytes as local_bytes
from .transfer import payload_bytes as payload_bytes
from .view_search import ViewTransition as ViewTransition
