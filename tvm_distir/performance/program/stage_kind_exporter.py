# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Export the function of a stage kind as phases, each a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from tvm import ir, relax
from tvm.relax.op import add, reshape, strided_slice

from tvm_distir.core.analysis import dependencies
from tvm_distir.core.ir import TENSOR_TYPES, unpack
from tvm_distir.core.ops import static_tensor
from tvm_distir.core.plan import PART, STREAM, TOTAL, Pipeline, first_stream, plain_name
from tvm_distir.core.rewriting import substitute, typed, variables
from tvm_distir.support import SimulationError, update_type
from tvm_distir.transforms import StageBody, StageInterface, UnitWriter, When

from .function_exporter import FunctionExporter
from .parts import Function, Value
from .stage_kind import (
    ACCUMULATE,
    ADD,
    BACKWARD,
    BEGIN,
    COUNT,
    COUNT_NEXT,
    END,
    FORWARD,
    NEXT,
    ROWS,
    WEIGHT,
    Phase,
    StageKind,
)
from .stage_kind import PART as PART_PHASE
from .sums import next_sums
from .training import state_kinds
from .trees import Tree, leaves, shaped

_WHENS = {
    BEGIN: When.BEGIN,
    FORWARD: When.FORWARD,
    BACKWARD: When.BACKWARD,
    WEIGHT: When.WEIGHT,
    ACCUMULATE: When.ACCUMULATE,
}


class StageKindExporter:
    """Exporter of the phases of a stage kind.

    Parameters
    ----------
    mod : IRModule
        The module, at level 5.
    pipeline : Pipeline
    number : int
        The number of the first stage of the kind.
    ports : StageInterface
        The placements of its parameters and results.

    Attributes
    ----------
    exporters : list of FunctionExporter
        The exporters of its phases, for the functions that they call.
    functions : dict of str to Function
        The phases.
    made : dict of str to relax.Function
        Additional functions that the phases call.
    """

    def __init__(
        self, mod: ir.IRModule, pipeline: Pipeline, number: int, ports: StageInterface
    ) -> None:
        self.mod, self.pipeline, self.ports = mod, pipeline, ports
        self.note = pipeline.stages[number]
        self.body = StageBody(mod, self.note, pipeline.varying)
        self.exporters: list[FunctionExporter] = []
        self.functions: dict[str, Function] = {}
        self.exported: dict[str, relax.Function] = {}
        self.slots: list[Value] = []
        self.trees: dict[Any, Tree] = {}
        micros = pipeline.schedule.micro_batches
        self.full = {
            slot: relax.Var(var.name, self._writer().full_type(var.ty))
            for slot, var in self.body.params.items()
            if slot in pipeline.sliced and micros > 1
        }
        self.phases: list[Phase] = []
        self.states = state_kinds(mod[self.note.function])
        self.position_of = {slot: i for i, slot in enumerate(pipeline.inputs)}
        self.sums = [s.name for s in pipeline.sums if number in s.stages]
        self.totals: dict[str, Any] = {}  # the sum that each phase of COUNT_NEXT adds to
        self.groups = self._groups()
        self.read_by: dict[Any, set[str]] = {}
        for name, bindings in self.groups.items():
            for binding in bindings:
                for var in variables(binding.value):
                    self.read_by.setdefault(var, set()).add(name)
        for value in self.body.results.values():
            for var in variables(value):
                self.read_by.setdefault(var, set()).add("")

    def run(self) -> StageKind:
        """Export all phases, in the order in which they are run."""
        outputs = set(self.pipeline.outputs)
        params = [
            slot
            for number, (slot_name, var) in enumerate(self.body.params.items())
            for slot in self._param(number, slot_name, var)
        ]
        for name, bindings in self.groups.items():
            if name == FORWARD:
                self._rows()
            if name.startswith(COUNT_NEXT):
                slots = leaves(self.trees[self.totals[name]])
                self._export(name, bindings, [bindings[-1].var], [slots])
            elif bindings:
                self._phase(name, bindings)
            if name == ACCUMULATE and bindings and self.pipeline.schedule.micro_batches > 1:
                self._next(bindings)
            if name.startswith(PART_PHASE):
                self._add(name.partition(":")[2])
        return StageKind(
            self.note.function,
            tuple(self.slots),
            tuple(params),
            tuple(self.slot(w) for w in self.note.results if w in outputs),
            tuple(
                (self.slot(f"{PART}:{name}"), self.param(f"{TOTAL}:{name}")) for name in self.sums
            ),
            tuple(
                (self.param(slot_name), self.slot(slot_name))
                for slot_name in self.body.params
                if slot_name in outputs and slot_name in self.body.results
            ),
            tuple(self.phases),
        )

    def slot(self, slot_name: str) -> int:
        """Return the slot of a result."""
        (slot,) = leaves(self._tree(self.body.results[slot_name]))
        return slot

    def param(self, slot_name: str) -> int:
        """Return the slot of a parameter."""
        (slot,) = leaves(self.trees[self.body.params[slot_name]])
        return slot

    def _groups(self) -> dict[str, list[Any]]:
        """Return the bindings of each phase; final ones are divided by the sums that need them."""
        streams = {
            var: relax.const(first_stream(slot, 0), "int64")
            for slot, var in self.body.params.items()
            if slot.startswith(f"{STREAM}:")
        }
        groups = {
            name: [_reading(b, streams) for b in self.body.bindings[when]]
            for name, when in _WHENS.items()
        }
        begin = groups.pop(BEGIN)
        groups = {**self._counts(begin), BEGIN: begin, **groups}
        rest = list(self.body.bindings[When.END])
        for number, name in enumerate(self.sums):
            needed = dependencies(variables(self.body.results[f"{PART}:{name}"]), rest)
            groups[f"{PART_PHASE}:{number}"] = [b for b in rest if b.var in needed]
            rest = [b for b in rest if b.var not in needed]
        groups[END] = rest
        return groups

    def _counts(self, begin: list[Any]) -> dict[str, list[Any]]:
        """Move the sums over the whole batch, and what they read, to separate phases.

        The term of the first micro-batch is a phase, and the sum with that of another one, which
        is exported once, whatever the number of micro-batches.
        """
        data = {self.body.params[slot]: full for slot, full in self.full.items()}
        groups: dict[str, list[Any]] = {}
        for number, total in enumerate([b.var for b in begin if b.var in self.body.counted]):
            chain = self.body.counted[total]
            needed = dependencies((v for b in chain for v in variables(b.value)), begin)
            before = [b for b in begin if b.var in needed]
            begin[:] = [b for b in begin if b.var not in needed | {total}]
            first, following = (self._writer() for _ in range(2))
            first.batch_term(chain, data, {}, 0)
            *bindings, last = first.bindings
            groups[f"{COUNT}:{number}"] = [
                *before, *bindings, relax.VarBinding(total, last.value)
            ]  # fmt: skip
            if self.pipeline.schedule.micro_batches > 1:
                following.sum_of(total, following.batch_term(chain, data, {}, 1), "sum")
                groups[f"{COUNT_NEXT}:{number}"] = following.bindings
                self.totals[f"{COUNT_NEXT}:{number}"] = total
        return groups

    def _writer(self) -> UnitWriter:
        return UnitWriter(self.pipeline.schedule.micro_batches, False, lambda gv: gv)

    def _declare(self, ty: Any, name: str, **extra: Any) -> Tree:
        """Add the slots of a type."""
        if isinstance(ty, relax.TupleType):
            fields = enumerate(unpack(ty.fields))
            return tuple(self._declare(field, f"{name}.{i}", **extra) for i, field in fields)
        if type(ty) not in TENSOR_TYPES:
            return None
        tensor = static_tensor(ty)
        if tensor is None:
            raise self._refuse(
                f"the shape of {name} is not known before the run", "Bind its symbolic dims."
            )
        self.slots.append(Value(name, *tensor, **extra))
        return len(self.slots) - 1

    def _param(self, number: int, slot: str, var: Any) -> list[int]:
        """Declare a parameter; slots of results of the full step, and of data with all rows."""
        if slot.startswith(f"{STREAM}:"):
            return []  # a number of each micro-batch, as good as any other
        if slot not in self.position_of:
            self.trees[var] = self._declare(var.ty, str(var.name))
            return []
        layout = self.ports.inputs[number]
        data = self.position_of[slot] < self.pipeline.data_count
        shown, whole_shape = self.full.get(slot, var), list(layout.shape)
        if slot in self.full:
            whole_shape[0] *= self.pipeline.schedule.micro_batches
        content = "input" if data else self.states.get(plain_name(slot), "weight")
        self.trees[shown] = self._declare(
            shown.ty, str(var.name), role=content,
            whole_shape=tuple(whole_shape), placement=layout.placement,
        )  # fmt: skip
        return leaves(self.trees[shown])

    def _rows(self) -> None:
        """Export how the rows of a micro-batch are taken from the data."""
        builder, bindings = relax.BlockBuilder(), list[Any]()

        def bind(value: Any, var: Any = None) -> Any:
            value = builder.normalize(value)
            var = relax.Var("rows", value.ty) if var is None else var
            bindings.append(relax.VarBinding(var, value))
            return var

        micros, results = self.pipeline.schedule.micro_batches, []
        for slot, full in self.full.items():
            var = self.body.params[slot]
            shape = [int(n) for n in var.ty.shape]
            rows = bind(reshape(full, (shape[0], micros, *shape[1:])))
            part = bind(strided_slice(rows, [1], [0], [1]))
            results.append(bind(reshape(part, shape), var))
        if results:
            self._export(ROWS, bindings, results)

    def _phase(self, name: str, bindings: Sequence[Any]) -> None:
        """Export bindings, whose results are the values that others read."""
        others = {b.var: self.read_by.get(b.var, set()) - {name} for b in bindings}
        results = [var for var, readers in others.items() if readers or name == ACCUMULATE]
        self._export(name, bindings, results)

    def _next(self, bindings: Sequence[Any]) -> None:
        """Export the sums that go on."""
        sums = next_sums(self.mod, bindings, self.body.each)
        for var, before in sums.before.items():
            self.trees[before] = self.trees[var]
        self.exported.update({str(gv.name_hint): fn for gv, fn in sums.functions.items()})
        self.mod = self.mod.clone()
        self.mod.update(ir.IRModule(sums.functions))
        targets = [leaves(self.trees[b.var]) for b in bindings]
        self._export(NEXT, sums.bindings, sums.results, targets)

    def _add(self, number: str) -> None:
        """Export the accumulation of the stage's term into the running sum."""
        name = self.sums[int(number)]
        part, total = self.body.results[f"{PART}:{name}"], self.body.params[f"{TOTAL}:{name}"]
        value = relax.BlockBuilder().normalize(add(total, part))
        var = relax.Var("sum", value.ty)
        self._export(
            f"{ADD}:{number}", [relax.VarBinding(var, value)], [var], [leaves(self.trees[total])]
        )

    def _export(
        self,
        name: str,
        bindings: Sequence[Any],
        results: Sequence[Any],
        targets: Sequence[Sequence[int]] = (),
    ) -> None:
        """Export a phase; ``targets`` are the slots of its results where these exist already."""
        bound = {b.var for b in bindings}
        reads = dict.fromkeys(v for b in bindings for v in variables(b.value) if v not in bound)
        result = typed(relax.Tuple(list(results)), relax.TupleType([v.ty for v in results]))
        body = relax.SeqExpr([relax.BindingBlock(list(bindings))], result)
        update_type(body, result.ty)
        full = f"{self.note.function}.{name}"
        fn = relax.Function(list(reads), body, result.ty, False)
        exporter = FunctionExporter(self.mod, full, fn)
        exported = exporter.run(self.ports.mesh, None)
        inputs = [slot for var in reads for slot in leaves(self.trees[var])]
        slot_of = dict(zip(exported.params, inputs, strict=True))
        outputs: list[int] = []
        used_results: list[int] = []
        result_numbers = iter(exported.results)
        slots_left = iter([slot for slots in targets for slot in slots])
        for var in results:
            slots = []
            for index in [next(result_numbers) for _ in leaves(shaped(var.ty, count()))]:
                slot = next(slots_left) if targets else slot_of.get(index)
                if slot is None:
                    value = exported.values[index]
                    content = "host" if value.is_on_host else "activation"
                    self.slots.append(Value(*value[:4], content))
                    slot = len(self.slots) - 1
                if targets or index not in slot_of:
                    slot_of[index] = slot
                    outputs.append(slot)
                    used_results.append(index)
                slots.append(slot)
            self.trees[var] = shaped(var.ty, iter(slots))
        if not exported.ops and not outputs:
            return  # parts of what an earlier phase made
        self.exporters.append(exporter)
        self.functions[full] = Function(
            exported.mesh, exported.params, exported.ops, tuple(used_results), exported.values
        )
        self.phases.append(Phase(name, full, tuple(inputs), tuple(outputs)))

    def _tree(self, expr: Any) -> Tree:
        if isinstance(expr, relax.TupleGetItem):
            return self._tree(expr.tuple_value)[int(expr.index)]
        if isinstance(expr, relax.Tuple):
            return tuple(self._tree(field) for field in expr.fields)
        if expr in self.trees:
            return self.trees[expr]
        raise self._refuse("a result is not a variable", "Normalize the module.")

    def _refuse(self, slot: str, remedy: str) -> SimulationError:
        return SimulationError("DIST0714", slot, location=self.note.function, remedy=remedy)


def _reading(binding: Any, constants: Mapping[Any, Any]) -> Any:
    """Return a binding that reads constants instead of variables."""
    if not any(var in constants for var in variables(binding.value)):
        return binding
    return relax.VarBinding(binding.var, substitute(binding.value, constants))
