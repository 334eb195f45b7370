# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Enumerates the joint strategies of a node over all axes of a mesh, with their costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_distir.core.ir.placement import Labels, P, R
from tvm_distir.core.ops.factor import Factor, Rule
from tvm_distir.core.ops.kernels import VIEWS
from tvm_distir.core.propagation.solve.cost import sent_inside
from tvm_distir.core.propagation.solve.strategies import OpStrategy, factor_fits

from .costs import MeshPrices, shard_bytes

Costs = npt.NDArray[np.int64]


class CallStrategy(NamedTuple):
    """A strategy of a call: an alternative per axis."""

    axes: tuple[OpStrategy, ...]

    def needs(self, operand: int) -> Labels:
        """Return the placement in which an operand is needed."""
        return tuple([x.needs[operand] for x in self.axes])

    def gives(self, result: int) -> Labels:
        """Return the placement in which a result is produced."""
        return tuple([x.gives[result] for x in self.axes])


class CallStrategies:
    """Numbered states of a node, shared by all equal nodes."""

    def __init__(self, items: Sequence[CallStrategy], costs: Costs | None = None) -> None:
        self.items = tuple(items)
        self.costs = np.zeros(len(self.items), np.int64) if costs is None else costs
        self._needs: dict[int, tuple[Labels, ...]] = {}
        self._gives: dict[int, tuple[Labels, ...]] = {}

    def needs(self, operand: int) -> tuple[Labels, ...]:
        """Return per state the placement in which an operand is needed."""
        if operand not in self._needs:
            self._needs[operand] = tuple([x.needs(operand) for x in self.items])
        return self._needs[operand]

    def gives(self, result: int) -> tuple[Labels, ...]:
        """Return per state the placement in which a result is produced."""
        if result not in self._gives:
            self._gives[result] = tuple([x.gives(result) for x in self.items])
        return self._gives[result]


def producers(forms: Sequence[Labels]) -> CallStrategies:
    """Return the states of a node that produces a value: a parameter."""
    return CallStrategies(
        [CallStrategy(tuple([OpStrategy((), (x,), None) for x in form])) for form in forms]
    )


def consumers(forms: Sequence[Labels]) -> CallStrategies:
    """Return the states of a node that consumes a value: a result."""
    return CallStrategies(
        [CallStrategy(tuple([OpStrategy((x,), (), None) for x in form])) for form in forms]
    )


def passing(forms: Sequence[Labels]) -> CallStrategies:
    """Return the states of a node that passes a value on unchanged: an annotation."""
    return CallStrategies(
        [CallStrategy(tuple([OpStrategy((x,), (x,), None) for x in form])) for form in forms]
    )


class OpStates:
    """States of op calls with the time of each, computed once for equal calls.

    Parameters
    ----------
    prices : MeshPrices
    """

    def __init__(self, prices: MeshPrices) -> None:
        self.prices = prices
        self._known: dict[Any, CallStrategies] = {}
        self._rules: list[Rule] = []  # kept alive, so that their ids stay unique

    def of(
        self,
        rule: Rule,
        dtype: str,
        shapes: tuple[tuple[int, ...], ...],
        partial: tuple[int, ...],
        free: bool,
    ) -> CallStrategies:
        """Return the states of a call.

        Parameters
        ----------
        rule : Rule
        dtype : str
            Of the arithmetic.
        shapes : tuple of tuple of int
            Of the operands and results.
        partial : tuple of int
            Per axis, bit i: operand i may be a partial sum.
        free : bool
            The call costs no work (a transpose that products read in place).
        """
        key = (id(rule), dtype, shapes, partial, free)
        strategies = self._known.get(key)
        if strategies is None:
            self._rules.append(rule)
            items = [CallStrategy(axes) for axes in self._joint(rule, shapes, partial)]
            costs = [0 if free else self._time_ps(rule, state, dtype) for state in items]
            strategies = self._known[key] = CallStrategies(items, np.array(costs, np.int64))
        return strategies

    def _options(self, rule: Rule, partial: int) -> list[OpStrategy]:
        """Return the alternatives along an axis, whatever the sizes."""
        whole, complete = (R,) * len(rule.in_bytes), (R,) * len(rule.out_bytes)
        options = []
        for i, f in enumerate(rule.factors):
            pending = P if f.kind == "sum" else R
            needs = tuple([R if d is None else d for d in f.ins])
            gives = tuple([pending if d is None else d for d in f.outs])
            options.append(OpStrategy(needs, gives, i))
        for group in rule.linear:
            if all(partial >> i & 1 for i in group):
                needs = tuple([P if i in group else R for i in range(len(whole))])
                options.append(OpStrategy(needs, (P,) * len(complete), None))
        options.append(OpStrategy(whole, complete, None))
        return options

    def _joint(
        self, rule: Rule, shapes: tuple[tuple[int, ...], ...], partial: tuple[int, ...]
    ) -> list[tuple[OpStrategy, ...]]:
        """Return all combinations in which every split divides."""
        sizes = self.prices.sizes
        combinations: list[tuple[OpStrategy, ...]] = [()]
        for axis, size in enumerate(sizes):
            options, longer = self._options(rule, partial[axis]), []
            if size == 1:
                options = options[-1:]
            for chosen in combinations:
                taken: dict[int, int] = {}
                for n, x in zip(sizes, chosen):
                    if x.factor is not None:
                        taken[x.factor] = taken.get(x.factor, 1) * n
                for x in options:
                    if x.factor is None or factor_fits(
                        rule.factors[x.factor], size, taken.get(x.factor, 1)
                    ):
                        longer.append((*chosen, x))
            combinations = longer
        count = len(rule.in_bytes)
        return [
            axes
            for axes in combinations
            if all(
                self.prices.divides(shape, CallStrategy(axes).needs(i))
                for i, shape in enumerate(shapes[:count])
            )
            and all(
                self.prices.divides(shape, CallStrategy(axes).gives(j))
                for j, shape in enumerate(shapes[count:])
            )
        ]

    def _time_ps(self, rule: Rule, state: CallStrategy, dtype: str) -> int:
        """Return the time of local work and of communication inside the call."""
        if rule.op in VIEWS:
            return 0
        sizes, work = self.prices.sizes, rule.work
        splits = [n for n, x in zip(sizes, state.axes) if x.factor is not None]
        view = work.kernel_class == "view"
        ins = rule.in_bytes if view else work.in_bytes
        outs = rule.out_bytes if view else work.out_bytes
        moved = sum(
            self._local(b, x) for b, x in zip(ins, map(state.needs, range(len(ins))))
        ) + sum(self._local(b, x) for b, x in zip(outs, map(state.gives, range(len(outs)))))
        kind = "memory" if view else work.kernel_class
        flops = -(-work.flops // math.prod(splits))
        count, passes = self._apart(rule, state)
        if count:
            each = passes * self._local(rule.in_bytes[0], state.needs(0)) // count
            time_ps = count * self.prices.kernel_ps(-(-flops // count), each, kind, dtype)
        else:
            time_ps = self.prices.kernel_ps(flops, moved, kind, dtype)
        for axis, x in enumerate(state.axes):
            if x.factor is not None:
                share = math.prod(splits) // sizes[axis]
                time_ps += self._inside_ps(rule, rule.factors[x.factor], state, axis, share)
        return time_ps

    def _apart(self, rule: Rule, state: CallStrategy) -> tuple[int, int]:
        """Return how many kernels and passes replace a call with statistics reduced inside.

        Padding is masked before, in a single kernel that reads and writes.
        """
        most, parts, padded = (0, 0), dict[int, int](), 0
        for size, x in zip(self.prices.sizes, state.axes):
            if x.factor is not None and rule.factors[x.factor].kernels:
                parts[x.factor] = parts.get(x.factor, 1) * size
        for number, count in parts.items():
            factor = rule.factors[number]
            most = max(most, (factor.kernels, factor.passes))
            padded |= isinstance(factor.size, int) and factor.size % count > 0
        return most[0] + padded, most[1] + 2 * padded

    def _inside_ps(
        self, rule: Rule, factor: Factor, state: CallStrategy, axis: int, share: int
    ) -> int:
        """Return the communication time along an axis inside a call that follows a factor."""
        collective = self.prices.collective_ps
        results = sum(self._local(b, state.gives(j)) for j, b in enumerate(rule.out_bytes))
        _, count = sent_inside(factor, results, self.prices.sizes[axis], share)
        if not count:
            return 0
        if factor.kind == "stat":
            return count * collective("all_reduce", max(1, factor.comm_bytes // share), axis)
        if factor.reduces and factor.kind != "sum":
            return count * collective("all_reduce", results, axis)
        return count * collective("collective_permute", max(1, factor.comm_bytes // share), axis)

    def _local(self, size_bytes: int, form: Labels) -> int:
        return shard_bytes(size_bytes, self.prices.sizes, form)


def all_forms(placements: Sequence[Labels], *, partial: Sequence[bool]) -> list[Labels]:
    """Return the placements that are partial only along allowed axes."""
    return [
        form
        for form in placements
        if all(x != P or may for x, may in zip(form, partial, strict=True))
    ]


def pinned(placements: Sequence[Labels], pin: Sequence[int | None]) -> list[Labels]:
    """Return the placements that an annotation allows: its label per axis, None for any."""
    return [
        form
        for form in placements
        if all(want is None or x == want for x, want in zip(form, pin, strict=True))
    ]
