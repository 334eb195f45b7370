# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fit the measured peak of a step to the bound of ``recompute="auto"``.

The recomputation is chosen before anything is placed, by the declared sharding of activations and
weights; a strategy may leave some of them replicated, or shard more. The excess that the simulator
then measures is subtracted from the bound of the choice, and what it leaves is added. Where that
does not help, activations count as unsharded; then the policies are tried that recompute much
everywhere. Only measured peaks refuse a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tvm import ir

from tvm_distir.core.plan import FULL, NONE, SELECTIVE, Plan
from tvm_distir.hardware import System
from tvm_distir.performance import export, simulate
from tvm_distir.support import InfeasibleError
from tvm_distir.transforms import AUTO, Auto, distribute, read_recompute

TRIES = 4
"""The maximum number of bounds that are tried before activations count as unsharded."""

GIB = 2**30
_CLOSE = 1 / 256
"""Bounds that differ by less than this share of the first are not told apart."""
_LEFT = 1 / 16
"""A smaller share of the bound may be left unused."""
_UNBOUNDED = 1 << 62

REFERENCE_SYSTEM = "a100"
"""System on which memory is measured where none is given: it does not depend on the system."""


def fitted(
    make: Callable[[str | Mapping[str, str]], ir.IRModule],
    planned: Callable[[ir.IRModule], Plan],
    recompute: str | Mapping[str, str],
    system: System | str | None = None,
    *,
    measure_peak: Callable[[ir.IRModule, Plan], int] | None = None,
) -> tuple[ir.IRModule, Plan]:
    """Make a training step, and its plan, whose measured peak stays within the bound of ``auto``.

    Parameters
    ----------
    make : callable
        A function from the recomputation to the step.
    planned : callable
        A function from the step to its plan.
    recompute : str or mapping of str to str
        The recomputation, as :func:`tvm_distir.train_step` takes it; a policy that is not ``auto``
        is applied as it is.
    system : System or str, optional
        The system whose memory is the bound where ``auto`` gives none, and by which the step is
        distributed.
    measure_peak : callable, optional
        A function from a step and its plan to the bytes of its peak. None: the step is distributed,
        exported and simulated.

    Returns
    -------
    step : IRModule
    plan : Plan

    Raises
    ------
    InfeasibleError
        DIST0803 where no measured choice stays within the bound.
    """
    auto, resolved = read_recompute(recompute), System.resolve(system)
    if not isinstance(auto, Auto) or not (auto.memory_gib or resolved):
        step = make(recompute)
        return step, planned(step)

    def simulated_peak(step: ir.IRModule, plan: Plan) -> int:
        program = export(distribute(step, plan, system=resolved))
        return simulate(program, resolved or REFERENCE_SYSTEM).peak_memory_bytes

    bound = int(auto.memory_gib * GIB) or (resolved.memory_capacity_bytes if resolved else 0)
    choices = _Choices(make, planned, measure_peak or simulated_peak, bound)
    best = choices.fastest(auto)
    replicated = replace(auto, memory_gib=bound / GIB, activations=1).text
    rest = [*([replicated] if auto.activations > 1 else []), SELECTIVE, FULL]
    for attempt in rest if best is None else ():
        if attempt in choices.peaks:
            continue
        try:
            best = choices.measured(attempt)
        except InfeasibleError:  # by an estimate that does not know the plan
            continue
        if best.peak_bytes <= bound:
            break
    if best is not None and best.peak_bytes <= bound:
        return best.step, best.plan
    least = min(choices.peaks.values())
    error = InfeasibleError(
        "DIST0803",
        f"the step requires {least / GIB:,.4g} GiB on a device at least, measured in "
        f"{len(choices.peaks)} choices, and {bound / GIB:.3g} GiB are available",
        location="train_step (recompute)",
        remedy="Use more devices, a strategy that replicates less, or smaller micro-batches.",
    )
    error.least_bytes = least
    raise error


class _Choice(NamedTuple):
    """A step with a recomputation, its plan, and the measured bytes of its peak."""

    step: ir.IRModule
    plan: Plan
    peak_bytes: int


@dataclass(eq=False)
class _Choices:
    """Recomputations of a step that are measured; ``peaks`` has the bytes of each."""

    make: Callable[[str | Mapping[str, str]], ir.IRModule]
    planned: Callable[[ir.IRModule], Plan]
    measure_peak: Callable[[ir.IRModule, Plan], int]
    bound: int
    peaks: dict[str, int] = field(default_factory=dict)

    def measured(self, recompute: str) -> _Choice:
        """Make a step and measure its peak (InfeasibleError where an estimate refuses)."""
        step = self.make(recompute)
        plan = self.planned(step)
        self.peaks[recompute] = self.measure_peak(step, plan)
        return _Choice(step, plan, self.peaks[recompute])

    def fastest(self, auto: Auto) -> _Choice | None:
        """Return the choice by the largest bound of the estimate whose peak fits, None without one.

        The estimate does not know the plan. What the measured peak leaves of the bound, or exceeds
        it by, is added to the bound of the estimate, or taken off. Where the estimate refuses
        first, but full recomputation fits, it counts weights as sharded like activations.
        """
        best: _Choice | None = None
        allowed, low, high = self.bound, 0, _UNBOUNDED
        for _ in range(TRIES):
            try:
                choice = self.measured(replace(auto, memory_gib=allowed / GIB).text)
            except InfeasibleError as error:
                low = max(low, allowed)
                if not self.peaks:
                    best = self.measured(FULL)
                    if best.peak_bytes > self.bound:
                        return None
                if best is not None and auto.weights < auto.activations:  # as the plan may do
                    auto = replace(auto, weights=auto.activations)
                    allowed, low, high = self.bound, 0, _UNBOUNDED
                elif best is not None and high == _UNBOUNDED:
                    allowed = error.least_bytes + self.bound - best.peak_bytes
            else:
                left = self.bound - choice.peak_bytes
                if left >= 0:
                    if best is not None and choice.plan.recompute == best.plan.recompute:
                        break
                    best, low = choice, max(low, allowed)
                    if left < self.bound * _LEFT or set(choice.plan.recompute.values()) <= {NONE}:
                        break
                else:
                    high = min(high, allowed)
                allowed += left
            if not low < allowed < high:
                allowed = (low + high) // 2
            if high - low <= self.bound * _CLOSE:
                break
        return best


def is_auto(recompute: str) -> bool:
    """Return whether the recomputation is chosen by a memory, and so may be measured."""
    return recompute.partition(":")[0].strip() == AUTO


def evenly_cut(recompute: str, devices: int) -> str:
    """Return ``auto`` with activations sharded evenly, where it does not say how."""
    _, colon, rest = recompute.partition(":")
    if not is_auto(recompute) or "activations" in rest:
        return recompute
    return f"{AUTO}:activations={devices}" + (f",{rest}" if colon else "")
