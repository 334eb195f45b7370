# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check the lists of a schedule: pipeline actions, and stages whose stashes are offloaded."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_distir.support import PlanError

from .pipeline_actions import BACKWARD, FORWARD, PHASES, WEIGHT, PipelineAction, stages_of
from .timeline import Times, timeline

Units = Sequence[Sequence[PipelineAction]]
"""The actions of each rank, in order."""


def unfit(problem: str, remedy: str, location: str = "schedule") -> PlanError:
    """Return the error about a schedule."""
    return PlanError("DIST0236", problem, location=location, remedy=remedy)


def check_units(units: Units, rank_of: Sequence[int], micro_batches: int, ranks: int) -> None:
    """Refuse a list that does not run every phase of every stage and micro-batch once."""
    stages = stages_of(rank_of)
    if len(units) != ranks or set(rank_of) != set(range(ranks)):
        raise unfit(
            f"{len(units)} lists of units and stages on the ranks {sorted(set(rank_of))} do not "
            f"match {ranks} ranks",
            "Give a list, and stages, for each rank.",
        )
    split = any(unit.phase == WEIGHT for order in units for unit in order)
    phases = PHASES if split else (FORWARD, BACKWARD)
    for rank, order in enumerate(units):
        expected = {
            PipelineAction(phase, micro, chunk)
            for r, chunk in stages
            if r == rank
            for phase in phases
            for micro in range(micro_batches)
        }
        seen: set[PipelineAction] = set()
        for unit in order:
            if unit in seen or unit not in expected:
                fault = "occurs twice" if unit in seen else "does not belong to this rank"
                remedy = "Run every phase of every micro-batch once."
                raise unfit(f"the unit {list(unit)} {fault}", remedy, f"schedule/units/{rank}")
            seen.add(unit)
        if missing := sorted(expected - seen):
            problem = f"{len(missing)} units are missing, the first is {list(missing[0])}"
            remedy = "Run every phase of every micro-batch once."
            raise unfit(problem, remedy, f"schedule/units/{rank}")
    orders = [list(order) for order in units]
    ran = timeline(orders, rank_of, Times())
    if len(ran) < sum(map(len, orders)):
        done = {(entry.rank, entry.unit) for entry in ran}
        rank, unit = next(
            (r, u) for r, order in enumerate(units) for u in order if (r, u) not in done
        )
        problem = f"the unit {list(unit)} waits for a unit that waits for it"
        remedy = "Order units such that each follows the units that it depends on."
        raise unfit(problem, remedy, f"schedule/units/{rank}")


def check_offload(stages: Sequence[int], count: int) -> None:
    """Refuse stages whose stashes cannot go to the host: unknown, or not in rising order."""
    if list(stages) != sorted(set(stages)) or not set(stages) <= set(range(count)):
        problem = f"offload is {list(stages)}, and the stages are 0 to {count - 1}"
        raise unfit(problem, "List stages once each, in rising order.", "schedule/offload")
