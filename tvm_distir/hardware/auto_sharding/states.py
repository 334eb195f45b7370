# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Enumerates the joint strategies of a node over all axes of a mesh, with their costs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from tvm_distir.core.ir import Labels, P
from tvm_distir.core.ops import VIEWS, Factor, Rule
from tvm_distir.core.propagation import (
    NodeStrategy,
    Strategies,
    StrategyTable,
    sent_inside,
    strategies_along,
)

from .mesh_costs import MeshCosts, shard_bytes

Costs = npt.NDArray[np.int64]

Placements = tuple[Labels, ...]
Shapes = tuple[tuple[int, ...], ...]
"""The placements of all operands, or of all results."""


class OpStates:
    """States of op calls with the time of each, computed once for equal calls.

    Parameters
    ----------
    mesh_costs : MeshCosts
    strategies : StrategyTable
        The strategies along the axes of the mesh.
    """

    def __init__(self, mesh_costs: MeshCosts, strategies: StrategyTable) -> None:
        self.mesh_costs, self.strategies = mesh_costs, strategies
        self._cache: dict[Hashable, tuple[Strategies, Costs]] = {}

    def of(
        self, rule: Rule, dtype: str, shapes: Shapes, partial: tuple[int, ...], free: bool
    ) -> tuple[Strategies, Costs]:
        """Return the strategies of a call, and the time of each.

        Parameters
        ----------
        rule : Rule
        dtype : str
            The dtype of the arithmetic.
        shapes : tuple of tuple of int
            The shapes of the operands and results.
        partial : tuple of int
            A bit mask per axis; bit i: operand i may be a partial sum.
        free : bool
            The call costs no work (a transpose that products read in place).
        """
        key = (self.strategies.rule_number(rule), dtype, shapes, partial, free)
        cached = self._cache.get(key)
        if cached is None:
            strategies = self._joint(rule, shapes, partial)
            costs = [
                0 if free else self._time_ps(rule, axes, needs, gives, dtype)
                for axes, needs, gives in zip(strategies.items, strategies.needs, strategies.gives)
            ]
            cached = self._cache[key] = strategies, np.array(costs, np.int64)
        return cached

    def _joint(self, rule: Rule, shapes: Shapes, partial: tuple[int, ...]) -> Strategies:
        """Return all combinations in which every split divides."""
        every = (1 << len(rule.factors)) - 1
        columns = [
            strategies_along(rule, n, every, pending, {}, all)
            if n > 1
            else strategies_along(rule, n, 0, 0, {})
            for n, pending in zip(self.mesh_costs.sizes, partial)
        ]
        divides = self.mesh_costs.divides
        together = Strategies(-1, tuple(itertools.product(*columns)))
        rows = zip(together.items, together.needs, together.gives)
        even = [x for x, needs, gives in rows if all(map(divides, shapes, (*needs, *gives)))]
        return self.strategies.intern(self.strategies.dividing(rule, even, {}))

    def _time_ps(
        self, rule: Rule, axes: NodeStrategy, needs: Placements, gives: Placements, dtype: str
    ) -> int:
        """Return the time of local work and of communication inside the call."""
        if rule.op in VIEWS:
            return 0
        sizes, work = self.mesh_costs.sizes, rule.work
        splits = [n for n, x in zip(sizes, axes) if x.factor is not None]
        view = work.kernel_class == "view"
        gather = work.kernel_class == "gather"
        ins = rule.in_bytes if view or gather else work.in_bytes
        outs = rule.out_bytes if view else work.out_bytes
        moved = rule.moved_bytes([*map(self._local, ins, needs), *map(self._local, outs, gives)])
        kind = "memory" if view else work.kernel_class
        flops = -(-work.flops // math.prod(splits))
        count, passes = self._apart(rule, axes)
        if count:
            each = passes * self._local(rule.in_bytes[0], needs[0]) // count
            time_ps = count * self.mesh_costs.kernel_ps(-(-flops // count), each, kind, dtype)
        else:
            time_ps = self.mesh_costs.kernel_ps(flops, moved, kind, dtype)
        for axis, x in enumerate(axes):
            if x.factor is not None:
                share = math.prod(splits) // sizes[axis]
                time_ps += self._inside_ps(rule, rule.factors[x.factor], gives, axis, share)
        return time_ps

    def _apart(self, rule: Rule, axes: NodeStrategy) -> tuple[int, int]:
        """Return how many kernels and passes replace a call with statistics reduced inside.

        Padding is masked before, in a single kernel that reads and writes.
        """
        most, parts, padded = (0, 0), dict[int, int](), 0
        for size, x in zip(self.mesh_costs.sizes, axes):
            if x.factor is not None and rule.factors[x.factor].kernels:
                parts[x.factor] = parts.get(x.factor, 1) * size
        for number, count in parts.items():
            factor = rule.factors[number]
            most = max(most, (factor.kernels, factor.passes))
            padded |= isinstance(factor.size, int) and factor.size % count > 0
        return most[0] + padded, most[1] + 2 * padded

    def _inside_ps(
        self, rule: Rule, factor: Factor, gives: Placements, axis: int, share: int
    ) -> int:
        """Return the communication time along an axis inside a call that follows a factor."""
        collective = self.mesh_costs.collective_ps
        results = sum(map(self._local, rule.out_bytes, gives))
        _, count = sent_inside(factor, results, self.mesh_costs.sizes[axis], share)
        if not count:
            return 0
        if factor.kind == "stat":
            return count * collective("all_reduce", max(1, factor.comm_bytes // share), axis)
        if factor.reduces and factor.kind != "sum":
            return count * collective("all_reduce", results, axis)
        return count * collective("collective_permute", max(1, factor.comm_bytes // share), axis)

    def _local(self, size_bytes: int, layout: Labels) -> int:
        return shard_bytes(size_bytes, self.mesh_costs.sizes, layout)


def all_layouts(placements: Sequence[Labels], *, partial: Sequence[bool]) -> list[Labels]:
    """Return the placements that are partial only along allowed axes."""
    return [
        layout
        for layout in placements
        if all(x != P or may for x, may in zip(layout, partial, strict=True))
    ]


def pinned(placements: Sequence[Labels], pin: Sequence[int | None]) -> list[Labels]:
    """Return the placements that an annotation allows: its label per axis, None for any."""
    return [
        layout
        for layout in placements
        if all(want is None or x == want for x, want in zip(layout, pin, strict=True))
    ]
