# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Makers of plans for known kinds of parallelism; several can share a mesh, an axis each."""

from __future__ import annotations

from .compose import compose, make_plan, merge
from .data_parallel import data_parallel
from .expert_parallel import expert_parallel
from .megatron import megatron
from .registry import StrategySpec, parse, register_strategy, strategies
from .spatial_parallel import spatial_parallel
from .tensor_parallel import tensor_parallel
from .zero import zero

__all__ = [
    "StrategySpec",
    "compose",
    "data_parallel",
    "expert_parallel",
    "make_plan",
    "megatron",
    "merge",
    "parse",
    "register_strategy",
    "spatial_parallel",
    "strategies",
    "tensor_parallel",
    "zero",
]
