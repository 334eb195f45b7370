# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Makers of plans for known kinds of parallelism; several can share a mesh, an axis each."""

from __future__ import annotations

from .compose import compose, make_plan, merge
from .data_parallel import data_parallel
from .expert_parallel import expert_parallel
from .megatron import megatron
from .registry import (
    StrategyInfo,
    StrategySpec,
    find_strategy,
    parse,
    plan_maker,
    strategy_names,
)
from .spatial_parallel import spatial_parallel
from .tensor_parallel import tensor_parallel
from .training import with_updates
from .zero import zero

__all__ = [
    "StrategyInfo",
    "StrategySpec",
    "compose",
    "data_parallel",
    "expert_parallel",
    "find_strategy",
    "make_plan",
    "megatron",
    "merge",
    "parse",
    "plan_maker",
    "spatial_parallel",
    "strategy_names",
    "tensor_parallel",
    "with_updates",
    "zero",
]
