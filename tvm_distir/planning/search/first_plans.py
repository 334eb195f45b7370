# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Simulate plans of ZeRO before candidates are tried: the first plans of a search.

No solver is needed for them, so a search has a plan, and a time that candidates must improve on,
within seconds. They are also good: their collectives overlap more than automatic sharding assumes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tvm_distir.core.ir import lift_branches
from tvm_distir.core.propagation import MemoryMeter, propagate
from tvm_distir.support import REFUSALS
from tvm_distir.transforms import is_training_step

from .candidate_row import SOLVED
from .candidates import BATCH, Axes, Candidate, Enumeration
from .found_plan import FoundPlan
from .strategy_maker import StrategyMaker
from .trials import Trials

STRATEGIES = ("zero:stage=3", "zero:stage=1")
"""The strategies, from the least memory to the most."""

ESTIMATE_EXCESS = 1.35
"""Ratio of the estimated memory to the simulated up to which a whole batch is still simulated. The
estimates of Llama 3 8B, GPT-2 and GPT-3 6.7B on 64 devices are 0.86 to 1.22 times the simulated."""

TRIES = 3
"""The maximum number of numbers of micro-batches that are simulated of a strategy; the last is the
largest that the batch allows."""


def first_plans(trials: Trials, enumeration: Enumeration) -> Iterator[FoundPlan]:
    """Yield plans of ZeRO that fit into memory.

    All devices are on the axis of the batch; where they do not divide it, as many as do, and those
    of another axis each work on a part of the sequence.

    The batch is processed in the numbers of micro-batches that constraints name; where they name
    none, at once, or in the first of a few numbers that fits, by estimates and simulations of
    memory. Policies of recomputation are tried in turn until a plan fits. Where there are stages,
    only the first strategy is simulated: the tables of layers have the others. There are no such
    plans where rules are to hold.

    Parameters
    ----------
    trials : Trials
    enumeration : Enumeration
    """
    rules = trials.constraints
    axes = _axes(enumeration)
    if axes is None or rules.keep is not None or not _updates_weights(trials):
        return
    rest = "".join(f"+context_parallel:axis={name}" for name, _ in axes if name != BATCH)
    names = [name + rest for name in STRATEGIES[: 1 if enumeration.in_stages else None]]
    if rules.counts:
        for name, count in itertools.product(names, rules.counts):
            candidate = Candidate(axes, micro_batches=count, recompute=rules.recompute[0])
            plan = _simulated(trials, name, candidate)
            if plan is not None and plan.row.state == SOLVED:
                yield plan
        return
    for policy in rules.recompute if trials.source.train is not None else rules.recompute[:1]:
        start = _start(trials, enumeration, names[0], Candidate(axes, recompute=policy))
        plan = None if start is None else _fitting(trials, enumeration, names[0], start)
        if plan is None:
            continue
        yield plan
        for name in names[1:]:  # they need more memory than the first
            other = _fitting(trials, enumeration, name, plan.row.candidate)
            if other is not None:
                yield other
        return


def _axes(enumeration: Enumeration) -> Axes | None:
    """Return the mesh with the most devices on the axis of the batch that divide it, if any.

    It has at most one other axis, and none where the batch is not known or there are stages.
    """
    batch, axes = enumeration.batch, list[Axes]()
    most = 1 if batch is None or enumeration.in_stages else 2
    for mesh in enumeration.meshes():
        divides = BATCH in mesh and (batch is None or batch % mesh[BATCH] == 0)
        if divides and len(mesh) <= most:
            axes.append(tuple(mesh.items()))
    return max(axes, key=lambda names: dict(names)[BATCH], default=None)


def _updates_weights(trials: Trials) -> bool:
    """Return whether the module updates weights."""
    return trials.source.train is not None or is_training_step(trials.source.module(None, "none"))


def _start(
    trials: Trials, enumeration: Enumeration, name: str, full: Candidate
) -> Candidate | None:
    """Return the first number of micro-batches to simulate; None where no number can fit.

    Parameters
    ----------
    trials : Trials
    enumeration : Enumeration
    name : str
        The strategy by whose memory the number is estimated.
    full : Candidate
        The batch at once.
    """
    if enumeration.with_more_micro_batches(full, 1.0) is None:
        return full
    try:
        params, peak = _estimated_bytes(trials, name, full)
    except REFUSALS:  # the strategy is not for this model, or not for so many devices
        return None
    if params > trials.limit:
        return None
    excess = peak / (ESTIMATE_EXCESS * trials.limit)
    return full if excess <= 1 else enumeration.with_more_micro_batches(full, excess)


def _fitting(
    trials: Trials, enumeration: Enumeration, name: str, start: Candidate
) -> FoundPlan | None:
    """Return a strategy's plan in a number of micro-batches that fits; None where none is known.

    Parameters
    ----------
    trials : Trials
    enumeration : Enumeration
    name : str
        The strategy.
    start : Candidate
        The first number of micro-batches to simulate.
    """
    chosen: Candidate | None = start
    for attempt in range(TRIES):
        plan = None if chosen is None else _simulated(trials, name, chosen)
        if chosen is None or plan is None or plan.row.state == SOLVED:
            return plan
        assert plan.row.peak_bytes is not None
        excess = plan.row.peak_bytes / trials.limit
        if attempt == TRIES - 2 and enumeration.batch is not None:
            samples = enumeration.batch // dict(chosen.axes)[BATCH]
            excess = samples / chosen.micro_batches
        chosen = enumeration.with_more_micro_batches(chosen, excess)
    return None


def _simulated(trials: Trials, name: str, candidate: Candidate) -> FoundPlan | None:
    """Return the simulated plan of a strategy; None where the strategy refuses the model."""
    maker = StrategyMaker(name, None if candidate.schedule is None else candidate.micro_batches)
    try:
        return trials.simulated_strategy(name, maker, dict(candidate.axes), candidate.recompute)
    except REFUSALS:  # it is not for this model, or not for so many devices
        return None


def _estimated_bytes(trials: Trials, name: str, candidate: Candidate) -> tuple[int, int]:
    """Return the bytes of a device's parameters, and an estimate of its peak memory.

    The placements are those of the strategy; nothing is distributed, and nothing simulated.

    Raises
    ------
    DistIRError
        What the strategy raises.
    """
    module = trials.source.module(candidate.schedule, candidate.recompute)
    plan = StrategyMaker(name)(module, dict(candidate.axes), trials.system)
    annotated = trials.study(module, plan, updates=False).distribute(until="annotate")
    memory = MemoryMeter(propagate(lift_branches(annotated))).kept()
    return memory.param_bytes, memory.peak_bytes
