# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Queue the candidates by estimate and bound, and prune those that need not be tried."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import NamedTuple

from tvm_distir.core import Clock, work_of_step
from tvm_distir.support import InfeasibleError

from .candidates import ANY, Candidate, Enumeration
from .estimates import SURE, Estimate, Estimator
from .infeasible import contradiction
from .layers import LayerTables
from .result import BOUND, ESTIMATE, CandidateRow
from .trials import Trials
from .uneven_stages import Uneven


class QueuedCandidate(NamedTuple):
    """Candidate in the queue, ordered by its estimate or its bound."""

    order_s: float
    key: str
    least_s: float
    candidate: Candidate
    estimate: Estimate | None

    @property
    def likely_s(self) -> float | None:
        """Return the estimated time, if it is known."""
        return None if self.estimate is None else self.estimate.time_s


class Queue:
    """Candidates in the order of their likely times, or of their bounds.

    Where a space has stages, tables of layers tell what is likely; else bounds are all there is.

    Parameters
    ----------
    trials : Trials
        The trials of the candidates.
    """

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self._tables: LayerTables | None = None
        self._outlooks = Estimator(trials.system, trials.limit)
        self._waiting: list[QueuedCandidate] = []
        self._seen: list[tuple[Candidate, Estimate, Estimate]] = []  # what was likely, what was so

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def fill(self, enumeration: Enumeration) -> None:
        """Add all candidates.

        Raises
        ------
        InfeasibleError
            DIST0802 where there are none.
        """
        candidates, trials = list(enumeration), self.trials
        uneven = enumeration.constraints.stage_devices == ANY and enumeration.stages
        work, clock = work_of_step(trials.source.module(None, "none")), Clock(trials.system)
        if uneven or any(candidate.schedule is not None for candidate in candidates):
            self._tables = LayerTables(trials.source, trials.system)
        for candidate in candidates:
            sizes = candidate.stages, candidate.micro_batches, candidate.chunks
            self._push(candidate, work.least_s(clock, enumeration.devices, *sizes))
        if uneven and self._tables is not None:
            for candidate, outlook in Uneven(
                enumeration, self._tables, self._outlooks
            ).candidates():
                # of the devices' time together, each kernel takes what it takes on one of them
                alone_s = work.least_s(clock, 1, 1, candidate.micro_batches)
                self._wait(candidate, alone_s / enumeration.devices, outlook)
        if not self._waiting:
            said = " and ".join(contradiction(enumeration))
            raise InfeasibleError(
                "DIST0802",
                f"no mesh of {enumeration.devices} devices is possible: {said} exclude all of them",
                place="search",
                remedy="Remove one of these constraints.",
            )

    def pop(self) -> QueuedCandidate:
        """Return the next candidate."""
        return heapq.heappop(self._waiting)

    def saw(self, queued: QueuedCandidate, row: CandidateRow) -> None:
        """Record the outcome of a candidate, which corrects estimates of its kind."""
        if queued.estimate is not None and row.time_s is not None and row.peak_bytes is not None:
            so = Estimate(row.time_s, row.peak_bytes)
            self._seen.append((queued.candidate, queued.estimate, so))

    def with_more_recomputed(self, candidate: Candidate, least_s: float) -> None:
        """Add a candidate that does not fit with the next policy of recomputation."""
        policies = self.trials.constraints.recompute
        number = policies.index(candidate.recompute) + 1
        if self.trials.source.train is not None and number < len(policies):
            self._push(replace(candidate, recompute=policies[number]), least_s)

    def cut(self, queued: QueuedCandidate, worst_s: float) -> CandidateRow | None:
        """Return the row of a candidate that is pruned, with the reason, or None.

        Parameters
        ----------
        queued : QueuedCandidate
        worst_s : float
            The time that a plan must be better than.
        """
        if queued.least_s >= worst_s:
            return CandidateRow(queued.candidate, BOUND, queued.least_s, likely_s=queued.likely_s)
        if queued.estimate is None:
            return None
        kind = _kind(queued.candidate)
        seen = [(x, y) for other, x, y in self._seen if _kind(other) == kind]
        expected = queued.estimate.corrected(seen)
        margin = self.trials.margin * (1 if len(seen) >= SURE else 2)
        if seen and expected.time_s >= (1 + margin) * worst_s:
            return CandidateRow(
                queued.candidate, ESTIMATE, queued.least_s, likely_s=queued.likely_s
            )
        if expected.peak_bytes <= self.trials.limit:
            return None
        self.with_more_recomputed(queued.candidate, queued.least_s)
        kept = f"its layers store about {expected.peak_bytes / 2**30:.2f} GiB"
        return CandidateRow(
            queued.candidate,
            ESTIMATE,
            queued.least_s,
            why=kept,
            likely_s=queued.likely_s,
            needs_bytes=expected.peak_bytes,
        )

    def _push(self, candidate: Candidate, least_s: float) -> None:
        known = self._tables is not None and not candidate.ranks
        table = self._tables.of(candidate) if known and self._tables else None
        outlook = None if table is None else self._outlooks.of(candidate, table)
        self._wait(candidate, least_s, outlook)

    def _wait(self, candidate: Candidate, least_s: float, outlook: Estimate | None) -> None:
        order_s = least_s if outlook is None else outlook.time_s
        heapq.heappush(
            self._waiting, QueuedCandidate(order_s, candidate.key, least_s, candidate, outlook)
        )


def _kind(candidate: Candidate) -> str:
    """Return the kind of a candidate; estimates of a kind err by about as much."""
    return "" if candidate.schedule is None else candidate.schedule.kind
