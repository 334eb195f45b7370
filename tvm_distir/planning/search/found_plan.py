# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the plans that a search finds, and the groups that are one plan for a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm_distir.core.plan import Plan
from tvm_distir.performance import Result

from .candidate_row import CandidateRow


@dataclass(frozen=True)
class FoundPlan:
    """Plan that is a result of a search.

    Attributes
    ----------
    row : CandidateRow
    plan : Plan
        Complete: ``analyze --plan``, ``verify --plan`` and ``deploy --plan`` take it.
    simulated : Result, optional
        None where it was taken from a search before, or made by a worker.
    also : tuple of str
        The names of candidates whose plans are the same program with other names of axes.
    """

    row: CandidateRow
    plan: Plan
    simulated: Result | None = None
    also: tuple[str, ...] = ()

    def is_same(self, other: FoundPlan) -> bool:
        """Return whether another plan is the same program with other names of axes.

        Programs with the same times of all work and communication, to the picosecond, and the same
        memory, to the byte, that divide everything into equally many parts, are taken to be.
        """
        source, target = self.row, other.row
        numbers = [
            (row.time_s, row.peak_bytes, row.compute_s, row.exposed_comm_s, row.parts, row.why)
            for row in (source, target)
        ]
        choices = [replace(row.candidate, axes=()) for row in (source, target)]
        return bool(source.parts) and numbers[0] == numbers[1] and choices[0] == choices[1]

    @property
    def time_s(self) -> float:
        """Return the simulated time."""
        assert self.row.time_s is not None
        return self.row.time_s


@dataclass(frozen=True)
class PlanGroup:
    """Plans that are one for a trainer, whose options state kinds of parallelism and degrees.

    Attributes
    ----------
    name : str
        The kinds and degrees (:func:`.parallelism.parallelism_text`); empty where they are not
        known, and then the plan is alone.
    plans : tuple of FoundPlan
        The fastest first.
    """

    name: str
    plans: tuple[FoundPlan, ...]

    @property
    def first(self) -> FoundPlan:
        """Return the fastest plan."""
        return self.plans[0]

    @property
    def of_trainers(self) -> FoundPlan | None:
        """Return the plan of a strategy, as trainers have it, where a faster one is none."""
        known = (plan for plan in self.plans if plan.row.why)
        return None if self.first.row.why else next(known, None)

    @property
    def gain(self) -> float:
        """Return the share of the time by which placements improve on the plan of trainers."""
        known = self.of_trainers
        return 0.0 if known is None else 1 - self.first.time_s / known.time_s

    def to_dict(self, plans: Sequence[FoundPlan]) -> dict[str, Any]:
        """Give the name, the plans by their numbers among those of a result, and the gain."""
        return {
            "parallelism": self.name,
            "plans": [
                {
                    **({"number": plans.index(plan) + 1} if plan in plans else {}),
                    "key": plan.row.candidate.key, "why": plan.row.why, "time_s": plan.time_s,
                }
                for plan in self.plans
            ],
            **({"gain": self.gain} if self.of_trainers is not None else {}),
        }  # fmt: skip
