# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A training step in stages and micro-batches: one function per kind of stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from ...errors import ModelError
from ...ir import PIPELINE_ATTR, is_private, known_shape, tensor_type
from ...ir.rewrite import substitute
from ...plan import Recomputation
from ...schedules import Pipeline, Schedule, StageNote, SumNote
from .batch_norms import in_training, is_batch_norm
from .cutting import Flat
from .functions import Functions, written
from .optimizers import RATE, STEP
from .pairs import Pairs, pure_bindings
from .parameters import Parameters, check_names
from .recipe import Recipe
from .recompute import Auto, Times
from .role_params import SQUARES, Part
from .role_tools import Tools
from .roles import LOSS, PartWriter
from .scaling import Scaling
from .stages import Stage, cut_model

ENTRY = "stage"
"""Begins the names of the stages' public functions."""


class StagedStep:
    """Writes the step of one forward function, stage by stage.

    Parameters
    ----------
    params : Parameters
        Of the forward function.
    recipe : Recipe
    functions : Functions
        Of the model; those of the step are added.
    schedule : Schedule
    """

    def __init__(
        self, params: Parameters, recipe: Recipe, functions: Functions, schedule: Schedule
    ) -> None:
        self.params, self.recipe, self.functions = params, recipe, functions
        self.schedule, self.known = schedule, frozenset(functions.of)

    def run(self, attrs: Any) -> ir.IRModule:
        """Return the module of all stages, with the attribute ``dist.pipeline``.

        Raises
        ------
        ModelError
            DIST0350, DIST0351 as for a step without stages; DIST0354 the model cannot be cut so.
        """
        flat = self._flat()
        called = self._called(flat)
        stages = cut_model(flat, self.functions, self.schedule.stage_count, self.schedule.cuts)
        parts = self._parts(stages, called)
        pairs = Pairs(self.functions, self._policies(), Times(self.functions, self.recipe.system))
        tools = Tools(self.recipe, self.functions, pairs, self.schedule, self.known)
        made: dict[Any, tuple[str, PartWriter]] = {}
        entries: dict[str, relax.Function] = {}
        notes = []
        for number, part in enumerate(parts):
            if part.alike not in made:
                name = self._free(f"{ENTRY}{number}")
                writer = PartWriter(part, tools)
                entries[name] = writer.run(name)
                made[part.alike] = name, writer
            notes.append(self._note(part, *made[part.alike]))
        module = self.functions.module(entries, attrs)
        return module.with_attr(PIPELINE_ATTR, self._pipeline(parts, notes).to_attr())

    def _policies(self) -> Recomputation:
        """What layers make again (ModelError DIST0351 where that is not said)."""
        found = self.recipe.recompute
        if isinstance(found, Auto):
            raise ModelError(
                "DIST0351",
                "what stages make again is not chosen by itself",
                place="train_step (recompute)",
                remedy='Give none, selective, full or "NAME=POLICY,...".',
            )
        return found

    def _flat(self) -> Flat:
        """The bindings of the model and of its loss."""
        forward, objective = self.params.forward, self.params.objective
        bindings = pure_bindings(forward, "main")
        params = [*forward.params, *(var for _, var in objective.inputs)]

        new: dict[Any, Any] = {}

        def write(builder: relax.BlockBuilder) -> Any:
            env: dict[Any, Any] = {}
            for b in bindings:
                value = substitute(b.value, env)
                is_name, normed = isinstance(value, ir.Var), is_batch_norm(value)
                value = in_training(value) if normed else value
                env[b.var] = value if is_name else builder.emit(value, str(b.var.name))
                for k in (3, 4) if normed else ():
                    if value.args[k] in self.params.running:
                        statistic = relax.TupleGetItem(env[b.var], k - 2)
                        new[value.args[k]] = builder.emit(statistic, f"{value.args[k].name}_new")
            output = substitute(forward.body.body, env)
            return builder.emit(objective.write(builder, output), LOSS)

        emitted, loss = written(params, write)
        weights = frozenset(v for _, v in self.params.others)
        statistics = {value: param for param, value in new.items()}
        return Flat(tuple(params), weights, tuple(emitted), loss, self.params.stream, statistics)

    def _called(self, flat: Flat) -> frozenset[str]:
        """Private functions that the model calls more than once."""
        times = Counter(
            str(b.value.op.name_hint)
            for b in flat.bindings
            if isinstance(b.value, ir.Call) and isinstance(b.value.op, ir.GlobalVar)
        )
        return frozenset(
            name
            for name, count in times.items()
            if count > 1
            and isinstance(self.functions.of[name], relax.Function)
            and is_private(self.functions.of[name])
        )

    def _parts(self, stages: Sequence[Stage], called: frozenset[str]) -> list[Part]:
        held = Counter(var for stage in stages for var in stage.weights)
        names = {v: n for n, v in (*self.params.data, *self.params.others)}
        for var in self.params.running:
            if held[var] > 1:
                raise ModelError(
                    "DIST0354",
                    f'"{names[var]}" is a running statistic of several stages',
                    place="schedule",
                    remedy="Cut elsewhere (cuts), or give each batch norm statistics of its own.",
                )
        trained = frozenset(v for _, v in self.params.trained)
        shared = frozenset(v for v in trained if held[v] > 1)
        unread = tuple(v for _, v in self.params.trained if not held[v])
        parts, seen = [], set[Any]()
        meshes, ranks = self.schedule.meshes, self.schedule.rank_of
        for number, stage in enumerate(stages):
            first = not number
            counted = frozenset(v for v in stage.weights if v in trained and v not in seen)
            seen |= counted
            parts.append(
                Part(
                    stage,
                    names,
                    trained,
                    shared & set(stage.weights),
                    counted | frozenset(unread if first else ()),
                    unread if first else (),
                    called,
                    number + 1 == len(stages),
                    meshes[ranks[number]] if meshes else "",
                    self.params.dropout,
                )
            )
        return parts

    def _free(self, wish: str) -> str:
        while wish in self.functions.of:
            wish += "_"
        return wish

    def _note(self, part: Part, function: str, writer: PartWriter) -> StageNote:
        """Name the parameters and results of a stage as the whole step does."""
        like = writer.part
        own = (*part.stage.weights, *part.unread, *part.stage.data)
        theirs = (*like.stage.weights, *like.unread, *like.stage.data)
        pairs = [pair for pair in zip(own, theirs, strict=True) if pair[0] in part.names]
        called = {like.names[b]: part.names[a] for a, b in pairs}
        called[like.stream] = part.stream
        slots = self.recipe.optimizer.states

        def translated(note: str) -> str:
            if note in called:
                return called[note]
            kind, colon, name = note.partition(":")
            if colon and name in called:
                return f"{kind}:{called[name]}"
            for old, new in called.items():
                if note.startswith(f"{old}.") and note[len(old) + 1 :] in known.get(old, ()):
                    return new + note[len(old) :]
            return note

        known = {n: slots(v.ty) for n, v in self.params.trained}
        return StageNote(
            function,
            tuple(map(translated, writer.params.ports.notes)),
            tuple(map(translated, writer.outputs.notes)),
        )

    def _pipeline(self, parts: Sequence[Part], notes: Sequence[StageNote]) -> Pipeline:
        params, slots = self.params, self.recipe.optimizer.states
        states = [f"{n}.{slot}" for n, v in params.trained for slot in slots(v.ty)]
        scaling = Scaling(self.recipe)
        counters = [STEP] if self.recipe.optimizer.counts else []
        counters += [name for name, _ in scaling.params]
        data = [n for n, _ in params.data] + ([RATE] if self.recipe.rate_input else [])
        inputs = [*data, *(n for n, _ in params.others), *states, *counters]
        check_names(inputs)
        held = {n: [k for k, p in enumerate(parts) if v in p.shared] for n, v in params.trained}
        shared = [name for name, holders in held.items() if holders]
        if self.schedule.stash and (shared or scaling.looks_at_gradients):
            what = (
                f'"{shared[0]}" is a weight of several stages' if shared else "a norm is asked for"
            )
            raise ModelError(
                "DIST0354",
                f"stages that change their weights after every micro-batch sum nothing: {what}",
                place="schedule/stash",
                remedy="Leave stash out, or untie the weight and clip nothing.",
            )
        sums = [SumNote(name, tuple(held[name])) for name in shared]
        if scaling.looks_at_gradients:
            sums.append(SumNote(SQUARES, tuple(range(len(parts)))))
        new = {*(v for _, v in params.trained), *params.running, params.dropout}
        updated = [n for n, v in params.others if v in new]
        carried = [n for n, v in params.others if v in params.running]
        return Pipeline(
            self.schedule,
            tuple(inputs),
            len(data),
            tuple(self._sliced()),
            (LOSS, *updated, *states, *counters),
            tuple(notes),
            tuple(sums),
            tuple(carried),
        )

    def _sliced(self) -> list[str]:
        """Data that have the batch as their first dim: that of the first one with dims."""
        shapes = {
            n: known_shape(v.ty) for n, v in self.params.data if tensor_type(v.ty) is not None
        }
        batch = next((shape[0] for shape in shapes.values() if shape), None)
        return [n for n, shape in shapes.items() if shape and _same(shape[0], batch)]


def _same(a: Any, b: Any) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a == b


__all__ = ["StagedStep"]
