# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fit the measured peak of a step to the bound of ``recompute="auto"``.

The recomputation is chosen before anything is placed, by the declared sharding of activations and
weights; a strategy may leave some of them replicated. The excess that the simulator then measures
is subtracted from the bound of the choice. Where that does not help, activations count as
unsharded; then the policies are tried that recompute much everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tvm import ir

from tvm_distir.core import FULL, SELECTIVE, Plan, System
from tvm_distir.performance import export, simulate
from tvm_distir.support import InfeasibleError
from tvm_distir.transforms import AUTO, Auto, distribute, read_recompute

TRIES = 4
"""The maximum number of bounds that are tried before activations count as unsharded."""

GIB = 2**30
_CLOSE = 1 / 256
"""Bounds that differ by less than this share of the first are not told apart."""

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
        DIST0803 where no choice stays within the bound, by the estimate or by the measure.
    """
    auto, resolved = read_recompute(recompute), System.resolve(system)
    if not isinstance(auto, Auto) or not (auto.memory_gib or resolved):
        step = make(recompute)
        return step, planned(step)
    bound = int(auto.memory_gib * GIB) or (resolved.memory_capacity_bytes if resolved else 0)
    peaks: list[int] = []
    for attempt in _attempts(auto, bound, peaks):
        try:
            step = make(attempt)
        except InfeasibleError:
            if not peaks:
                raise
            continue
        plan = planned(step)
        if measure_peak is not None:
            peaks.append(measure_peak(step, plan))
        else:
            program = export(distribute(step, plan, system=resolved))
            peaks.append(simulate(program, resolved or REFERENCE_SYSTEM).peak_memory_bytes)
        if peaks[-1] <= bound:
            return step, plan
    least = min(peaks)
    raise InfeasibleError(
        "DIST0803",
        f"the step requires {least / GIB:.3g} GiB on a device at least, measured in "
        f"{len(peaks)} choices, and {bound / GIB:.3g} GiB are available",
        place="train_step (recompute)",
        remedy="Give more memory_gib, a strategy that replicates less, or smaller micro-batches.",
    )


def is_auto(recompute: str) -> bool:
    """Return whether the recomputation is chosen by a memory, and so may be measured."""
    return recompute.partition(":")[0].strip() == AUTO


def evenly_cut(recompute: str, devices: int) -> str:
    """Return ``auto`` with activations sharded evenly, where it does not say how."""
    _, colon, rest = recompute.partition(":")
    if not is_auto(recompute) or "activations" in rest:
        return recompute
    return f"{AUTO}:activations={devices}" + (f",{rest}" if colon else "")


def _attempts(auto: Auto, bound: int, peaks: Sequence[int]) -> Iterator[str]:
    """Yield recomputations to try; ``peaks`` are the measured peaks so far."""
    allowed = full = bound
    refused = 0
    for _ in range(TRIES):
        known = len(peaks)
        yield replace(auto, memory_gib=allowed / GIB).text
        if len(peaks) == known:
            refused = allowed
        else:
            full, allowed = allowed, allowed - (peaks[-1] - bound)
        if allowed <= refused:
            allowed = (full + refused) // 2
        if full - refused <= bound * _CLOSE:
            break
    if auto.activations > 1:
        yield replace(auto, memory_gib=bound / GIB, activations=1).text
    yield from (SELECTIVE, FULL)


__all__ = ["evenly_cut", "fitted", "is_auto"]
