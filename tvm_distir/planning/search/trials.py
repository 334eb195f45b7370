# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Try candidates: auto-shard them, then distribute, export and simulate their plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from tvm import ir

from tvm_distir.core import Plan, System, TooLargeError, relax_functions, training_notes
from tvm_distir.performance import Result
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.planning.strategies.training_parts import with_updates
from tvm_distir.planning.study import Study
from tvm_distir.support import DistIRError, InternalError, UsageError

from .auto_sharding import labeller_of
from .candidates import BATCH, Candidate, Constraints, kept_rules
from .min_marginals import MinMarginal, min_marginals
from .modules import Source
from .result import MEMORY, REFUSED, SOLVED, CandidateRow, FoundPlan

Make = Callable[[ir.IRModule, Mapping[str, int], System], Plan]
"""Makes a plan of a module on a mesh."""

Compare = tuple[str, Make | Plan]
"""Name of what to compare with; what makes its plan of a module on a mesh, or the plan."""

TOO_LARGE = ("DIST0801", "DIST0803")
"""Errors of what does not fit into memory."""

NOT_SO = ("DIST0236", "DIST0354", "DIST0802")
"""Errors that say that the model cannot be cut so."""

HIDDEN = (0.0, 0.75)
"""Shares of what can be sent beside the work that labels take to be hidden, in sequence;
where there are stages, the first alone."""

KNOWN = ("zero:stage=3",)
"""Strategies that send more than labels would and hide it, tried as they are."""


class Trials:
    """Trials of candidates: they are auto-sharded and their plans simulated.

    Parameters
    ----------
    source : Source
    system : System
    limit : int
        Bytes that a device may keep.
    gap : float
        The optimality gap, as of :func:`auto_shard`.
    constraints : Constraints
    margin : float
        The margin of estimates.
    in_stages : bool
        Whether candidates may have stages.
    """

    def __init__(
        self,
        source: Source,
        system: System,
        limit: int,
        gap: float,
        constraints: Constraints,
        margin: float,
        *,
        in_stages: bool,
    ) -> None:
        self.source, self.system, self.limit, self.gap = source, system, limit, gap
        self.constraints, self.margin, self.in_stages = constraints, margin, in_stages

    def of(
        self, candidate: Candidate, least_s: float, likely_s: float | None
    ) -> tuple[CandidateRow, Plan | None, Result | None]:
        """Return the row, plan and result of a candidate.

        Parameters
        ----------
        candidate : Candidate
        least_s : float
            The lower bound of the candidate's time.
        likely_s : float, optional
            The likely time of the candidate.
        """
        try:
            return self._solved(candidate, least_s, likely_s)
        except DistIRError as error:
            if error.code not in (*TOO_LARGE, *NOT_SO):
                raise
            state = MEMORY if error.code in TOO_LARGE else REFUSED
            needs = error.least_bytes if isinstance(error, TooLargeError) else None
            row = CandidateRow(
                candidate, state, least_s, why=str(error), likely_s=likely_s, needs_bytes=needs
            )
            return row, None, None

    def _solved(
        self, candidate: Candidate, least_s: float, likely_s: float | None
    ) -> tuple[CandidateRow, Plan, Result]:
        module = self.source.module(candidate.schedule, candidate.recompute)
        row = CandidateRow(candidate, SOLVED, least_s, likely_s=likely_s)
        tried = [self._simulated(module, *labelled) for labelled in self._labelled(module, row)]
        return min(tried, key=lambda trial: _order(trial[0]))

    def _labelled(self, module: ir.IRModule, row: CandidateRow) -> list[tuple[CandidateRow, Plan]]:
        """Return the different plans of a candidate, from labels with different prices."""
        candidate, plans = row.candidate, list[tuple[CandidateRow, Plan]]()
        fixed = self._fixed(candidate)
        labeller = labeller_of(module, fixed.meshes, self.system, fixed)
        for hidden in HIDDEN[:1] if self.in_stages else HIDDEN:
            try:
                labelled = labeller.run(self.gap, self.limit, hidden)
            except TooLargeError:
                if not plans:
                    raise
                continue
            plan = candidate.completed(labelled.plan())
            if all(plan != other for _, other in plans):
                price_s = labelled.price_s if candidate.schedule is None else None
                priced = replace(row, price_s=price_s, gap=labelled.gap, hidden=hidden)
                plans.append((priced, plan))
        return plans

    def _simulated(
        self, module: ir.IRModule, row: CandidateRow, plan: Plan
    ) -> tuple[CandidateRow, Plan, Result]:
        """Return the simulation of a plan."""
        result = self._study(module, plan).result
        row = row.simulated(result, self.limit)
        if row.state == MEMORY:
            gib = result.peak_memory_bytes / 2**30
            row = replace(row, why=f"in simulation it stores {gib:.2f} GiB")
        return row, plan, result

    def _fixed(self, candidate: Candidate) -> Plan:
        """Return the rules that are to hold, with the meshes."""
        if candidate.ranks:
            return Plan(candidate.meshes)
        return kept_rules(self.constraints.keep, candidate.mesh)

    def _study(self, module: ir.IRModule, plan: Plan) -> Study:
        """Return the study of a module as the command line makes it of a plan that it is given."""
        if self.source.train is not None:
            plan = with_updates(module, plan)
        return Study(module, plan, system=self.system)

    def why(self, candidate: Candidate) -> tuple[MinMarginal, ...]:
        """Return the cost of other placements of its weights."""
        module = self.source.module(candidate.schedule, candidate.recompute)
        fixed = self._fixed(candidate)
        labeller = labeller_of(module, fixed.meshes, self.system, fixed)
        labeller.run(self.gap, self.limit)
        return min_marginals(labeller.labeller, self.gap)

    def known(self, meshes: Iterable[Mapping[str, int]]) -> Iterator[FoundPlan]:
        """Yield plans of strategies that overlap communication well, along the data axis alone.

        None where there are stages, whose tables have such plans, or where rules are to hold.
        """
        if self.in_stages or self.constraints.keep is not None:
            return
        module = self.source.module(None, self.constraints.recompute[0])
        if not any(training_notes(fn, "updated") for _, fn in relax_functions(module)):
            return
        alone = [mesh for mesh in meshes if list(mesh) == [BATCH]]
        for text in KNOWN:
            try:
                plan = self.compared(text, partial(_strategy, text), alone)
            except InternalError:
                raise
            except DistIRError:  # it is not for this model, or not for so many devices
                continue
            if plan is not None:
                yield plan

    def given(self, name: str, plan: Plan, devices: int) -> FoundPlan:
        """Return a plan of the model on so many devices, as it is.

        Raises
        ------
        UsageError
            DIST0151 where it is for another number of devices.
        """
        schedule = plan.schedule
        module = self.source.module(schedule, plan.recompute or "none")
        study = self._study(module, plan)
        result = study.result
        used = len({device for mesh in study.program.meshes for device in mesh.device_ids})
        if used != devices:
            raise UsageError(
                "DIST0151",
                f"the plan to compare with is for {used} devices, the search for {devices}",
                place=name,
                remedy="Compare with a plan for the same number of devices.",
            )
        axes = tuple(plan.meshes[0].axes.items())
        word = plan.recompute.get("*", "given" if plan.recompute else "none")
        candidate = Candidate(axes, recompute=word)
        if schedule is not None:
            candidate = replace(
                candidate, stages=schedule.stages, micro_batches=schedule.micro_batches,
                chunks=schedule.chunks, cuts=tuple(schedule.cuts),
            )  # fmt: skip
        row = CandidateRow(candidate, SOLVED, 0.0, why=name).simulated(result, self.limit)
        return FoundPlan(row, plan, result)

    def compared(
        self, name: str, make: Make, meshes: Iterable[Mapping[str, int]]
    ) -> FoundPlan | None:
        """Return the fastest plan of another maker, without stages; None where none fits.

        Meshes that it refuses are left out; where it refuses all of them, its error is raised.
        """
        policy = self.constraints.recompute[0]
        module = self.source.module(None, policy)
        best: FoundPlan | None = None
        refusals, took = [], False
        for mesh in meshes:
            try:
                plan = make(module, mesh, self.system)
                result = Study(module, plan, system=self.system).result
            except InternalError:
                raise
            except DistIRError as error:
                refusals.append(error)
                continue
            took = True
            candidate = Candidate(tuple(mesh.items()), recompute=policy)
            row = CandidateRow(candidate, SOLVED, 0.0, why=name).simulated(result, self.limit)
            if row.state == SOLVED and (best is None or result.time_s < best.time_s):
                best = FoundPlan(row, candidate.completed(plan), result)
        if refusals and not took:
            raise refusals[0]
        return best


def _strategy(text: str, mod: ir.IRModule, mesh: Mapping[str, int], system: System) -> Plan:
    """Return the plan of a strategy."""
    return make_plan(mod, text, mesh, system)


def _order(row: CandidateRow) -> tuple[bool, float]:
    """Return the key that orders rows: whether it fits, and its time."""
    assert row.time_s is not None
    return row.state != SOLVED, row.time_s
