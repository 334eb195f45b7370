# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs whose values have the mesh's order of axes: their exchanges are what tests look at."""

from __future__ import annotations

from typing import Any

import tvm

from tvm_distir.core.plan import as_plan
from tvm_distir.transforms.registry import passes_for
from tvm_distir.transforms.spec import PassSpec


def distribute_unordered(mod: Any, plan: Any) -> Any:
    """Distribute a module without the pass ``OrderAxes``."""
    steps = [(name, options) for name, options in passes_for(as_plan(plan, mod)) if name != "order"]
    passes = [PassSpec(name).make(**options) for name, options in steps]
    return tvm.transform.Sequential(passes)(mod)
