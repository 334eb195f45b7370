# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Try candidates: auto-shard them, then distribute, export and simulate their plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tvm import ir

from tvm_distir.core.plan import Plan
from tvm_distir.hardware import MeshCostCache, System, TooLargeError
from tvm_distir.performance import Profile, Result
from tvm_distir.planning.strategies.training_parts import with_updates
from tvm_distir.planning.study import Study, with_attention
from tvm_distir.support import REFUSALS, DistIRError, UsageError

from .auto_sharding import LimitedLabeller, ShardedCandidate, labeller_of
from .candidate_row import MEMORY, REFUSED, SOLVED, CandidateRow
from .candidates import Candidate, kept_rules
from .constraints import Constraints
from .divided_parts import parts_text
from .found_plan import FoundPlan
from .memory_faults import reduced_error
from .min_marginals import MinMarginal, min_marginals
from .modules import Source
from .strategy_maker import Make, StrategyMaker

Task = tuple[Candidate, float, float | None]
"""A candidate to try, the lower bound of its time, and its likely time."""

TOO_LARGE = ("DIST0801", "DIST0803")
"""Errors of what does not fit into memory."""

NOT_SO = ("DIST0236", "DIST0354", "DIST0802")
"""Errors that say that the model cannot be cut so."""

GIVEN = "given"
"""The policy of recomputation of plans that state several."""

HIDDEN = (0.0, 0.75)
"""Shares of what can be sent beside the work that labels take to be hidden, in sequence;
where there are stages, the first alone."""


@dataclass(eq=False)
class Trials:
    """Trials of candidates: they are auto-sharded and their plans simulated.

    Attributes
    ----------
    source : Source
    system : System
    limit : int
        Bytes that a device may keep.
    gap : float
        The optimality gap, as of :func:`.auto_shard`.
    constraints : Constraints
    margin : float
        The margin of estimates.
    in_stages : bool
        Whether candidates may have stages.
    only_products : bool
        Whether lower bounds count the arithmetic of products alone: what fused kernels hand to each
        other need not be stored.
    """

    source: Source
    system: System
    limit: int
    gap: float
    constraints: Constraints
    margin: float
    in_stages: bool

    def __post_init__(self) -> None:
        self.only_products = bool(Profile.resolve(self.system.kernels).rules)
        self._costs = MeshCostCache(self.system)

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
            row = CandidateRow(candidate, state, least_s, why=str(error), likely_s=likely_s)
            if isinstance(error, TooLargeError):
                row = replace(row, needs_bytes=error.least_bytes, whole_bytes=error.mesh_bytes)
            return row, None, None

    def _solved(
        self, candidate: Candidate, least_s: float, likely_s: float | None
    ) -> tuple[CandidateRow, Plan, Result]:
        module = self.source.module(candidate.schedule, candidate.recompute)
        row = CandidateRow(candidate, SOLVED, least_s, likely_s=likely_s)
        tried = [self._judged(*labelled) for labelled in self._labelled(module, row)]
        row, plan, result = min(tried, key=lambda trial: _order(trial[0]))
        parts = "" if candidate.ranks else parts_text(module, plan)
        return replace(row, parts=parts), plan, result

    def _labelled(
        self, module: ir.IRModule, row: CandidateRow
    ) -> Iterator[tuple[CandidateRow, Plan, Result]]:
        """Yield the different plans of a candidate and their simulations, at different costs."""
        candidate, plans = row.candidate, list[Plan]()
        solver = self._solver(module, candidate)
        free, limit, simulated = solver.free, solver.limit, solver.simulated
        for hidden in HIDDEN[:1] if self.in_stages else HIDDEN:
            try:
                is_free = hidden == HIDDEN[0] and free.peak_bytes <= limit
                labelled = free if is_free else solver.labeller.run(self.gap, limit, hidden)
            except TooLargeError as error:
                if not plans:
                    raise reduced_error(error, limit - self.limit, candidate.devices) from None
                continue
            plan = with_attention(module, candidate.completed(labelled.plan()))
            if plan in plans:
                continue
            plans.append(plan)
            price_s = labelled.price_s if candidate.schedule is None else None
            priced = replace(row, price_s=price_s, gap=labelled.gap, hidden=hidden)
            if simulated is None or plan != simulated[0]:
                simulated = plan, self._simulated(module, plan, labelled)
            yield priced, plan, simulated[1]

    def _solver(self, module: ir.IRModule, candidate: Candidate) -> LimitedLabeller:
        """Return the solver of a candidate with its limit of memory.

        The solver counts the results of all ops. Fused kernels do not store those that only they
        read, such as the float32 logits of a cross entropy, and the simulation does not count them.
        The limit of the solver is therefore raised by what they save of the fastest placements. It
        is lowered where these do not fit because of quantized copies of weights.
        """
        fixed = self._fixed(candidate)
        labeller = labeller_of(module, fixed.meshes, self.system, fixed, self._costs)
        free = labeller.run(self.gap, None, HIDDEN[0])
        fits = free.peak_bytes <= self.limit
        if fits and not Profile.resolve(self.system.kernels).stores_copies:
            return LimitedLabeller(labeller, free, self.limit, None)
        plan = with_attention(module, candidate.completed(free.plan()))
        result = self._simulated(module, plan, free)
        limit = self.limit + max(0, free.peak_bytes - result.peak_memory_bytes)
        if fits and result.peak_memory_bytes > self.limit:
            limit -= result.peak_memory_bytes - free.peak_bytes
        return LimitedLabeller(labeller, free, limit, (plan, result))

    def _judged(
        self, row: CandidateRow, plan: Plan, result: Result
    ) -> tuple[CandidateRow, Plan, Result]:
        """Return a plan with what its simulation says."""
        row = row.simulated(result, self.limit, self.only_products)
        if row.state == MEMORY:
            gib = result.peak_memory_bytes / 2**30
            row = replace(row, why=f"in simulation it stores {gib:.2f} GiB")
        return row, plan, result

    def _fixed(self, candidate: Candidate) -> Plan:
        """Return the rules that are to hold, with the meshes and the schedule."""
        if candidate.ranks:
            return Plan(candidate.meshes, schedule=candidate.schedule)
        rules = kept_rules(self.constraints.keep, candidate.mesh)
        return replace(rules, schedule=candidate.schedule)

    def _simulated(self, module: ir.IRModule, plan: Plan, labelled: ShardedCandidate) -> Result:
        """Simulate a plan by the decision that its labels record, without reading them again."""
        decided = labelled.annotated, labelled.decision
        return Study(module, plan, system=self.system, decided=decided).result

    def study(self, module: ir.IRModule, plan: Plan, updates: bool = True) -> Study:
        """Return the study of a module as the command line makes it of a plan that it is given.

        ``updates`` is whether the plan lacks the rules of weight updates.
        """
        if updates and self.source.train is not None:
            plan = with_updates(module, plan)
        return Study(module, plan, system=self.system)

    def why(self, candidate: Candidate) -> tuple[MinMarginal, ...]:
        """Return the cost of other placements of its weights."""
        module = self.source.module(candidate.schedule, candidate.recompute)
        solver = self._solver(module, candidate)
        solver.labeller.run(self.gap, solver.limit)
        return min_marginals(solver.labeller.labeller, self.gap)

    def given(self, name: str, plan: Plan, devices: int) -> FoundPlan:
        """Return a plan of the model on so many devices, as it is.

        Raises
        ------
        UsageError
            DIST0151 where it is for another number of devices.
        """
        schedule = plan.schedule
        study = self.study(self.source.module(schedule, plan.recompute or "none"), plan)
        result = study.result
        used = len({device for mesh in study.program.meshes for device in mesh.device_ids})
        if used != devices:
            problem = f"the plan to compare with is for {used} devices, the search for {devices}"
            remedy = "Compare with a plan for the same number of devices."
            raise UsageError("DIST0151", problem, location=name, remedy=remedy)
        axes = tuple(plan.meshes[0].axes.items())
        word = plan.recompute.get("*", GIVEN if plan.recompute else "none")
        candidate = Candidate(axes, recompute=word)
        if schedule is not None:
            candidate = replace(
                candidate, stages=schedule.stages, micro_batches=schedule.micro_batches,
                chunks=schedule.chunks, cuts=tuple(schedule.cuts),
            )  # fmt: skip
        row = CandidateRow(candidate, SOLVED, 0.0, why=name)
        row = row.simulated(result, self.limit, self.only_products)
        return FoundPlan(row, plan, result)

    def compared(
        self, name: str, make: Make, meshes: Iterable[Mapping[str, int]]
    ) -> FoundPlan | None:
        """Return the fastest plan of another maker, on whole meshes; None where none fits.

        Meshes that it refuses are left out; where it refuses all of them, its error is raised.
        """
        policy = self.constraints.recompute[0]
        best: FoundPlan | None = None
        refusals, is_compared = [], False
        for mesh in meshes:
            try:
                plan = self.simulated_strategy(name, make, mesh, policy)
            except REFUSALS as error:
                refusals.append(error)
                continue
            is_compared = True
            if plan.row.state == SOLVED and (best is None or plan.time_s < best.time_s):
                best = plan
        if refusals and not is_compared:
            raise refusals[0]
        return best

    def simulated_strategy(
        self, name: str, make: Make, mesh: Mapping[str, int], policy: str
    ) -> FoundPlan:
        """Return the plan of another maker on a mesh, simulated; its state says whether it fits.

        Parameters
        ----------
        name : str
            The reason of the row.
        make : callable
        mesh : mapping of str to int
        policy : str
            The recomputation.

        Raises
        ------
        DistIRError
            What the maker raises.
        """
        schedule = make.schedule(mesh) if isinstance(make, StrategyMaker) else None
        module = self.source.module(schedule, policy)
        plan = make(module, mesh, self.system)
        result = self.study(module, plan, updates=False).result
        count = 1 if schedule is None else schedule.micro_batches
        candidate = Candidate(tuple(mesh.items()), micro_batches=count, recompute=policy)
        row = CandidateRow(candidate, SOLVED, 0.0, why=name)
        row = row.simulated(result, self.limit, self.only_products)
        return FoundPlan(row, candidate.completed(plan), result)


def _order(row: CandidateRow) -> tuple[bool, float]:
    """Return the key that orders rows: whether it fits, and its time."""
    assert row.time_s is not None
    return row.state != SOLVED, row.time_s
