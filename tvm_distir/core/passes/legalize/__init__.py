# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""From level 3 to level 4: redistributions become collectives, reductions become explicit."""

from __future__ import annotations

from tvm_distir.core.redistribution.planner import plan_steps

__all__ = ["plan_steps"]
