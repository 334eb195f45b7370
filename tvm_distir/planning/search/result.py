# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the result of a search: plans by simulated time, and all other candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tvm_distir.core.plan import Plan
from tvm_distir.performance import Result
from tvm_distir.planning.error_band import ErrorBand, StepKind
from tvm_distir.support import DataTable, Displayed

from .bands import level_count, plan_band
from .candidates import Candidate
from .min_marginals import MinMarginal
from .search_display import (
    candidate_table,
    draw_search,
    placement_table,
    plan_table,
    search_headline,
)

SOLVED, MEMORY, BOUND, REFUSED, LEFT = "solved", "memory", "bound", "refused", "left"
"""The states of a candidate: it has a plan; nothing fits; it cannot be better; the model cannot be
sharded so; the time was up."""

ESTIMATE = "estimate"
"""A further state: by the time and memory of its layers it is far from good, or far from
fitting."""


@dataclass(frozen=True)
class CandidateRow:
    """Row of a candidate: its state and numbers.

    Attributes
    ----------
    candidate : Candidate
    state : str
    least_s : float
        No plan of the candidate takes less.
    price_s : float, optional
        The cost of the chosen placements, with all communication that counts in sequence with the
        work.
    gap : float, optional
        The maximum excess of the cost over the minimum, as a share of it.
    time_s : float, optional
        The simulated time of the plan.
    peak_bytes : int, optional
        The simulated peak memory of the plan.
    why : str
        The reason why there is no plan.
    likely_s : float, optional
        The time expected of its layers, before auto-sharding.
    needs_bytes : int, optional
        The least bytes that a device must store where the candidate does not fit, as is proved of
        its placements; or the likely bytes, by its layers.
    whole_bytes : int, optional
        The bytes that the devices of a mesh of any shape must store together where the candidate
        does not fit, less what fused kernels do not store.
    hidden : float
        Share of what can be sent beside the work that its labels take to be hidden.
    parts : str
        Into how many parts the plan divides data, weights and states
        (:func:`.divided_parts.parts_text`).
    compute_s, exposed_comm_s : float, optional
        The parts of ``time_s`` on the device with most of both: work, and communication that does
        not overlap with work. In the rest of the step the device waits.
    bounded_s : float, optional
        The part of ``compute_s`` in kernels that ``least_s`` counts: matrix products, convolutions
        and attention where the kernel profile fuses others, else all.
    """

    candidate: Candidate
    state: str
    least_s: float
    price_s: float | None = None
    gap: float | None = None
    time_s: float | None = None
    peak_bytes: int | None = None
    why: str = ""
    likely_s: float | None = None
    needs_bytes: int | None = None
    whole_bytes: int | None = None
    hidden: float = 0.0
    parts: str = ""
    compute_s: float | None = None
    exposed_comm_s: float | None = None
    bounded_s: float | None = None

    @property
    def shares(self) -> tuple[float | None, float | None]:
        """Return the shares of computing and of exposed communication in the step."""
        total_s = self.time_s or 1.0
        compute, comm = self.compute_s, self.exposed_comm_s
        return (
            None if compute is None else compute / total_s,
            None if comm is None else comm / total_s,
        )

    def above(self, least_s: float) -> dict[str, float]:
        """Return the parts of what the simulated time exceeds a lower bound by, in seconds.

        ``kernels_s`` is the excess of the kernels that the bound counts, with the time in which the
        device waits; there are none where the time of these is not known.
        """
        total_s, work_s, comm_s = self.time_s, self.compute_s, self.exposed_comm_s
        if total_s is None or work_s is None or comm_s is None or self.bounded_s is None:
            return {}
        other_s = work_s - self.bounded_s
        kernels_s = total_s - comm_s - other_s - least_s
        return {"kernels_s": kernels_s, "other_kernels_s": other_s, "communication_s": comm_s}

    def simulated(self, result: Result, limit_bytes: int, only_products: bool) -> CandidateRow:
        """Return the row with the simulated numbers, solved where it fits into device memory.

        ``only_products``: the bound counts matrix products, convolutions and attention alone.
        """
        pairs = zip(result.devices.distinct, result.lanes, strict=True)
        busiest, lane = max(pairs, key=lambda pair: pair[0].compute_s + pair[0].exposed_comm_s)
        return replace(
            self,
            state=SOLVED if result.peak_memory_bytes <= limit_bytes else MEMORY,
            time_s=result.time_s,
            peak_bytes=result.peak_memory_bytes,
            compute_s=busiest.compute_s,
            exposed_comm_s=busiest.exposed_comm_s,
            bounded_s=lane.products_s if only_products else busiest.compute_s,
        )

    def to_dict(self) -> dict[str, Any]:
        """Give the fields by name, the candidate by its parts."""
        candidate = self.candidate
        return {
            "key": candidate.key,
            "mesh": dict(candidate.axes),
            **({"meshes": [dict(axes) for axes in candidate.ranks]} if candidate.ranks else {}),
            **({"cuts": list(candidate.cuts)} if candidate.cuts else {}),
            "stages": candidate.stages,
            "micro_batches": candidate.micro_batches,
            "chunks": candidate.chunks,
            "recompute": candidate.recompute,
            **{k: v for k, v in self.__dict__.items() if k != "candidate" and v not in (None, "")},
        }


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
