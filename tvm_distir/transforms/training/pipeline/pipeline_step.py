# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write a pipelined training step with micro-batches: a function per stage kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, Var

from tvm_distir.core.ir.attributes import PIPELINE_ATTR
from tvm_distir.core.plan import Pipeline, Schedule
from tvm_distir.core.rewriting import substitute
from tvm_distir.support import ModelError
from tvm_distir.transforms.training.autodiff.function_table import NamedFunctions, write_function
from tvm_distir.transforms.training.autodiff.rules.batch_norms import in_training, is_batch_norm
from tvm_distir.transforms.training.recompute.pairs import Differentiator, pure_bindings
from tvm_distir.transforms.training.recompute.times import ValueTimes
from tvm_distir.transforms.training.step.parameters import Parameters
from tvm_distir.transforms.training.step.recipe import Recipe

from .cutting import Flat
from .split_loss import BatchSum, LossSplitter
from .stage_function_params import StageInputs
from .stage_function_tools import Tools
from .stage_functions import LOSS, StageWriter
from .staged_notes import Notes
from .stages import ModelStage, cut_model

ENTRY = "stage"
"""Begins the names of the stages' public functions."""


@dataclass(frozen=True)
class WrittenPipeline:
    """Pipelined step that was written.

    Attributes
    ----------
    module : IRModule
    parts : tuple of StageInputs
        The inputs of each stage.
    writers : tuple of StageWriter
        The writer of the kind of each stage.
    pipeline : Pipeline
    tools : Tools
    """

    module: ir.IRModule
    parts: tuple[StageInputs, ...]
    writers: tuple[StageWriter, ...]
    pipeline: Pipeline
    tools: Tools


class StagedStep:
    """Writer of the step of a forward function, stage by stage.

    Parameters
    ----------
    params : Parameters
        The parameters of the forward function.
    recipe : Recipe
    functions : NamedFunctions
        The functions of the model; those of the step are added.
    schedule : Schedule
    """

    def __init__(
        self, params: Parameters, recipe: Recipe, functions: NamedFunctions, schedule: Schedule
    ) -> None:
        self.params, self.recipe, self.functions = params, recipe, functions
        self.schedule, self.known = schedule, frozenset(functions.of)

    def run(self, attrs: Any) -> WrittenPipeline:
        """Write the module of all stages, with the attribute ``dist.pipeline``.

        Raises
        ------
        ModelError
            DIST0350, DIST0351 as for a step without stages; DIST0354 the model cannot be cut so.
        """
        flat = self._flat()
        called = self._called(flat)
        schedule, recompute = self.schedule, self.recipe.policies
        stages = cut_model(flat, self.functions, schedule.stage_count, schedule.cuts, recompute)
        parts = self._parts(stages, called, flat.sums)
        times, ops = ValueTimes(self.functions, self.recipe.system), self.recipe.recomputed_ops
        pairs = Differentiator(self.functions, recompute, times, ops)
        for stage in stages:
            policies = {layer.label: layer.policy for layer in stage.layers}
            pairs.inside.setdefault(str(stage.function.name_hint), policies)
        tools = Tools(self.recipe, self.functions, pairs, schedule, self.known, flat.share)
        writer_of: dict[Any, tuple[str, StageWriter]] = {}
        entries: dict[str, relax.Function] = {}
        step_notes, notes, writers = Notes(self.params, self.recipe, schedule), [], []
        for number, part in enumerate(parts):
            if part.alike not in writer_of:
                name = f"{ENTRY}{number}"
                while name in self.functions.of:
                    name += "_"
                writer = StageWriter(part, tools)
                entries[name] = writer.run(name)
                writer_of[part.alike] = name, writer
            notes.append(step_notes.stage(part, *writer_of[part.alike]))
            writers.append(writer_of[part.alike][1])
        pipeline = step_notes.pipeline(parts, notes)
        module = self.functions.module(entries, attrs).with_attr(PIPELINE_ATTR, pipeline.to_attr())
        return WrittenPipeline(module, tuple(parts), tuple(writers), pipeline, tools)

    def _flat(self) -> Flat:
        """Return the bindings of the model and of its loss."""
        forward, objective = self.params.forward, self.params.objective
        bindings = pure_bindings(forward, "main")
        params = [*forward.params, *(var for _, var in objective.inputs)]
        new: dict[Var, Var] = {}

        def write(builder: BlockBuilder) -> Any:
            env: dict[Var, Expr] = {}
            for b in bindings:
                value = substitute(b.value, env)
                is_name, normed = isinstance(value, ir.Var), is_batch_norm(value)
                value = in_training(value) if normed else value
                env[b.var] = value if is_name else builder.emit(value, str(b.var.name))
                for k in (3, 4) if normed else ():
                    if value.args[k] in self.params.running:
                        statistic = relax.TupleGetItem(env[b.var], k - 2)
                        new[value.args[k]] = builder.emit(statistic, f"{value.args[k].name}_new")
            return self._loss(builder, substitute(forward.body.body, env))

        emitted, (loss, share, sums) = write_function(params, write)
        weights = frozenset(v for _, v in self.params.others)
        statistics = {value: param for param, value in new.items()}
        stream = self.params.stream
        return Flat(tuple(params), weights, tuple(emitted), loss, stream, statistics, sums, share)

    def _loss(
        self, builder: BlockBuilder, output: Expr
    ) -> tuple[Var, float, Mapping[Var, BatchSum]]:
        """Emit the loss of a micro-batch; return it, the factor of the sum of all, and sums."""
        schedule, objective = self.schedule, self.params.objective
        count = schedule.micro_batches
        if count == 1 or schedule.stash:  # each micro-batch has an update of its own
            return builder.emit(objective.write(builder, output), LOSS), 1.0 / count, {}
        targets = [var for _, var in objective.inputs]
        bindings, result = write_function(
            targets, lambda inside: inside.emit(objective.write(inside, output), LOSS)
        )
        rows = set(self.params.sliced.values())
        data = {var: var in rows for var in targets}
        splitter = LossSplitter(builder, self.functions, count, self.params.batch or 0, data)
        loss, share = splitter.run(bindings, result, LOSS)
        return loss, share, splitter.sums

    def _called(self, flat: Flat) -> frozenset[str]:
        """Return the private functions that the model calls more than once."""
        calls = (b.value for b in flat.bindings if self.functions.called_by(b.value) is not None)
        times = Counter(str(call.op.name_hint) for call in calls)
        return frozenset(name for name, count in times.items() if count > 1)

    def _parts(
        self, stages: Sequence[ModelStage], called: frozenset[str], sums: Mapping[Var, BatchSum]
    ) -> list[StageInputs]:
        uses = Counter(var for stage in stages for var in stage.weights)
        names = {v: n for n, v in (*self.params.data, *self.params.others)}
        for var in self.params.running:
            if uses[var] > 1:
                problem = f'"{names[var]}" is a running statistic of several stages'
                remedy = "Split elsewhere (cuts), or give each batch norm separate statistics."
                raise ModelError("DIST0354", problem, location="schedule", remedy=remedy)
        trained = frozenset(v for _, v in self.params.trained)
        shared = frozenset(v for v in trained if uses[v] > 1)
        unread = tuple(v for _, v in self.params.trained if not uses[v])
        parts, seen = [], set[Any]()
        meshes, ranks = self.schedule.meshes, self.schedule.rank_of
        for number, stage in enumerate(stages):
            first = not number
            counted = frozenset(v for v in stage.weights if v in trained and v not in seen)
            seen |= counted
            parts.append(
                StageInputs(
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
                    sums,
                )
            )
        return parts
