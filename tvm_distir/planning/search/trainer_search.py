# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Search the plans that a trainer can run: those that its options state."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from tvm import ir

from tvm_distir.core.plan import data_positions
from tvm_distir.core.rewriting import canonical, entry_of
from tvm_distir.hardware import System
from tvm_distir.planning.plan_export.plan_formats import export_plan
from tvm_distir.planning.stack import Stack
from tvm_distir.planning.stage_memo import StageMemo
from tvm_distir.planning.step_options import StepOptions
from tvm_distir.planning.strategies.consumers import Consumers
from tvm_distir.planning.strategies.expert_parallelism import expert_dim
from tvm_distir.planning.strategies.model_info import entries, tensor_parameters
from tvm_distir.planning.study import Study
from tvm_distir.support import REFUSALS, InfeasibleError

from .candidate_row import REFUSED, SOLVED, CandidateRow
from .candidates import BATCH, STAGES, Candidate, Enumeration
from .constraints import Constraints
from .divided_parts import parts_text
from .found_plan import FoundPlan
from .result import SearchResult
from .trainer_space import TrainerChoice, trainer_choices

MEMO = 100
"""The maximum number of results of stages that trials share."""


@dataclass(frozen=True)
class TrainerSearch:
    """Search among the plans of a trainer.

    Attributes
    ----------
    step : StepOptions
        The training step, with the system and the stack; without a plan.
    constraints : Constraints
    devices : int
    memory_bytes : int, optional
        The maximum number of bytes of a device; None: its memory.
    time_limit_s : float, optional
        The seconds after which no further plan is tried.
    """

    step: StepOptions
    constraints: Constraints
    devices: int
    memory_bytes: int | None = None
    time_limit_s: float | None = None

    @cached_property
    def stack(self) -> Stack:
        """Return the stack."""
        return Stack.resolve(self.step.stack)

    @cached_property
    def _limit(self) -> int:
        """Return the bytes that a device may store."""
        return (
            self.memory_bytes
            or System.required(System.resolve(self.step.system)).memory_capacity_bytes
        )

    def run(self, top: int) -> SearchResult:
        """Return the fastest plans; each is exported, and its time is that of ``analyze``.

        A search that the time limit ends is not ``complete``.

        Raises
        ------
        InfeasibleError
            DIST0801 where no plan of the trainer fits.
        """
        rows: list[CandidateRow] = []
        plans: list[FoundPlan] = []
        ends_s = math.inf if self.time_limit_s is None else time.monotonic() + self.time_limit_s
        memo, (enumeration, experts) = StageMemo(most=MEMO), self._space()
        complete = True
        for choice in trainer_choices(str(self.stack.trainer), enumeration, experts):
            if time.monotonic() >= ends_s:
                complete = False
                break
            for row, plan in self._tried(choice, enumeration, memo):
                rows.append(row)
                plans += [] if plan is None else [plan]
        if complete and not plans:
            raise InfeasibleError(
                "DIST0801", f"none of {len(rows)} plans of {self.stack.name} can be run and fits",
                location="search", remedy="Use more devices, or --recompute none,selective,full.",
            )  # fmt: skip
        plans.sort(key=lambda plan: (plan.time_s, plan.row.candidate.key, plan.row.why))
        rows.sort(key=lambda row: (row.state != SOLVED, row.time_s or 0.0, row.candidate.key))
        return SearchResult(
            tuple(plans[:top]), tuple(rows), complete=complete, stack=self.stack.name
        )

    def beside(self, result: SearchResult, best: SearchResult) -> SearchResult:
        """Return the plans of the trainer with the first of other placements beside them.

        It is timed by the stack too. Its row says why the trainer does not have it; where it has
        the options of a plan of the trainer, there is nothing beside.
        """
        if not best.plans:
            return result
        first = best.plans[0]
        options = replace(self.step, plan=first.plan, micro_batches=None, recompute=None)
        study = Study.of(options)
        try:
            export_plan(study.step, first.plan, str(self.stack.trainer))
            return result
        except REFUSALS as error:
            why = error.what
        row = CandidateRow(first.row.candidate, SOLVED, first.row.least_s, why=why)
        row = row.simulated(study.result, self.memory_bytes or sys.maxsize, only_products=False)
        return replace(result, beyond=FoundPlan(row, first.plan, study.result))

    def _space(self) -> tuple[Enumeration, int]:
        """Return the enumeration of meshes, and the number of experts of the model."""
        study = Study.of(self.step)
        module, system = study.forward, System.required(study.known_system)
        entry = module[entry_of(module)]
        inputs = [entry.params[position] for position in data_positions(entry)]
        batch = self.step.batch or int(inputs[0].ty.shape[0])
        enumeration = Enumeration(self.constraints, self.devices, system, batch, stages=True)
        return enumeration, expert_count(module)

    def _tried(
        self, choice: TrainerChoice, enumeration: Enumeration, memo: StageMemo
    ) -> Iterator[tuple[CandidateRow, FoundPlan | None]]:
        """Yield the rows of a choice in several micro-batches, with the plans that fit.

        With stages, each number that constraints name is one; without, the first that fits.
        """
        samples, rest = divmod(enumeration.batch or 0, choice.parts)
        searches = choice.stages == 1 and not self.constraints.counts
        counts = [] if rest else _counts(self.constraints, samples, choice.stages)
        for policy in self.constraints.recompute:
            fits, least = False, 1.0
            for count in counts:
                if searches and (fits or count < least):
                    continue
                row, plan = self._simulated(choice, count, policy, memo)
                yield row, plan
                if row.peak_bytes is None:
                    return
                fits |= plan is not None
                least = count * row.peak_bytes / self._limit
            if fits:
                return

    def _simulated(
        self, choice: TrainerChoice, count: int, policy: str, memo: StageMemo
    ) -> tuple[CandidateRow, FoundPlan | None]:
        """Return the row of a choice, and its plan where the trainer has it and it fits."""
        inner = tuple((name, size) for name, size in choice.mesh.items() if name != STAGES)
        candidate = Candidate(inner or ((BATCH, 1),), choice.stages, count, recompute=policy)
        text = choice.strategy
        if choice.stages > 1:
            text = "+".join(filter(None, (f"pipeline:micro_batches={count}", text)))
        row = CandidateRow(candidate, SOLVED, 0.0, why=text or "data_parallel")
        options = replace(
            self.step, strategy=row.why, mesh=dict(choice.mesh), recompute=policy,
            micro_batches=count if choice.stages == 1 and count > 1 else None,
        )  # fmt: skip
        try:
            study = Study.of(options, memo=memo)
            export_plan(study.step, study.step_plan, str(self.stack.trainer))
            result = study.result
        except REFUSALS as error:
            return replace(row, state=REFUSED, why=f"{row.why}: {error}"), None
        row = row.simulated(result, self._limit, only_products=False)
        if row.state != SOLVED:
            return row, None
        parts = parts_text(study.step, study.step_plan)
        return row, FoundPlan(replace(row, parts=parts), study.step_plan, result)


def _counts(constraints: Constraints, samples: int, stages: int) -> list[int]:
    """Return the numbers of micro-batches to try of so many samples, the smallest first."""
    if constraints.counts:
        return [count for count in constraints.counts if samples % count == 0]
    if stages == 1:
        return [count for count in range(1, samples + 1) if samples % count == 0]
    return sorted({samples // size for size in constraints.micro_batches if samples % size == 0})


def expert_count(module: ir.IRModule) -> int:
    """Return the number of experts that weights of a module stack; 0 where none does."""
    consumers = Consumers(module)
    for name, fn, rule_name in entries(canonical(module)):
        for parameter in tensor_parameters(name, fn, rule_name):
            dim = expert_dim(module, consumers, parameter, fn.params[parameter.position])
            if dim is not None and parameter.shape is not None:
                return int(parameter.shape[dim])
    return 0
