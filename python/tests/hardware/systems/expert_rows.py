# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the rows of experts that work, as measured tables have them."""

from __future__ import annotations

import numpy as np

from tvm_distir.hardware.systems.expert_kernels import SERVED_CAPACITY


def work_rows(tokens: int, local_experts: int, top_k: int, experts: int) -> float:
    """Return the rows of the experts of a device that work: their slots, of those selected."""
    slots = min(tokens, max(1, int(np.ceil(SERVED_CAPACITY * tokens * top_k / experts))))
    working = local_experts * (1 - (1 - top_k / experts) ** tokens)
    return float(min(local_experts, max(1.0, np.ceil(working - 1e-9))) * slots)
