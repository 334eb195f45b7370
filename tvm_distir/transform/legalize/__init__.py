# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""From level 3 to level 4: redistributions become collectives, reductions become explicit."""

from __future__ import annotations

from .passes import LegalizeRedistribute
from .planner import Plan, Planner, plan_steps
from .steps import Step
from .stock import UseStockCollectives

__all__ = ["LegalizeRedistribute", "Plan", "Planner", "Step", "UseStockCollectives", "plan_steps"]
