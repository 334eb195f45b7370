# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the program of a pipeline rank: tasks and messages in order, then the end."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax import Var

from tvm_distir.core.ir.attributes import IO_ATTR, TRAINING_ATTR, training_notes
from tvm_distir.core.plan import ACTIVATION, FETCH, GRADIENT, RUN, STORE, RankStep, plain_name
from tvm_distir.core.rewriting import field_of, tuple_of, typed
from tvm_distir.transforms.host_copies import host_copy
from tvm_distir.transforms.stage_body import StageBody

from .exchange_placements import NEXT_STAGE, MessageEndpoints, unfit
from .messages import RankMessages
from .relocation import RelocatedFunctions
from .unit_writer import UnitWriter


class RankProgram:
    """Program of a rank.

    Parameters
    ----------
    endpoints : MessageEndpoints
    renamed : RelocatedFunctions
        The functions.
    rank : int
    name : str
        The name of the entry.
    home : mapping of str to int
        The stage that gives each output of the full step.
    """

    def __init__(
        self,
        endpoints: MessageEndpoints,
        renamed: RelocatedFunctions,
        rank: int,
        name: str,
        home: Mapping[str, int],
    ) -> None:
        self.endpoints, self.rank, self.name, self.home = endpoints, rank, name, home
        self.pipeline, self.mesh = endpoints.pipeline, endpoints.meshes[rank]
        schedule = self.pipeline.schedule
        going_on = functools.partial(renamed.going_on, rank=rank)
        self.writer = UnitWriter(
            schedule.micro_batches, schedule.splits_backward, going_on, bool(schedule.offload)
        )
        self.messages = RankMessages(endpoints, rank, self.writer)
        mod, pipeline = renamed.module(rank), self.pipeline
        self.mod = mod
        self.bodies = {
            k: StageBody(mod, pipeline.stages[k], pipeline.varying)
            for k, owner in enumerate(endpoints.rank_of)
            if owner == rank
        }
        self.params: dict[str, Var] = {}
        self.inputs: list[dict[str, Any]] = []
        for number, body in self.bodies.items():
            for slot, var in body.params.items():
                if slot in pipeline.inputs and slot not in self.params:
                    self._declare(number, slot, var)

    def _declare(self, number: int, slot_name: str, var: Var) -> None:
        """Declare a parameter of the full step; micro-batched data have all rows."""
        placement, ty = self.endpoints.read(number, slot_name), var.ty
        name = plain_name(slot_name)
        item = placement.item(self.pipeline.inputs.index(slot_name), name, self.mesh)
        if slot_name in self.pipeline.sliced:
            parts = placement.parts(0, self.mesh)
            if parts * int(ty.shape[0]) != placement.shape[0]:
                raise unfit(
                    f"{self.name}/{slot_name}",
                    f"{placement.shape[0]} rows of a micro-batch are not divisible by {parts} "
                    "devices",
                    "Choose another batch, or fewer devices along it.",
                )
            item["shape"][0] *= self.pipeline.schedule.micro_batches
            ty = self.writer.full_type(ty)
        is_data = self.pipeline.inputs.index(slot_name) < self.pipeline.data_count
        item["role"] = "data" if is_data else "weight"
        self.params[slot_name] = relax.Var(plain_name(slot_name), ty)
        self.inputs.append(item)

    def run(self, steps: Sequence[RankStep]) -> relax.Function:
        """Write tasks and messages, then the work that runs once."""
        writer, pipeline = self.writer, self.pipeline
        self._check_neighbours()
        for number, body in self.bodies.items():
            writer.begin(number, body, self.params, pipeline.sliced)
        for step in steps:
            if step.kind == RUN:
                writer.unit(step.stage, step.unit)
            elif step.kind in (STORE, FETCH):
                move_stash(writer, step.kind, step.stage, step.unit.micro)
            else:
                self.messages.message(step)
        for total in pipeline.sums:
            self.messages.sum(total.name, total.stages)
        outputs, items = [], []
        for number, body in self.bodies.items():
            writer.end(number)
            for slot in body.results:
                if slot in pipeline.outputs and self.home[slot] == number:
                    placement = self.endpoints.made(number, slot)
                    number_of_output, title = pipeline.outputs.index(slot), plain_name(slot)
                    items.append(placement.item(number_of_output, title, self.mesh))
                    outputs.append(writer.result(number, slot))
        return self._function(outputs, items)

    def _check_neighbours(self) -> None:
        """Reject values that are read on this mesh in another placement than they are written."""
        endpoints = self.endpoints
        for number, body in self.bodies.items():
            for slot in body.carried:
                source_io, read = endpoints.made(number, slot), endpoints.read(number, slot)
                endpoints.agree(number, slot, source_io, read, "the next micro-batch")
            for kind, other in ((ACTIVATION, number + 1), (GRADIENT, number - 1)):
                for slot in body.results if other in self.bodies else ():
                    if slot.startswith(f"{kind}:"):
                        source_io, read = endpoints.made(number, slot), endpoints.read(other, slot)
                        endpoints.agree(number, slot, source_io, read, NEXT_STAGE)

    def _function(self, outputs: Sequence[Var], items: Sequence[dict[str, Any]]) -> relax.Function:
        result = outputs[0] if len(outputs) == 1 else tuple_of(outputs)
        io = {"mesh": self.rank, "inputs": self.inputs, "outputs": list(items)}
        attrs = {"global_symbol": self.name, IO_ATTR: io, TRAINING_ATTR: self._training()}
        return self.writer.function(list(self.params.values()), result, False, attrs)

    def _training(self) -> dict[str, Any]:
        """Return which result updates which input, and which inputs are states.

        Where weights are stashed, earlier micro-batches read the old ones still.
        """
        pipeline, notes = self.pipeline, {"states": dict[str, Any](), "host": dict[str, Any]()}
        for number in self.bodies:
            for key, states in notes.items():
                states.update(training_notes(self.mod[pipeline.stages[number].function], key))
        updated = pipeline.carried if pipeline.schedule.stash else pipeline.outputs[1:]
        stated = {key: states for key, states in notes.items() if states or key != "host"}
        return {"updated": {name: name for name in updated}, **stated}


def move_stash(writer: UnitWriter, kind: str, number: int, micro: int) -> None:
    """Write the copies of a stage's stash of a micro-batch.

    What is read behind a store is what it made, what is read behind a fetch what that made: the
    tensor on the device lives no longer than to the store.

    Parameters
    ----------
    writer : UnitWriter
        The writer of the rank's program.
    kind : str
        ``store`` or ``fetch``.
    number : int
        The number of the stage.
    micro : int
    """
    stage = writer.stages[number]
    env = stage.micro(micro)
    for var in stage.body.stash:
        value = env[var]
        if isinstance(value, ir.Var) and value not in stage.rows.values():
            env[var] = _moved(writer, kind, value, f"{var.name}_{micro}")


def _moved(writer: UnitWriter, kind: str, value: Any, name: str) -> Any:
    if isinstance(value.ty, relax.TupleType):
        fields = [
            _moved(writer, kind, writer.bind(field_of(value, k), f"{name}_{k}"), f"{name}_{k}")
            for k in range(len(value.ty.fields))
        ]
        return writer.bind(typed(relax.Tuple(fields), value.ty), name)
    return writer.emit(host_copy(kind, [value]), f"{name}_{'back' if kind == FETCH else 'host'}")
