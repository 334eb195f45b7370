# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the result of a search: plans by simulated time, and all other candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm_distir.planning.error_band import ErrorBand, StepKind
from tvm_distir.support import DataTable, Displayed

from .bands import level_count, plan_band
from .candidate_row import SOLVED, CandidateRow
from .found_plan import FoundPlan, PlanGroup
from .min_marginals import MinMarginal
from .search_display import (
    candidate_table,
    draw_search,
    placement_table,
    plan_table,
    search_headline,
)


@dataclass(frozen=True)
class SearchResult(Displayed):
    """Outcome of a search.

    Attributes
    ----------
    plans : tuple of FoundPlan
        The fastest first.
    rows : tuple of CandidateRow
        Everything that was enumerated.
    excluded : mapping of str to int
        Meshes that were not enumerated, by what excluded them.
    baseline : CandidateRow, optional
        The row with which the plans are compared.
    complete : bool
        Whether the search came to its end.
    interrupted : bool
        Whether it was stopped by Ctrl-C.
    why : tuple of MinMarginal
        The min-marginals of the best plan's weights, where they were requested.
    price_per_s_usd : float, optional
        Dollars for a second of all devices, where the system states a price.
    kind : StepKind, optional
        What measured steps must have in common with the step but for the family of its plan.
    weights : str
        The type of quantized weights in words; empty where they are not quantized.
    groups : tuple of PlanGroup
        The plans of a training step by what they do, the fastest first, with others that are one
        with these for a trainer; empty: each plan is alone.
    stack : str
        The stack whose trainer has the plans; empty where they are of any placements.
    beyond : FoundPlan, optional
        The plan of the search among all placements, timed by the stack, and why the trainer does
        not have it (``row.why``).
    """

    plans: tuple[FoundPlan, ...]
    rows: tuple[CandidateRow, ...]
    excluded: Mapping[str, int] = field(default_factory=dict)
    baseline: CandidateRow | None = None
    complete: bool = True
    interrupted: bool = False
    why: tuple[MinMarginal, ...] = ()
    price_per_s_usd: float | None = None
    kind: StepKind | None = None
    weights: str = ""
    groups: tuple[PlanGroup, ...] = ()
    stack: str = ""
    beyond: FoundPlan | None = None

    def band(self, row: CandidateRow) -> ErrorBand | None:
        """Return the error band of a simulated row; None where the kind of step is unknown."""
        if self.kind is None or row.time_s is None:
            return None
        return plan_band(self.kind, row.candidate, row.parts)

    @property
    def level(self) -> int:
        """Return how many plans, the fastest first, have bands that overlap with the first's."""
        bands = [(self.band(plan.row), plan.time_s) for plan in self.plans]
        return level_count([(band, time_s) for band, time_s in bands if band is not None])

    @property
    def shown(self) -> tuple[PlanGroup, ...]:
        """Return the rows of the table."""
        return self.groups or tuple(PlanGroup("", (plan,)) for plan in self.plans)

    @property
    def space(self) -> dict[str, int]:
        """Return the number of candidates by outcome."""
        result = dict(self.excluded)
        for row in self.rows:
            result[row.state] = result.get(row.state, 0) + 1
        return result

    @property
    def front(self) -> tuple[CandidateRow, ...]:
        """Return the solved rows of which no other is faster and smaller, the fastest first."""
        solved = [row for row in self.rows if row.state == SOLVED]
        solved.sort(key=lambda row: (row.time_s, row.peak_bytes, row.candidate.key))
        result: list[CandidateRow] = []
        for row in solved:
            if not result or row.peak_bytes < result[-1].peak_bytes:  # type: ignore[operator]
                result.append(row)
        return tuple(result)

    @property
    def least_s(self) -> float:
        """Return a lower bound on the time of all plans of the space."""
        return min((row.least_s for row in self.rows), default=0.0)

    @property
    def above_bound(self) -> dict[str, float]:
        """Return the parts of what the fastest plan exceeds :attr:`least_s` by, in seconds."""
        return self.plans[0].row.above(self.least_s) if self.plans else {}

    _headline = search_headline
    _draw = draw_search

    def _tables(self) -> list[DataTable]:
        return [plan_table(self), placement_table(self)]

    def to_pandas(self) -> Any:
        """Return a row per candidate as a ``pandas.DataFrame`` (DIST0111 without pandas)."""
        return candidate_table(self).to_pandas()

    def to_text(self) -> str:
        """Return the tables that ``tvm-distir search`` prints."""
        plans = [line[2:] for line in plan_table(self).to_lines()[1:]]
        reasons = ["", *placement_table(self).to_lines()] if self.why else []
        return "\n".join([*plans, "", self._headline(), *reasons]) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Give the content of ``search.json``."""
        return {
            "schema_version": 1,
            "plans": [
                {
                    **plan.row.to_dict(),
                    **({"also": list(plan.also)} if plan.also else {}),
                    **(
                        {}
                        if self.price_per_s_usd is None
                        else {"cost_per_step_usd": plan.time_s * self.price_per_s_usd}
                    ),
                    **(
                        {"band": band.to_dict(plan.time_s)}
                        if (band := self.band(plan.row)) is not None
                        else {}
                    ),
                }
                for plan in self.plans
            ],
            **(
                {"groups": [group.to_dict(self.plans) for group in self.groups]}
                if self.groups
                else {}
            ),
            **({"stack": self.stack} if self.stack else {}),
            **({} if self.beyond is None else {"beyond": self.beyond.row.to_dict()}),
            "level": self.level,
            "front": [row.candidate.key for row in self.front],
            "space": self.space,
            "complete": self.complete,
            **({"weights": self.weights} if self.weights else {}),
            **({"least_s": self.least_s, "above_bound": self.above_bound} if self.plans else {}),
            **({"why": [reason.to_dict() for reason in self.why]} if self.why else {}),
            **({} if self.baseline is None else {"baseline": self.baseline.to_dict()}),
            "rows": [row.to_dict() for row in self.rows],
        }
