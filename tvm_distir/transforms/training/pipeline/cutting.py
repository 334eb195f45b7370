# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Split a forward model into stages of even work at narrow points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir, relax
from tvm.relax import Binding, Expr, Var

from tvm_distir.core.ops import work_of
from tvm_distir.core.rewriting import all_bindings, variables
from tvm_distir.support import (
    ModelError,
    PropagationError,
    Steps,
    memoized_steps,
    nearest,
    unrolled,
)
from tvm_distir.transforms.training.autodiff.function_table import NamedFunctions
from tvm_distir.transforms.training.autodiff.reverse import is_float
from tvm_distir.transforms.training.autodiff.saved_values import kept_bytes
from tvm_distir.transforms.training.recompute.times import ValueTimes

from .split_loss import BatchSum

SLACK = 1.05
"""Permitted cost of the slowest stage relative to even stages, to send less data."""


@dataclass(frozen=True)
class Flat:
    """Forward model with its loss, and the values that stages need.

    Attributes
    ----------
    params : tuple of Var
    weights : set of Var
        The parameters that are not data.
    bindings : tuple of Binding
        The bindings, in order.
    loss : Var
    stream : Var or None
        The parameter that is the first of a micro-batch's streams of random numbers.
    statistics : mapping of Var to Var
        New running statistics to the parameters that they take the place of.
    sums : mapping of Var to BatchSum
        Sums over the whole batch that the loss reads.
    share : float
        The factor of the sum of all micro-batches' losses.
    """

    params: tuple[Var, ...]
    weights: frozenset[Var]
    bindings: tuple[Binding, ...]
    loss: Var
    stream: Var | None = None
    statistics: Mapping[Var, Var] = field(default_factory=dict)
    sums: Mapping[Var, BatchSum] = field(default_factory=dict)
    share: float = 1.0

    @cached_property
    def anywhere(self) -> set[Var]:
        """Return the variables that depend only on data and constants, computed in each stage."""
        result: set[Any] = set()
        free = {*self.params, *self.sums} - self.weights
        for binding in self.bindings:
            if all(v in free or v in result for v in variables(binding.value)):
                result.add(binding.var)
        return result

    @cached_property
    def live(self) -> list[list[Any]]:
        """Return, per binding, the variables that it and later ones read, without parameters.

        What :attr:`anywhere` has is left out.
        """
        bound = {b.var for b in self.bindings} - self.anywhere
        now: dict[Var, None] = {}
        result: list[list[Any]] = []
        for binding in reversed(self.bindings):
            result.append(list(now))
            now.pop(binding.var, None)
            if binding.var in bound:
                now.update(dict.fromkeys(v for v in variables(binding.value) if v in bound))
        return result[::-1]


def split_stages(
    flat: Flat, functions: NamedFunctions, stages: int, names: Sequence[str]
) -> list[int]:
    """Return the number of the last binding of each stage.

    Parameters
    ----------
    flat : Flat
    functions : NamedFunctions
        The functions of the model.
    stages : int
    names : sequence of str
        The names of the values that end a stage, except for the last stage; if there are none, the
        stages are chosen such that the most expensive stage takes little more work than it must,
        few bytes pass, and stages are equal.

    Raises
    ------
    ModelError
        DIST0354 there are fewer values to cut at than asked for, or a named one is none.
    """
    good = [
        all(is_float(v.ty) for v in alive) and any(int(v.ty.ndim) for v in alive if is_float(v.ty))
        for alive in flat.live
    ]
    ends = _named(flat, good, names) if names else _even(flat, functions, stages, good)
    return [*ends, len(flat.bindings) - 1]


def _named(flat: Flat, good: Sequence[bool], names: Sequence[str]) -> list[int]:
    at = {str(b.var.name): i for i, b in enumerate(flat.bindings)}
    ends = []
    for name in names:
        if name not in at or not good[at[name]]:
            known = [str(b.var.name) for b, fit in zip(flat.bindings, good, strict=True) if fit]
            raise ModelError(
                "DIST0354",
                f'"{name}" cannot end a stage: there is no such value, or not only floats are '
                "passed there",
                location="schedule/cuts",
                remedy=nearest(name, known),
            )
        ends.append(at[name])
    if ends != sorted(set(ends)):
        problem = "the cuts are not in the order of main"
        remedy = "Name each cut once, in order."
        raise ModelError("DIST0354", problem, location="schedule/cuts", remedy=remedy)
    return ends


def _even(flat: Flat, functions: NamedFunctions, stages: int, good: Sequence[bool]) -> list[int]:
    """Return the last binding of each stage but the last, by even work."""
    work = _Work(functions)
    costs = [work.of(b.value) for b in flat.bindings]
    positions = [i for i in range(len(costs) - 1) if good[i]]
    if len(positions) < stages - 1:
        cuts, needed = len(positions), stages - 1
        problem = f"the model can be split at {cuts} places, {stages} stages require {needed}"
        raise ModelError(
            "DIST0354", problem, location="schedule/stages", remedy="Use fewer stages."
        )
    before = np.concatenate([[0.0], np.cumsum(np.array(costs, float))])
    edges = [-1, *positions, len(costs) - 1]
    start = before[[e + 1 for e in edges]]
    between = start[None, :] - start[:, None]
    between[np.tril_indices(len(edges))] = np.inf
    bound = max(_fewest(between, stages, np.maximum)[0], 1.0)
    sent = [0.0, *(float(kept_bytes(flat.live[i])) for i in positions), 0.0]
    least = min([n for n in sent if n], default=1.0)
    balanced = (between / bound) ** 2 + np.array(sent)[None, :] / least
    _, ends = _fewest(np.where(between <= bound * SLACK, balanced, np.inf), stages, np.add)
    return [edges[e] for e in ends]


def _fewest(cost: npt.NDArray[np.float64], parts: int, joined: Any) -> tuple[float, list[int]]:
    """Return the cheapest path with a given number of steps, as the ends of the steps."""
    count = len(cost)
    best = cost[0]
    came: list[npt.NDArray[np.intp]] = []
    for _ in range(parts - 1):
        costs_of_splits = joined(best[:, None], cost)
        came.append(np.argmin(costs_of_splits, axis=0))
        best = costs_of_splits[came[-1], np.arange(count)]
    ends, at = [], count - 1
    for arrived in reversed(came):
        at = int(arrived[at])
        ends.append(at)
    return float(best[-1]), ends[::-1]


class _Work:
    """FLOPs of values, including those of called functions."""

    def __init__(self, functions: NamedFunctions) -> None:
        self.functions, self.kernels = functions, ValueTimes(functions, None).kernels

    def of(self, value: Expr) -> int:
        """Return the FLOPs of a bound value; a view has none."""
        return unrolled(self._value(value))

    def _value(self, value: Expr) -> Steps[int]:
        if not isinstance(value, ir.Call):
            return 0
        if isinstance(value.op, ir.GlobalVar):
            flops: int = yield self._function(str(value.op.name_hint))
            return flops
        try:
            return work_of(value, self.kernels, value.ty).flops
        except PropagationError:  # an op without a rule: it counts as one operation
            return 1

    @memoized_steps
    def _function(self, name: str) -> Steps[int]:
        fn, total = self.functions.of[name], 0
        for binding in all_bindings(fn.body) if isinstance(fn, relax.Function) else ():
            total += yield self._value(binding.value)
        return total
