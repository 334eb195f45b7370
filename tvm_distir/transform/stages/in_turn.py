# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""All stages on one device, unit after unit: what a step in stages means."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from ...errors import LoweringError
from ...ir import INPUTS_ATTR, NUM_INPUT_ATTR, PARAM_NAMES_ATTR, PIPELINE_ATTR
from ...ir.rewrite import is_pure, typed
from ...plan import plain_name
from ...schedules import FORWARD, PART, TOTAL, Pipeline, Times, timeline
from .body import StageBody
from .writer import UnitWriter, going_on


def run_in_turn(mod: ir.IRModule) -> ir.IRModule:
    """Write ``main`` of a step in stages, at level 1; other modules are returned as they are.

    Raises
    ------
    LoweringError
        DIST0512 when the module is distributed already.
    """
    pipeline = Pipeline.of(mod)
    if pipeline is None:
        return mod
    functions = {str(gv.name_hint): fn for gv, fn in mod.functions.items()}
    if any(type(p.ty) is not relax.TensorType for p in mod[pipeline.functions[0]].params):
        raise LoweringError(
            "DIST0512",
            "the module is distributed already",
            place=pipeline.functions[0],
            remedy="Give the step as train_step makes it.",
        )
    variables = {str(gv.name_hint): gv for gv in mod.functions}
    made: dict[str, ir.GlobalVar] = {}

    def next_sums(gv: ir.GlobalVar) -> ir.GlobalVar:
        name = f"{gv.name_hint}_on"
        if name not in made:
            fn = going_on(functions[str(gv.name_hint)], name)
            made[name] = ir.GlobalVar(name)
            relax.expr._update_type(made[name], fn.ty)
            functions[name], variables[name] = fn, made[name]
        return made[name]

    schedule = pipeline.schedule
    writer = UnitWriter(schedule.micro_batches, schedule.splits_backward, next_sums)
    main = _InTurn(mod, pipeline, writer).run()
    kept = {n: fn for n, fn in functions.items() if n not in pipeline.functions}
    out = ir.IRModule({"main": main, **{variables[n]: fn for n, fn in kept.items()}})
    for key, value in (mod.attrs or {}).items():
        if key != PIPELINE_ATTR:
            out = out.with_attr(key, value)
    return out


class _InTurn:
    """Writes the one function."""

    def __init__(self, mod: ir.IRModule, pipeline: Pipeline, writer: UnitWriter) -> None:
        self.pipeline, self.writer = pipeline, writer
        self.bodies = [StageBody(mod, note, pipeline.varying) for note in pipeline.stages]
        self.params: dict[str, Any] = {}
        for body in self.bodies:
            for what, var in body.params.items():
                if what in pipeline.inputs and what not in self.params:
                    self.params[what] = relax.Var(plain_name(what), self._whole(what, var.ty))

    def _whole(self, what: str, ty: Any) -> Any:
        if what not in self.pipeline.sliced:
            return ty
        shape = [int(n) for n in ty.shape]
        shape[0] *= self.pipeline.schedule.micro_batches
        return relax.TensorType(shape, ty.dtype)

    def run(self) -> relax.Function:
        """Write all units, then all sums over stages, then the updates."""
        pipeline, writer = self.pipeline, self.writer
        sliced = set(pipeline.sliced)
        given = {what: var for what, var in self.params.items() if what not in sliced}
        for number, body in enumerate(self.bodies):
            writer.begin(number, body, given)
        schedule = pipeline.schedule
        for one in timeline(schedule.orders, schedule.rank_of, Times()):
            if one.unit.phase == FORWARD:
                for what in [w for w in self.bodies[one.stage].params if w in sliced]:
                    writer.slice(one.stage, what, one.unit.micro, self.params[what])
            writer.unit(one.stage, one.unit)
            ahead = 1 if one.unit.phase == FORWARD else -1
            writer.neighbours(one.stage, one.unit, one.stage + ahead)
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
        outputs: dict[str, Any] = {}
        for number, body in enumerate(self.bodies):
            writer.end(number)
            for what in body.results:
                if what in pipeline.outputs and what not in outputs:
                    outputs[what] = writer.result(number, what)
        return self._function([outputs[what] for what in pipeline.outputs])

    def _function(self, outputs: list[Any]) -> relax.Function:
        params = [self.params[name] for name in self.pipeline.inputs]
        result = typed(relax.Tuple(outputs), relax.TupleType([v.ty for v in outputs]))
        body = relax.SeqExpr([relax.BindingBlock(self.writer.bindings)], result)
        relax.expr._update_type(body, result.ty)
        fn = relax.Function(
            params, body, result.ty, all(is_pure(b.value) for b in self.writer.bindings)
        )
        data = self.pipeline.inputs[: self.pipeline.data_count]
        attrs = {
            "global_symbol": "main",
            PARAM_NAMES_ATTR: list(self.pipeline.inputs),
            INPUTS_ATTR: list(data),
            NUM_INPUT_ATTR: len(data),
        }
        for key, value in attrs.items():
            fn = fn.with_attr(key, value)
        return fn
