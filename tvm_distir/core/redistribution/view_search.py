# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Search the cheapest steps between placements on two views of a mesh.

The states are tilings: which mesh axes shard each dim, from major to minor, whatever the view. Each
step is a collective on a view on which its operand and its result can be stated; between steps on
different views nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm_distir.core.ir.mesh import MeshKey
from tvm_distir.core.ir.placement import Labels
from tvm_distir.core.ir.views.tilings import (
    Axes,
    Tiling,
    View,
    labels_on,
    tiling,
    unordered_labels,
)
from tvm_distir.core.ops.dims import size_bytes

from .shards import Bounds, tile_bounds
from .shortest_path import ShortestPath
from .steps import Space, Step, can_exchange, crossing_axes, exchange_step, steps_from
from .transfer import StepTraffic, step_transfer
from .transition import PlannerOptions, Transition

StepKey = tuple[str, int | None, Tiling]
"""The kind of a step from a state, the dim that it joins and the state that it leads to."""


@dataclass(frozen=True)
class ViewStep(Step):
    """A step on a view.

    Attributes
    ----------
    view : tuple of int
        The family's axes, in the order of the view: ``axes`` and labels are positions in it.
    before : tuple of int
        Labels of the operand.
    """

    view: Axes
    before: Labels


@dataclass(frozen=True)
class ViewTransition:
    """A request for steps between two tilings of a family, which is the key of its plan.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
    before, after : Tiling
    family : (sizes, device ids)
    views : tuple of tuple of int
        The orders of axes that steps may use, the preferred ones first. Two ends that have axes in
        opposite orders have no plan.
    """

    shape: tuple[int, ...]
    dtype: str
    before: Tiling
    after: Tiling
    family: MeshKey
    views: tuple[Axes, ...]

    def sizes(self, order: Axes) -> tuple[int, ...]:
        """Return the sizes of the axes of a view."""
        return tuple(self.family[0][a] for a in order)

    def labels(self, tiles: Tiling) -> Labels:
        """Return the dim that each axis of the family shards, without their orders."""
        return unordered_labels(tiles, tuple(range(len(self.family[0]))))


class ViewSearch(ShortestPath[Tiling]):
    """A search of a shortest path between tilings.

    Parameters
    ----------
    means : PlannerOptions
    request : ViewTransition
    """

    def __init__(self, means: PlannerOptions, request: ViewTransition) -> None:
        self.request = request
        ends = request.labels(request.before), request.labels(request.after)
        key = Transition(request.shape, request.dtype, *ends, *request.family)
        super().__init__(means, key, request.before, request.after)
        views = [View(request.family, order) for order in request.views]
        self.views = [(x, self._space(x.axes), labels_on(x, request.after)) for x in views]

    def _space(self, order: Axes) -> Space:
        allowed, finish = self.space.allowed, self.space.finish
        return Space(
            self.request.sizes(order),
            tuple(allowed[a] for a in order),
            tuple(finish[a] for a in order),
            self.space.kinds,
        )

    def _labels(self, state: Tiling) -> Labels:
        return self.request.labels(state)

    def _stated(self, state: Tiling) -> Iterator[tuple[View, Space, Labels, Labels | None]]:
        """Return the views that state a tiling, with its labels and, where stated, the goal's."""
        for view, space, goal in self.views:
            labels = labels_on(view, state)
            if labels is not None:
                yield view, space, labels, goal

    def _bounds(self, state: Tiling) -> Bounds:
        return tile_bounds(self.key.shape, state.dims, self.key.mesh)

    def _priced(self, state: Tiling) -> Iterator[tuple[Step, Tiling, int]]:
        key, known = self.key, set[StepKey]()
        stated = list(self._stated(state))
        by_goal = any(g is not None and can_exchange(x, g) for _, _, x, g in stated)
        for view, space, labels, _ in stated:
            for step in steps_from(space, labels):
                if (after := self._new(known, view, step)) is not None:
                    transfer = step_transfer(key.shape, labels, step, space.mesh, key.dtype)
                    if transfer.kind in space.kinds:
                        yield self._on(view, labels, step, transfer, after)
        for view, space, labels, goal in stated:
            if "exchange" not in space.kinds or (by_goal and goal is None):
                continue
            for labels_after, elements in self._exchanges(space, labels, goal):
                step = exchange_step(labels, labels_after)
                if (after := self._new(known, view, step)) is not None:
                    axes = crossing_axes(labels, labels_after)
                    transfer = StepTraffic("exchange", axes, size_bytes((elements,), key.dtype))
                    yield self._on(view, labels, step, transfer, after)

    def _new(self, known: set[StepKey], view: View, step: Step) -> Tiling | None:
        """Return the tiling that a step leads to; None where another view has the same step."""
        after = tiling(view, step.after, len(self.key.shape))
        size = len(known)
        known.add((step.kind, step.gather_dim, after))
        return after if len(known) > size else None

    def _on(
        self, view: View, labels: Labels, step: Step, transfer: StepTraffic, after: Tiling
    ) -> tuple[Step, Tiling, int]:
        axes = tuple(sorted(view.axes[a] for a in transfer.axes))
        cost = self._cost(StepTraffic(transfer.kind, axes, transfer.payload_bytes))
        done = ViewStep(**vars(step), view=view.axes, before=labels)
        return done, after, cost
