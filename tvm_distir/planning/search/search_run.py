# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a search: try queued candidates, and keep the fastest plans."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from tvm_distir.core.plan import Plan
from tvm_distir.planning.lighter_weights import kinds_that_may_fit, remedy_of
from tvm_distir.planning.workers import ONE_AT_A_TIME, Lookahead, Workers
from tvm_distir.support import InfeasibleError

from .candidate_row import LEFT, SOLVED, CandidateRow
from .candidates import Candidate, Enumeration
from .folder import Folder
from .found_plan import FoundPlan
from .queue import Queue, QueuedCandidate
from .result import SearchResult
from .trials import Task, Trials

OnProgress = Callable[[Mapping[str, int], "FoundPlan | None"], None]


class SearchRun:
    """State of a search."""

    def __init__(
        self,
        trials: Trials,
        enumeration: Enumeration,
        top: int,
        folder: Folder | None,
        workers: Workers,
        time_limit_s: float | None,
        on_progress: OnProgress | None,
    ) -> None:
        self.trials, self.enumeration = trials, enumeration
        self.top, self.folder = top, folder
        self.queue = Queue(trials, enumeration)
        self.workers = workers
        self.lookahead = Lookahead(workers, try_candidate, trials)
        self.rows: list[CandidateRow] = []
        self.plans: list[FoundPlan] = []
        self.complete, self.interrupted = True, False
        self.on_progress = on_progress or (lambda *_: None)
        self.ends_s = math.inf if time_limit_s is None else time.monotonic() + time_limit_s

    def begin_with(self, known: Iterable[FoundPlan]) -> None:
        """Add plans that candidates must improve on, until the time is up."""
        for plan in known:
            self._keep(plan)
            self._report()
            if self._is_over:
                self.complete = False
                return

    def run(self) -> SearchResult:
        """Try the candidates; one of them also after the time is up, if there is no plan."""
        self.queue.fill(only_list=self._is_over and bool(self.plans))
        is_tried = False
        while self.queue:
            queued = self.queue.pop()
            with ONE_AT_A_TIME:
                row = self.queue.cut(queued, self._worst_s)
            if row is None and self._is_over and (self.plans or is_tried):
                self.complete = False
                row = CandidateRow(queued.candidate, LEFT, queued.least_s)
            if row is not None:
                self.rows.append(row)
                continue
            try:
                row = self._known(queued.candidate) or self._tried(queued)
            except KeyboardInterrupt:
                self.complete, self.interrupted = False, True
                is_tried, self.ends_s = True, -math.inf
                self.rows.append(CandidateRow(queued.candidate, LEFT, queued.least_s))
                continue
            is_tried = True
            self.rows.append(row)
            with ONE_AT_A_TIME:
                self.queue.saw(queued, row, self._worst_s)
            self._report()
        result = self._result()
        if not result.plans and result.complete:
            self._refuse()
        return result

    def _report(self) -> None:
        self.on_progress(self._result().space, self.plans[0] if self.plans else None)

    @property
    def _is_over(self) -> bool:
        """Return whether no further plan or candidate is to be begun."""
        return time.monotonic() > self.ends_s

    @property
    def _worst_s(self) -> float:
        """Return the time that a plan must improve on."""
        return self.plans[self.top - 1].time_s if len(self.plans) >= self.top else math.inf

    def _known(self, candidate: Candidate) -> CandidateRow | None:
        """Return the row and plan of a candidate in an earlier search."""
        if self.folder is None:
            return None
        stored = self.folder.known(candidate)
        if stored is None:
            return None
        row, plan = stored
        if plan is not None:
            self._keep(FoundPlan(row, plan))
        return row

    def _tried(self, queued: QueuedCandidate) -> CandidateRow:
        """Auto-shard a candidate and simulate its plan."""
        result = None
        if self.workers.present:
            row, plan = self.lookahead.get(queued.task, self._following())
        else:
            row, plan, result = self.trials.of(*queued.task)
        if plan is not None:
            self._keep(FoundPlan(row, plan, result))
        if self.folder is not None:
            self.folder.add(row, plan)
        return row

    def _following(self) -> Iterator[Task]:
        """Yield the trials that are likely to be next."""
        for queued in self.queue.first(self.workers.count):
            known = self.folder is not None and self.folder.known(queued.candidate) is not None
            if queued.least_s < self._worst_s and not known:
                yield queued.task

    def _keep(self, plan: FoundPlan) -> None:
        if plan.row.state != SOLVED:
            return
        for number, other in enumerate(self.plans):
            if other.is_same(plan):
                also = (*other.also, plan.row.candidate.key)
                self.plans[number] = replace(other, also=also)
                return
        self.plans.append(plan)
        self.plans.sort(key=lambda plan: (plan.time_s, plan.row.candidate.key))

    def _result(self) -> SearchResult:
        rows = sorted(
            self.rows,
            key=lambda row: (row.state != SOLVED, row.time_s or row.least_s, row.candidate.key),
        )
        plans = tuple(self.plans)
        excluded = dict(self.enumeration.excluded)
        return SearchResult(plans, tuple(rows), excluded, None, self.complete, self.interrupted)

    def _refuse(self) -> None:
        """Say why there is no plan.

        Raises
        ------
        InfeasibleError
            DIST0801.
        """
        least = min(self.rows, key=lambda row: row.needs_bytes or row.peak_bytes or 1 << 62)
        needs, source, kinds = least.needs_bytes or least.peak_bytes, self.trials.source, []
        if needs and source.train is None:
            system, limit = self.trials.system, self.trials.limit
            devices = least.candidate.devices
            kinds = kinds_that_may_fit(source.forward(1), system, devices, needs, limit)
        raise InfeasibleError(
            "DIST0801",
            f"none of {len(self.rows)} candidates results in a plan that fits; the smallest is "
            f"{least.candidate.key}: {least.why}",
            location="search",
            remedy=remedy_of(kinds)
            + "Use more devices, a smaller batch, or --recompute none,selective,full.",
        )


def try_candidate(trials: Trials, task: Task) -> tuple[CandidateRow, Plan | None]:
    """Return the row and plan of a candidate, as a worker gives them to another process."""
    row, plan, _ = trials.of(*task)
    return row, plan
