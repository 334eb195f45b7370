# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""From level 4 to level 5: each device's own program on local tensors."""

from __future__ import annotations

from . import (  # noqa: F401 (they register their handlers)
    losses,
    ordering,
    sliding_back,
    statistics,
)
from .calls import LocalCall, register_local
from .passes import LowerDistIR
from .shard import Operand, Shard

__all__ = ["LocalCall", "LowerDistIR", "Operand", "Shard", "register_local"]
