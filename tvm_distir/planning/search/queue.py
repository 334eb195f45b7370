# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Queue the candidates by estimate and bound, and prune those that need not be tried."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from tvm_distir.core.ops import TENSOR_CLASSES
from tvm_distir.core.plan import Schedule
from tvm_distir.hardware import Clock, StepKernels, work_of_step
from tvm_distir.support import InfeasibleError

from .candidate_row import BOUND, ESTIMATE, MEMORY, SOLVED, CandidateRow
from .candidates import Candidate, Enumeration
from .constraints import ANY
from .estimates import SURE, Estimate, Estimator
from .infeasible import contradiction
from .layers import LayerTables
from .trials import Task, Trials
from .uneven_stages import Uneven


class QueuedCandidate(NamedTuple):
    """Candidate in the queue, ordered by its estimate or its bound."""

    order_s: float
    key: str
    least_s: float
    candidate: Candidate
    estimate: Estimate | None

    @property
    def task(self) -> Task:
        """Return the trial of the candidate."""
        return self.candidate, self.least_s, self.likely_s

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
    enumeration : Enumeration
        The space of candidates.
    """

    def __init__(self, trials: Trials, enumeration: Enumeration) -> None:
        self.trials, self.enumeration = trials, enumeration
        self._work: StepKernels | None = None
        self._clock = Clock(trials.system)
        self._tables: LayerTables | None = None
        self._outlooks = Estimator(trials.system, trials.limit)
        self._waiting: list[QueuedCandidate] = []
        self._mesh_bytes: dict[tuple[Schedule | None, str], int] = {}  # of steps that do not fit
        self._seen: list[tuple[Candidate, Estimate, Estimate]] = []  # what was likely, what was so

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def fill(self, *, only_list: bool = False) -> None:
        """Add all candidates.

        Parameters
        ----------
        only_list : bool
            Whether the candidates are only listed, without the tables of their layers and without
            stages of different meshes, which follow from these.

        Raises
        ------
        InfeasibleError
            DIST0802 where there are none.
        """
        enumeration, trials = self.enumeration, self.trials
        candidates = list(enumeration)
        has_uneven_stages = enumeration.constraints.stage_devices == ANY and enumeration.stages
        work = work_of_step(trials.source.module(None, "none"))
        work = _of_products(work) if trials.only_products else work
        self._work = work
        in_stages = has_uneven_stages or any(
            candidate.schedule is not None for candidate in candidates
        )
        if in_stages and not only_list:
            self._tables = LayerTables(trials.source, trials.system)
        for candidate in candidates:
            self._push(candidate)
        if has_uneven_stages and self._tables is not None:
            for candidate, estimate in Uneven(
                enumeration, self._tables, self._outlooks
            ).candidates():
                # of the devices' time together, each kernel takes what it takes on one of them
                alone_s = work.least_s(self._clock, 1, 1, candidate.micro_batches)
                self._wait(candidate, alone_s / enumeration.devices, estimate)
        if not self._waiting:
            reason = " and ".join(contradiction(enumeration))
            raise InfeasibleError(
                "DIST0802",
                f"no mesh of {enumeration.devices} devices is possible: "
                f"{reason} exclude all of them",
                location="search", remedy="Remove one of these constraints.",
            )  # fmt: skip

    def pop(self) -> QueuedCandidate:
        """Return the next candidate."""
        return heapq.heappop(self._waiting)

    def first(self, count: int) -> list[QueuedCandidate]:
        """Return the next candidates, which stay in the queue."""
        return heapq.nsmallest(count, self._waiting)

    def saw(self, queued: QueuedCandidate, row: CandidateRow, worst_s: float) -> None:
        """Record the outcome of a candidate, and add the candidates that follow from it.

        A candidate that does not fit is followed by those that need less memory; a number of
        micro-batches that is among the best by the next larger number.
        """
        if queued.estimate is not None and row.time_s is not None and row.peak_bytes is not None:
            so = Estimate(row.time_s, row.peak_bytes)
            self._seen.append((queued.candidate, queued.estimate, so))
        if row.whole_bytes is not None and not row.candidate.ranks:
            self._mesh_bytes[_step(row.candidate)] = row.whole_bytes
        if row.state == MEMORY:
            self._add_smaller(row.candidate, row.least_s, row.needs_bytes or row.peak_bytes or 0)
        elif row.state == SOLVED and row.candidate.micro_batches > 1 and row.time_s is not None:
            more = self.enumeration.with_more_micro_batches(row.candidate, 1.0)
            if more is not None and row.time_s <= worst_s:
                self._push(more)

    def _add_smaller(self, candidate: Candidate, least_s: float, needs_bytes: int) -> None:
        """Add a candidate that does not fit with more micro-batches, or more recomputation.

        What a step of more micro-batches stores shrinks by their number at most.
        """
        is_open = self.enumeration.is_open(candidate)
        more = self.enumeration.with_more_micro_batches(candidate, needs_bytes / self.trials.limit)
        if more is not None:
            self._push(more)
        policies = self.trials.constraints.recompute
        number = policies.index(candidate.recompute) + 1
        first = candidate.micro_batches == 1 or not is_open
        if self.trials.source.train is not None and number < len(policies) and first:
            self._push(replace(candidate, recompute=policies[number]), least_s)

    def cut(self, queued: QueuedCandidate, worst_s: float) -> CandidateRow | None:
        """Return the row of a candidate that is pruned, with the reason, or None.

        Parameters
        ----------
        queued : QueuedCandidate
        worst_s : float
            The time that a plan must be better than.
        """
        row = CandidateRow(queued.candidate, BOUND, queued.least_s, likely_s=queued.likely_s)
        if queued.least_s >= worst_s:
            return row
        needs_bytes = self._least_bytes(queued.candidate)
        if needs_bytes > (1 + self.trials.margin) * self.trials.limit:
            self._add_smaller(queued.candidate, queued.least_s, needs_bytes)
            reason = f"on a mesh of any shape it stores at least {needs_bytes / 2**30:.2f} GiB"
            return replace(row, state=MEMORY, why=reason, needs_bytes=needs_bytes)
        if queued.estimate is None:
            return None
        kind = _kind(queued.candidate)
        seen = [(x, y) for other, x, y in self._seen if _kind(other) == kind]
        expected = queued.estimate.corrected(seen)
        margin = self.trials.margin * (1 if len(seen) >= SURE else 2)
        if seen and expected.time_s >= (1 + margin) * worst_s:
            return replace(row, state=ESTIMATE)
        if expected.peak_bytes <= self.trials.limit:
            return None
        self._add_smaller(queued.candidate, queued.least_s, expected.peak_bytes)
        reason = f"its layers store about {expected.peak_bytes / 2**30:.2f} GiB"
        return replace(row, state=ESTIMATE, why=reason, needs_bytes=expected.peak_bytes)

    def _least_bytes(self, candidate: Candidate) -> int:
        """Return the bytes that each device stores at least, as another mesh of as many showed."""
        if candidate.ranks:
            return 0
        return self._mesh_bytes.get(_step(candidate), 0) // candidate.devices

    def _push(self, candidate: Candidate, least_s: float | None = None) -> None:
        """Add a candidate, with its lower bound where that is not known."""
        if least_s is None:
            assert self._work is not None
            sizes = candidate.stages, candidate.micro_batches, candidate.chunks
            least_s = self._work.least_s(self._clock, self.enumeration.devices, *sizes)
        known = self._tables is not None and not candidate.ranks
        table = self._tables.of(candidate) if known and self._tables else None
        estimate = None if table is None else self._outlooks.of(candidate, table)
        self._wait(candidate, least_s, estimate)

    def _wait(self, candidate: Candidate, least_s: float, estimate: Estimate | None) -> None:
        order_s = least_s if estimate is None else estimate.time_s
        heapq.heappush(
            self._waiting, QueuedCandidate(order_s, candidate.key, least_s, candidate, estimate)
        )


def _of_products(work: StepKernels) -> StepKernels:
    """Return the part of a step's kernels that no kernel profile removes.

    Where kernels are fused, values need not be stored; the arithmetic of products remains.
    """
    lasting = StepKernels(Counter(), Counter())
    for all_kernels, products in zip(work, lasting, strict=True):
        for kernel, count in all_kernels.items():
            if kernel.kernel_class in TENSOR_CLASSES:
                products[kernel._replace(moved_bytes=0)] += count
    return lasting


def _step(candidate: Candidate) -> tuple[Schedule | None, str]:
    """Return what decides the values of a step, whatever its mesh is."""
    return candidate.schedule, candidate.recompute


def _kind(candidate: Candidate) -> str:
    """Return the kind of a candidate; estimates of a kind err by about as much."""
    return "" if candidate.schedule is None else candidate.schedule.kind
