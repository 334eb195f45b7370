# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the request, the options and the result of planning a redistribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tvm_distir.core.ir.placement import Labels, local_shape
from tvm_distir.core.ops.dims import size_bytes

from .costs import Groups, StepCosts
from .steps import Step

PADDING_PARTS = 8
"""Padding alone may make a shard on the way larger than the bound, by one part in so many."""


@dataclass(frozen=True)
class Redistribution:
    """A sequence of steps.

    Attributes
    ----------
    steps : tuple of Step
    cost : int
        The cost, in the unit of the planner's costs.
    peak_bytes : int
        The largest bytes of a device's shard among the ends and all placements in between.
    """

    steps: tuple[Step, ...]
    cost: int
    peak_bytes: int


@dataclass(frozen=True)
class Transition:
    """A request for a redistribution, which is the key of its cached plan."""

    shape: tuple[int, ...]
    dtype: str
    before: Labels
    after: Labels
    mesh: tuple[int, ...]
    devices: tuple[int, ...]

    def local_bytes(self, labels: Labels) -> int:
        """Return the bytes of a (padded) shard."""
        return size_bytes(tuple(local_shape(self.shape, labels, self.mesh)), self.dtype)

    def parts(self, labels: Labels) -> int:
        """Return the number of shards of the tensor."""
        return math.prod(n for n, label in zip(self.mesh, labels) if label >= 0)

    def groups(self, axes: Sequence[int]) -> Groups:
        """Return the device ids of the groups along the product of axes."""
        table = np.array(self.devices).reshape(self.mesh)
        rest = [a for a in range(len(self.mesh)) if a not in axes]
        rows = table.transpose([*rest, *axes]).reshape(-1, math.prod(self.mesh[a] for a in axes))
        return [[int(d) for d in row] for row in rows]


@dataclass(frozen=True)
class PlannerOptions:
    """Options of the planning of redistributions (see :class:`.planner.Planner`)."""

    costs: StepCosts
    memory_bound: float | None
    memory_bytes: int | None
    kinds: tuple[str, ...]

    def without(self, kind: str) -> PlannerOptions:
        """Return the same options without a kind of step."""
        return replace(self, kinds=tuple(other for other in self.kinds if other != kind))

    def limit_bytes(self, key: Transition, padded: bool = False) -> int | None:
        """Return the largest shard allowed between source and target; None: any.

        ``padded``: of those that only their padding makes larger than the bound.
        """
        limits = [] if self.memory_bytes is None else [self.memory_bytes]
        if self.memory_bound is not None:
            ends = max(key.local_bytes(key.before), key.local_bytes(key.after))
            bound = math.floor(self.memory_bound * ends)
            limits.append(bound + bound // PADDING_PARTS if padded else bound)
        return min(limits, default=None)
