# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``search``: candidates by their bounds, each labelled, its plan simulated, the best kept."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tvm import ir

from ..errors import DistIRError, InfeasibleError
from ..ir.rewrite import collector_paused
from ..plan import Plan
from ..program import export
from ..simulation import Result, simulate
from ..strategy import with_updates
from ..system import PICOSECONDS, System
from ..transform import distribute
from .arithmetic import arithmetic, least_work_s
from .candidates import Candidate, Constraints, Enumeration, kept_rules
from .folder import Folder
from .labelling import label
from .result import BOUND, LEFT, MEMORY, REFUSED, SOLVED, Found, Row, SearchResult
from .sources import Make, Source

Compare = tuple[str, Callable[[ir.IRModule, Mapping[str, int], System], Plan]]
"""Name of what to compare with, and what makes its plan of a module on a mesh."""

OnProgress = Callable[[Mapping[str, int], "Found | None"], None]

TOO_LARGE = ("DIST0801", "DIST0802")
"""Errors of what does not fit into memory."""

NOT_SO = ("DIST0236", "DIST0354", "DIST0803")
"""Errors that say that the model cannot be cut so."""


def search(
    model: ir.IRModule | Make,
    devices: int,
    system: System | str,
    *,
    batch: int | None = None,
    train: Mapping[str, Any] | None = None,
    memory_bytes: int | None = None,
    gap: float = 0.01,
    constraints: Constraints | None = None,
    top: int = 5,
    time_limit_s: float | None = None,
    compare: Compare | None = None,
    folder: Folder | None = None,
    on_progress: OnProgress | None = None,
) -> SearchResult:
    """Find the fastest plans of a model on a cluster.

    Meshes, stages and micro-batches are enumerated in the order of a bound, the arithmetic of the
    step on all devices at their peak with the idle ends of the pipeline. On each, :func:`label`
    decides all placements; the plan is distributed, exported and simulated, and it is that time
    by which plans are ranked. The enumeration ends when no bound left is below the worst of the
    ``top`` best.

    Parameters
    ----------
    model : IRModule, or callable
        A forward model, or a training step made already; or what makes the model of a batch,
        given its samples: only so there are micro-batches.
    devices : int
    system : System or str
    batch : int, optional
        Samples of a whole step, for a callable.
    train : mapping, optional
        Keywords of ``td.train_step`` (``loss``, ``optimizer`` and so on), to search for a step of
        training the model.
    memory_bytes : int, optional
        What a device may keep; the memory of the system's devices by default.
    gap : float
        How far labels may be above the least price, as a share of it.
    constraints : Constraints, optional
    top : int
        How many plans to give.
    time_limit_s : float, optional
        Wall-clock seconds after which no further candidate is begun.
    compare : (str, callable), optional
        What to compare with: it is simulated on every mesh of the space without stages, and the
        best of these is ``baseline``.
    folder : Folder, optional
        Keeps rows and plans as they are found, and has those of a search before.
    on_progress : callable, optional
        Told how many candidates have come to which end, and the best plan so far.

    Raises
    ------
    InfeasibleError
        DIST0803 where the constraints leave nothing; DIST0801 where no candidate fits.
    """
    known = System.known(system)
    assert known is not None
    source = Source(model, batch, train, known)
    limit = known.memory_capacity_bytes if memory_bytes is None else memory_bytes
    found = _Search(source, devices, known, limit, gap, constraints or Constraints(), top, folder)
    with collector_paused():
        result = found.run(time_limit_s, on_progress or (lambda *_: None))
        if compare is None or result.interrupted:
            return result
        return replace(result, baseline=found.compared(*compare))


class _Search:
    """One search."""

    def __init__(
        self,
        source: Source,
        devices: int,
        system: System,
        limit: int,
        gap: float,
        constraints: Constraints,
        top: int,
        folder: Folder | None,
    ) -> None:
        self.source, self.system, self.limit, self.gap = source, system, limit, gap
        self.constraints, self.top, self.folder = constraints, top, folder
        self.devices = devices
        self.enumeration = Enumeration(
            constraints, devices, system, source.batch, stages=source.train is not None
        )
        self.rows: list[Row] = []
        self.plans: list[Found] = []
        self.interrupted = False

    def run(self, time_limit_s: float | None, on_progress: OnProgress) -> SearchResult:
        began = time.monotonic()
        waiting = self._queue()
        complete = True
        while waiting:
            least_s, _, candidate = heapq.heappop(waiting)
            if len(self.plans) >= self.top and least_s >= self.plans[self.top - 1].time_s:
                self.rows.append(Row(candidate, BOUND, least_s))
                continue
            if time_limit_s is not None and time.monotonic() - began > time_limit_s:
                complete = False
                self.rows.append(Row(candidate, LEFT, least_s))
                continue
            try:
                row = self._known(candidate) or self._tried(candidate, least_s)
            except KeyboardInterrupt:
                complete, time_limit_s, self.interrupted = False, -1.0, True
                self.rows.append(Row(candidate, LEFT, least_s))
                continue
            self.rows.append(row)
            if row.state == MEMORY:
                self._with_more_recomputed(row, waiting)
            on_progress(self._result(complete).space, self.plans[0] if self.plans else None)
        found = self._result(complete)
        if not found.plans and complete:
            self._refuse()
        return found

    def _queue(self) -> list[tuple[float, str, Candidate]]:
        candidates = list(self.enumeration)
        if not candidates:
            said = ", ".join(f"{n} by {why}" for why, n in self.enumeration.excluded.items())
            raise InfeasibleError(
                "DIST0803",
                f"no mesh of {self.devices} devices is left ({said or 'there is none'})",
                place="search",
                remedy="Allow other sizes of axes, or other micro-batches.",
            )
        step = self.source.module(None, "none")
        work_s = least_work_s(arithmetic(step), self.system) / self.devices
        waiting = [(work_s * one.idle, one.key, one) for one in candidates]
        heapq.heapify(waiting)
        return waiting

    def _known(self, candidate: Candidate) -> Row | None:
        """What a search before found of a candidate."""
        if self.folder is None:
            return None
        kept = self.folder.known(candidate)
        if kept is None:
            return None
        row, plan = kept
        if plan is not None:
            self._keep(Found(row, plan))
        return row

    def _tried(self, candidate: Candidate, least_s: float) -> Row:
        """Label a candidate and simulate its plan."""
        try:
            row, plan, result = self._solved(candidate, least_s)
        except DistIRError as error:
            if error.code not in (*TOO_LARGE, *NOT_SO):
                raise
            state = MEMORY if error.code in TOO_LARGE else REFUSED
            row, plan, result = Row(candidate, state, least_s, why=str(error)), None, None
        if plan is not None and row.state == SOLVED:
            self._keep(Found(row, plan, result))
        if self.folder is not None:
            self.folder.add(row, plan)
        return row

    def _solved(self, candidate: Candidate, least_s: float) -> tuple[Row, Plan, Result]:
        schedule, mesh = candidate.schedule, candidate.mesh
        module = self.source.module(schedule, candidate.recompute)
        fixed = kept_rules(self.constraints.keep, mesh)
        labelled = label(
            module, mesh, self.system, fixed=fixed, gap=self.gap, memory_bytes=self.limit
        )
        plan = candidate.completed(labelled.plan())
        result = simulate(export(self.distributed(module, plan)), self.system)
        state, why = SOLVED, ""
        if result.peak_memory_bytes > self.limit:
            state, why = MEMORY, f"simulated, it keeps {result.peak_memory_bytes / 2**30:.2f} GiB"
        price_s = labelled.price_s if schedule is None else None
        if schedule is None:
            least_s = max(least_s, labelled.bound_ps / PICOSECONDS)
        return (
            Row(
                candidate, state, least_s, price_s, labelled.gap,
                result.time_s, result.peak_memory_bytes, why,
            ),
            plan,
            result,
        )  # fmt: skip

    def distributed(self, module: ir.IRModule, plan: Plan) -> ir.IRModule:
        """A module as the command line distributes it by a plan that it is given."""
        if self.source.train is not None:
            plan = with_updates(module, plan)
        return distribute(module, plan, system=self.system)

    def compared(
        self, name: str, make: Callable[[ir.IRModule, Mapping[str, int], System], Plan]
    ) -> Row | None:
        """The fastest plan of another maker over the meshes of the space; None where none fits.

        Meshes that it refuses are left out; where it refuses all of them, its error is raised.
        """
        module = self.source.module(None, self.constraints.recompute[0])
        best: Row | None = None
        refusals, took = [], False
        for candidate in self.enumeration:
            if candidate.schedule is not None:
                continue
            try:
                plan = make(module, dict(candidate.axes), self.system)
                result = simulate(export(distribute(module, plan, system=self.system)), self.system)
            except DistIRError as error:
                refusals.append(error)
                continue
            took = True
            fits = result.peak_memory_bytes <= self.limit
            if fits and (best is None or best.time_s is None or result.time_s < best.time_s):
                best = Row(
                    candidate, SOLVED, 0.0, None, None,
                    result.time_s, result.peak_memory_bytes, name,
                )  # fmt: skip
        if refusals and not took:
            raise refusals[0]
        return best

    def _with_more_recomputed(self, row: Row, waiting: list[tuple[float, str, Candidate]]) -> None:
        """Try a candidate that does not fit with the next policy of recomputation."""
        policies, candidate = self.constraints.recompute, row.candidate
        number = policies.index(candidate.recompute) + 1
        if self.source.train is not None and number < len(policies):
            other = replace(candidate, recompute=policies[number])
            heapq.heappush(waiting, (row.least_s, other.key, other))

    def _keep(self, found: Found) -> None:
        if found.row.state != SOLVED:
            return
        self.plans.append(found)
        self.plans.sort(key=lambda one: (one.time_s, one.row.candidate.key))

    def _result(self, complete: bool) -> SearchResult:
        rows = sorted(
            self.rows,
            key=lambda row: (row.state != SOLVED, row.time_s or row.least_s, row.candidate.key),
        )
        plans = tuple(self.plans[: self.top])
        excluded = dict(self.enumeration.excluded)
        return SearchResult(plans, tuple(rows), excluded, None, complete, self.interrupted)

    def _refuse(self) -> None:
        """Say why nothing was found.

        Raises
        ------
        InfeasibleError
            DIST0801.
        """
        closest = min(self.rows, key=lambda row: (row.state != MEMORY, row.peak_bytes or 1 << 62))
        raise InfeasibleError(
            "DIST0801",
            f"none of {len(self.rows)} candidates gives a plan that fits; the closest: "
            f"{closest.candidate.key}: {closest.why}",
            place="search",
            remedy="Use more devices, a smaller batch, or --recompute none,selective,full.",
        )
