# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run all stages of a pipelined step sequentially on a single device, as its reference."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax
from tvm.relax import Expr, Var

from tvm_distir.core.ir.attributes import (
    INPUTS_ATTR,
    NUM_INPUT_ATTR,
    PARAM_NAMES_ATTR,
    PIPELINE_ATTR,
)
from tvm_distir.core.plan import PART, TOTAL, Pipeline, Times, plain_name, timeline
from tvm_distir.core.rewriting import tuple_of
from tvm_distir.core.rewriting.native import is_pure
from tvm_distir.support import LoweringError
from tvm_distir.transforms.stage_body import StageBody

from .sums import ContinuedAccumulation
from .unit_writer import UnitWriter


def run_in_turn(mod: ir.IRModule) -> ir.IRModule:
    """Write ``main`` of a pipelined step at level 1; other modules are unchanged.

    Raises
    ------
    LoweringError
        DIST0512 when the module is already distributed.
    """
    pipeline = Pipeline.of(mod)
    if pipeline is None:
        return mod
    if any(type(p.ty) is not relax.TensorType for p in mod[pipeline.functions[0]].params):
        problem = "the module is already distributed"
        remedy = "Pass the step that train_step returns."
        raise LoweringError("DIST0512", problem, location=pipeline.functions[0], remedy=remedy)
    schedule, sums = pipeline.schedule, ContinuedAccumulation()
    writer = UnitWriter(
        schedule.micro_batches, schedule.splits_backward, lambda gv: sums.of(mod, gv)
    )
    main = _InTurn(mod, pipeline, writer).run()
    others = {gv: fn for gv, fn in mod.functions.items() if gv.name_hint not in pipeline.functions}
    attrs = {str(key): value for key, value in mod.attrs.items() if key != PIPELINE_ATTR}
    return ir.IRModule(
        {"main": main, **others, **dict(sums.functions.values())},
        attrs=ir.make_node("ir.DictAttrs", **attrs),
    )


class _InTurn:
    """Writer of the sequential function."""

    def __init__(self, mod: ir.IRModule, pipeline: Pipeline, writer: UnitWriter) -> None:
        self.pipeline, self.writer = pipeline, writer
        self.bodies = [StageBody(mod, note, pipeline.varying) for note in pipeline.stages]
        self.params: dict[str, Var] = {}
        for body in self.bodies:
            for slot, var in body.params.items():
                if slot in pipeline.inputs and slot not in self.params:
                    ty = writer.full_type(var.ty) if slot in pipeline.sliced else var.ty
                    self.params[slot] = relax.Var(plain_name(slot), ty)

    def run(self) -> relax.Function:
        """Write all tasks, then all sums over stages, then the updates."""
        pipeline, writer = self.pipeline, self.writer
        for number, body in enumerate(self.bodies):
            writer.begin(number, body, self.params, pipeline.sliced)
        schedule = pipeline.schedule
        for event in timeline(schedule.orders, schedule.rank_of, Times()):
            writer.unit(event.stage, event.unit)
        for term in pipeline.sums:
            total: Any = None
            for number in term.stages:
                writer.end(number, [f"{PART}:{term.name}"])
                part = writer.result(number, f"{PART}:{term.name}")
                title = f"{plain_name(term.name)}_total"
                total = part if total is None else writer.sum_of(total, part, title)
            for number in term.stages:
                stage = writer.stages[number]
                stage.env[stage.body.params[f"{TOTAL}:{term.name}"]] = total
        outputs: dict[str, Expr] = {}
        for number, body in enumerate(self.bodies):
            writer.end(number)
            for slot in body.results:
                if slot in pipeline.outputs and slot not in outputs:
                    outputs[slot] = writer.result(number, slot)
        return self._function([outputs[slot] for slot in pipeline.outputs])

    def _function(self, outputs: list[Var]) -> relax.Function:
        params = [self.params[name] for name in self.pipeline.inputs]
        result = tuple_of(outputs)
        data = self.pipeline.inputs[: self.pipeline.data_count]
        attrs = {
            "global_symbol": "main",
            PARAM_NAMES_ATTR: list(self.pipeline.inputs),
            INPUTS_ATTR: list(data),
            NUM_INPUT_ATTR: len(data),
        }
        pure = all(is_pure(b.value) for b in self.writer.bindings)
        return self.writer.function(params, result, pure, attrs)
