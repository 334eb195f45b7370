# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Makers of plans for known kinds of parallelism; several can share a mesh, an axis each."""

from __future__ import annotations

from .compose import compose, make_plan, merge
from .data_parallel import data_parallel
from .megatron import megatron
from .registry import StrategySpec, parse, register_strategy, strategies
from .tensor_parallel import tensor_parallel

__all__ = [
    "StrategySpec",
    "compose",
    "data_parallel",
    "make_plan",
    "megatron",
    "merge",
    "parse",
    "register_strategy",
    "strategies",
    "tensor_parallel",
]
