# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The program of one rank of a pipeline: units and messages in order, then what is done once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from ...errors import LoweringError
from ...ir import IO_ATTR
from ...ir.rewrite import typed
from ...plan import plain_name
from ...schedules import ACTIVATION, FORWARD, GRADIENT, RUN, Step
from .body import StageBody
from .messages import Messages, Wires
from .places import Place
from .renamed import Renamed
from .writer import UnitWriter


def unfit(place: str, what: str, remedy: str) -> LoweringError:
    """Error about stages that do not fit together."""
    return LoweringError("DIST0512", what, place=place, remedy=remedy)


class Program:
    """What one rank runs.

    Parameters
    ----------
    wires : Wires
    renamed : Renamed
        The functions.
    rank : int
    name : str
        Of the entry.
    home : mapping of str to int
        The stage that gives each output of the whole step.
    """

    def __init__(
        self, wires: Wires, renamed: Renamed, rank: int, name: str, home: Mapping[str, int]
    ) -> None:
        self.wires, self.rank, self.name, self.home = wires, rank, name, home
        self.pipeline, self.mesh = wires.pipeline, wires.meshes[rank]
        schedule = self.pipeline.schedule
        self.writer = UnitWriter(
            schedule.micro_batches,
            schedule.splits_backward,
            lambda gv: renamed.going_on(gv, rank),
        )
        self.messages = Messages(wires, rank, self.writer)
        mod, pipeline = renamed.module(rank), self.pipeline
        self.bodies = {
            k: StageBody(mod, pipeline.stages[k], pipeline.varying)
            for k, owner in enumerate(wires.rank_of)
            if owner == rank
        }
        self.params: dict[str, Any] = {}
        self.inputs: list[dict[str, Any]] = []
        for number, body in self.bodies.items():
            for what, var in body.params.items():
                if what in pipeline.inputs and what not in self.params:
                    self._declare(number, what, var)

    def _declare(self, number: int, what: str, var: Any) -> None:
        """A parameter of the whole step; of data that are cut into micro-batches all rows."""
        place, ty = self.wires.read(number, what), var.ty
        item = place.item(self.pipeline.inputs.index(what), plain_name(what))
        if what in self.pipeline.sliced:
            count = self.pipeline.schedule.micro_batches
            shape = [int(n) for n in ty.shape]
            if place.parts(0, self.mesh) * shape[0] != place.shape[0]:
                raise unfit(
                    f"{self.name}/{what}",
                    f"{place.shape[0]} rows of a micro-batch do not divide by "
                    f"{place.parts(0, self.mesh)} devices",
                    "Choose another batch, or fewer devices along it.",
                )
            shape[0] *= count
            item["shape"][0] *= count
            ty = relax.TensorType(shape, ty.dtype)
        is_data = self.pipeline.inputs.index(what) < self.pipeline.data_count
        item["role"] = "data" if is_data else "weight"
        self.params[what] = relax.Var(plain_name(what), ty)
        self.inputs.append(item)

    def run(self, steps: Sequence[Step]) -> relax.Function:
        """Write units and messages, then what is done once."""
        writer, pipeline = self.writer, self.pipeline
        rows = set(pipeline.sliced)
        given = {what: var for what, var in self.params.items() if what not in rows}
        for number, body in self.bodies.items():
            for what in body.carried:
                made, read = self.wires.made(number, what), self.wires.read(number, what)
                self._agree(number, what, made, read, "the next micro-batch")
            writer.begin(number, body, given)
        for step in steps:
            if step.kind == RUN:
                self._run(step, rows)
            else:
                self.messages.message(step)
        for one in pipeline.sums:
            self.messages.sum(one.name, one.stages)
        outputs, items = [], []
        for number, body in self.bodies.items():
            writer.end(number)
            for what in body.results:
                if what in pipeline.outputs and self.home[what] == number:
                    place = self.wires.made(number, what)
                    items.append(place.item(pipeline.outputs.index(what), plain_name(what)))
                    outputs.append(writer.result(number, what))
        return self._function(outputs, items)

    def _run(self, step: Step, rows: set[str]) -> None:
        writer, number, unit = self.writer, step.stage, step.unit
        if unit.phase == FORWARD:
            for what in [w for w in self.bodies[number].params if w in rows]:
                writer.slice(number, what, unit.micro, self.params[what])
        writer.unit(number, unit)
        other = number + 1 if unit.phase == FORWARD else number - 1
        if other in self.bodies:
            self._fits(number, other, unit.phase)
            writer.neighbours(number, unit, other)

    def _fits(self, number: int, other: int, phase: str) -> None:
        """Refuse neighbours on one mesh that do not agree on where a value lies."""
        kind = ACTIVATION if phase == FORWARD else GRADIENT
        for what in self.bodies[number].results:
            if not what.startswith(f"{kind}:"):
                continue
            made = self.wires.made(number, what)
            read = self.wires.read(other, what)
            self._agree(number, what, made, read, "the next stage of the same mesh")

    def _agree(self, number: int, what: str, made: Place, read: Place, reader: str) -> None:
        """Refuse a value that is not read where it is made."""
        if made.labels(self.mesh) != read.labels(self.mesh):
            raise unfit(
                f"{self.bodies[number].note.function}/{what}",
                f'it is made "{made.placement}" and read "{read.placement}" by {reader}',
                "Place both alike in the plan.",
            )

    def _function(self, outputs: Sequence[Any], items: Sequence[dict[str, Any]]) -> relax.Function:
        result = (
            outputs[0]
            if len(outputs) == 1
            else typed(relax.Tuple(list(outputs)), relax.TupleType([v.ty for v in outputs]))
        )
        body = relax.SeqExpr([relax.BindingBlock(self.writer.bindings)], result)
        relax.expr._update_type(body, result.ty)
        params = list(self.params.values())
        fn = relax.Function(params, body, result.ty, False)
        io = {"mesh": self.rank, "inputs": self.inputs, "outputs": list(items)}
        return fn.with_attr("global_symbol", self.name).with_attr(IO_ATTR, io)


__all__ = ["Program", "unfit"]
