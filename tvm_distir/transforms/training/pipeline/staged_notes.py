# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe a pipelined step: names of the full step, stages and sums over stages."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm_distir.core.plan import Pipeline, Schedule, StageNote, SumNote
from tvm_distir.support import ModelError
from tvm_distir.transforms.training.optimizers.protocol import RATE, STEP
from tvm_distir.transforms.training.step.parameters import Parameters, check_names
from tvm_distir.transforms.training.step.recipe import Recipe
from tvm_distir.transforms.training.step.scaling import Scaling

from .stage_function_params import SQUARES, StageInputs
from .stage_functions import LOSS, StageWriter


@dataclass(frozen=True)
class Notes:
    """Writer of the attribute ``dist.pipeline``.

    Attributes
    ----------
    params : Parameters
        The parameters of the forward function.
    recipe : Recipe
    schedule : Schedule
    """

    params: Parameters
    recipe: Recipe
    schedule: Schedule

    @functools.cached_property
    def _states(self) -> dict[str, Any]:
        """Return the names of the optimizer's states, per trained weight."""
        slots = self.recipe.optimizer.states
        return {n: slots(v.ty) for n, v in self.params.trained}

    def stage(self, part: StageInputs, function: str, writer: StageWriter) -> StageNote:
        """Name the parameters and results of a stage as in the full step."""
        like = writer.part
        stage_params = (*part.stage.weights, *part.unread, *part.data)
        theirs = (*like.stage.weights, *like.unread, *like.data)
        pairs = [pair for pair in zip(stage_params, theirs, strict=True) if pair[0] in part.names]
        called = {like.names[b]: part.names[a] for a, b in pairs}
        called[like.stream] = part.stream
        states: dict[str, str] = {}
        for old, new in called.items():
            for slot in self._states.get(old, ()):
                states.setdefault(f"{old}.{slot}", f"{new}.{slot}")

        def translated(note: str) -> str:
            if note in called:
                return called[note]
            kind, colon, name = note.partition(":")
            if colon and name in called:
                return f"{kind}:{called[name]}"
            return states.get(note, note)

        return StageNote(
            function,
            tuple(map(translated, writer.params.ports.notes)),
            tuple(map(translated, writer.outputs.notes)),
        )

    def pipeline(self, parts: Sequence[StageInputs], notes: Sequence[StageNote]) -> Pipeline:
        """Return the description of the step.

        Raises
        ------
        ModelError
            DIST0351 for a parameter of a name that the step adds; DIST0354 if stages cannot
            change their weights after every micro-batch.
        """
        params, slots = self.params, self.recipe.optimizer.states
        states = [f"{n}.{slot}" for n, v in params.trained for slot in slots(v.ty)]
        scaling = Scaling(self.recipe)
        counters = [STEP] if self.recipe.optimizer.counts else []
        counters += [name for name, _ in scaling.params]
        data = [n for n, _ in params.data] + ([RATE] if self.recipe.rate_input else [])
        inputs = [*data, *(n for n, _ in params.others), *states, *counters]
        check_names(inputs)
        stages_of = {
            n: [k for k, p in enumerate(parts) if v in p.shared] for n, v in params.trained
        }
        shared = [name for name, holders in stages_of.items() if holders]
        if self.schedule.stash and (shared or scaling.looks_at_gradients):
            problem = (
                f'"{shared[0]}" is a weight of several stages'
                if shared
                else "clipping by the norm is requested"
            )
            raise ModelError(
                "DIST0354",
                "stages that update their weights after every micro-batch have no common sums: "
                f"{problem}",
                location="schedule/stash",
                remedy="Remove stash, or untie the weight and disable clipping.",
            )
        sums = [SumNote(name, tuple(stages_of[name])) for name in shared]
        if scaling.looks_at_gradients:
            sums.append(SumNote(SQUARES, tuple(range(len(parts)))))
        new = {*(v for _, v in params.trained), *params.running, params.dropout}
        updated = [n for n, v in params.others if v in new]
        carried = [n for n, v in params.others if v in params.running]
        ends = tuple(inputs), len(data), tuple(params.sliced), (LOSS, *updated, *states, *counters)
        return Pipeline(self.schedule, *ends, tuple(notes), tuple(sums), tuple(carried))
