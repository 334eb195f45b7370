# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Search the cheapest steps between two placements of a mesh.

The states are placements (a label per mesh axis, partial sums included); the edges are the
collectives along mesh axes, and the *exchange*.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm_distir.core.ir.placement import Labels
from tvm_distir.core.ops.dims import size_bytes

from .shards import Bounds, bounds_of
from .shortest_path import ShortestPath
from .steps import Step, crossing_axes, exchange_step, steps_from
from .transfer import StepTraffic, step_transfer
from .transition import PlannerOptions, Transition


class PathSearch(ShortestPath[Labels]):
    """A search of a shortest path.

    Parameters
    ----------
    means : PlannerOptions
    key : Transition
    """

    def __init__(self, means: PlannerOptions, key: Transition) -> None:
        super().__init__(means, key, key.before, key.after)

    def _labels(self, state: Labels) -> Labels:
        return state

    def _bounds(self, state: Labels) -> Bounds:
        return bounds_of(self.key.shape, state, self.key.mesh)

    def _priced(self, state: Labels) -> Iterator[tuple[Step, Labels, int]]:
        key = self.key
        for step in steps_from(self.space, state):
            transfer = step_transfer(key.shape, state, step, key.mesh, key.dtype)
            if transfer.kind in self.space.kinds:
                yield step, step.after, self._cost(transfer)
        if "exchange" in self.space.kinds:
            for after, elements in self._exchanges(self.space, state, key.after):
                step = exchange_step(state, after)
                axes = crossing_axes(state, after)
                transfer = StepTraffic("exchange", axes, size_bytes((elements,), key.dtype))
                yield step, after, self._cost(transfer)
