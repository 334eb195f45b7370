# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the tasks of stages one after the other into a single function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax
from tvm.relax import Binding, Expr, Var
from tvm.relax.op import add, reshape, strided_slice

from tvm_distir.core.analysis import dependencies
from tvm_distir.core.plan import (
    ACTIVATION,
    BACKWARD,
    FORWARD,
    GRADIENT,
    STREAM,
    PipelineAction,
    first_stream,
)
from tvm_distir.core.rewriting import (
    make_call,
    substitute,
    tuple_of,
    typed,
    variables,
)
from tvm_distir.transforms.stage_body import OF_UNIT, PASSED, StageBody, When


@dataclass
class Running:
    """State of a stage while its tasks are written.

    Attributes
    ----------
    body : StageBody
    rows : dict of str to Var
        Data of which each micro-batch takes its part.
    env : dict of Var to expression
        Parameters and what was made once.
    micros : dict of int to dict
        The values that arrived and that were made for each micro-batch in flight.
    ended : set of Var
        The values that were made after all of them.
    now : dict of Var to expression
        Parameters that were updated since, where every micro-batch has an update.
    """

    body: StageBody
    rows: dict[str, Var]
    env: dict[Var, Expr]
    micros: dict[int, dict[Var, Expr]] = field(default_factory=dict)
    ended: set[Var] = field(default_factory=set)
    now: dict[Var, Expr] = field(default_factory=dict)

    def micro(self, number: int) -> dict[Var, Var]:
        """Return the environment of a micro-batch."""
        if number not in self.micros:
            self.micros[number] = dict(self.env)
        return self.micros[number]


@dataclass(eq=False)
class UnitWriter:
    """Collector of bindings.

    Attributes
    ----------
    micro_batches : int
    splits : bool
        Whether gradients of weights are separate actions.
    going_on : callable
        A callable from a function that begins sums over micro-batches to the function that
        continues them (:class:`.sums.ContinuedAccumulation`).
    binds_tuples : bool
        Whether tuples among the arguments of calls are bound to variables: TVM's virtual machine
        frees what a variable holds, but no other value before the function ends.
    bindings : list of VarBinding
    stages : dict of int to Running
    """

    micro_batches: int
    splits: bool
    going_on: Callable[[ir.GlobalVar], ir.GlobalVar]
    binds_tuples: bool = False

    def __post_init__(self) -> None:
        self.builder = relax.BlockBuilder()
        self.bindings: list[Binding] = []
        self.stages: dict[int, Running] = {}
        self._rows: dict[Var, Var] = {}

    def emit(self, value: Expr, name: str) -> Var:
        """Bind a new value, with its type inferred."""
        return self.bind(self.builder.normalize(value), name)

    def bind(self, value: Expr, name: str, ty: Any = None) -> Var:
        """Bind a typed value."""
        var = relax.Var(name, value.ty if ty is None else ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def full_type(self, ty: ir.Type) -> ir.Type:
        """Return the type of data for all micro-batches, from that for one of them."""
        shape = [int(n) for n in ty.shape]
        return relax.TensorType([shape[0] * self.micro_batches, *shape[1:]], ty.dtype)

    def begin(
        self, number: int, body: StageBody, arguments: Mapping[str, Var], sliced: Collection[str]
    ) -> None:
        """Start a stage with the parameters of the full step; ``sliced`` ones have all rows."""
        inputs = {slot: arguments[slot] for slot in body.params if slot in arguments}
        rows = {slot: var for slot, var in inputs.items() if slot in sliced}
        env = {body.params[slot]: var for slot, var in inputs.items() if slot not in rows}
        self.stages[number] = stage = Running(body, rows, env)
        data = {body.params[slot]: var for slot, var in rows.items()}
        for binding in body.bindings[When.BEGIN]:
            counted = body.counted.get(binding.var)
            if counted is not None:
                stage.env[binding.var] = self.batch_sum(counted, data, stage.env)
            else:
                self._copy(binding, stage.env, "")

    def batch_sum(
        self, bindings: Sequence[Binding], data: Mapping[Var, Var], env: Mapping[Var, Expr]
    ) -> Var:
        """Write the sum over all micro-batches of what the last of some bindings computes.

        Parameters
        ----------
        bindings : sequence of Binding
        data : mapping of Var to Var
            Data with the rows of all micro-batches, by the variables with those of one.
        env : mapping of Var to expression
            What is the same for all micro-batches.
        """
        total = self.batch_term(bindings, data, env, 0)
        for micro in range(1, self.micro_batches):
            term = self.batch_term(bindings, data, env, micro)
            total = self.sum_of(total, term, f"{term.name}_sum")
        return total

    def batch_term(
        self,
        bindings: Sequence[Binding],
        data: Mapping[Var, Var],
        env: Mapping[Var, Expr],
        micro: int,
    ) -> Var:
        """Write the term of a micro-batch of a :meth:`batch_sum`."""
        read = {v for b in bindings for v in variables(b.value)}
        local = {**env, **{v: self._slice(full, micro) for v, full in data.items() if v in read}}
        for binding in bindings:
            self._copy(binding, local, f"_{micro}")
        return local[bindings[-1].var]

    def arrive(self, number: int, slot: str, micro: int, value: Expr) -> None:
        """Receive a value of another stage."""
        stage = self.stages[number]
        stage.micro(micro)[stage.body.params[slot]] = value

    def _slice(self, full: Var, micro: int) -> Var:
        """Slice the rows of a micro-batch from data: a row of every ``micro_batches``."""
        count, name = self.micro_batches, str(full.name)
        if count == 1:
            return full
        shape = list(full.ty.shape)
        rows, rest = int(shape[0]) // count, shape[1:]
        if full not in self._rows:
            self._rows[full] = self.emit(reshape(full, (rows, count, *rest)), f"{name}_rows")
        part = strided_slice(self._rows[full], [1], [micro], [micro + 1])
        part = self.emit(part, f"{name}_cut{micro}")
        return self.emit(reshape(part, (rows, *rest)), f"{name}_{micro}")

    def unit(self, number: int, unit: PipelineAction) -> None:
        """Write a task of a stage, and after a micro-batch's last task the sums so far.

        What it makes for a neighbour in the same function is there for it.
        """
        stage, when = self.stages[number], OF_UNIT[unit.phase]
        env = stage.micro(unit.micro)
        if when == When.FORWARD:
            self._forward_reads(stage, env, unit.micro)
        bindings = list(stage.body.bindings[when])
        if when == When.BACKWARD and not self.splits:
            bindings += stage.body.bindings[When.WEIGHT]
        for binding in bindings:
            self._copy(binding, env, f"_{unit.micro}")
        if when == When.FORWARD:
            for slot in stage.body.carried:
                result = stage.body.results[slot]
                stage.env[stage.body.params[slot]] = stage.env[result] = substitute(result, env)
        if when == (When.WEIGHT if self.splits else When.BACKWARD):
            self._sums(stage, env, unit.micro)
            if stage.body.each:
                self._update(stage, unit.micro)
        self._hand_on(number, unit)

    def _forward_reads(self, stage: Running, env: dict[Var, Expr], micro: int) -> None:
        """Reuse values that are not computed for every micro-batch."""
        params = stage.body.params
        env.update({params[slot]: self._slice(var, micro) for slot, var in stage.rows.items()})
        if stage.body.each:  # the weights as they are now
            env.update(stage.now)
            for binding in stage.body.bindings[When.BEGIN]:
                self._copy(binding, env, f"_{micro}")
        for slot, var in params.items():
            if slot.startswith(f"{STREAM}:"):
                env[var] = relax.const(first_stream(slot, micro), "int64")
        env.update({params[slot]: stage.env[params[slot]] for slot in stage.body.carried})

    def _sums(self, stage: Running, env: dict[Var, Expr], micro: int) -> None:
        """Write the sums over the micro-batches so far."""
        for binding in stage.body.bindings[When.ACCUMULATE]:
            call, so_far = substitute(binding.value, env), stage.env.get(binding.var)
            if so_far is not None and binding.var not in stage.body.each:
                before = [
                    self.bind(relax.TupleGetItem(so_far, k), f"sum{k}")
                    for k in range(len(binding.var.ty.fields))
                ]
                call = typed(ir.Call(self.going_on(call.op), [*before, *call.args]), call.ty)
            stage.env[binding.var] = self.bind(call, f"{binding.var.name}_{micro}", binding.var.ty)

    def _update(self, stage: Running, micro: int) -> None:
        """Write the update that follows a micro-batch, which later ones read."""
        env = {**stage.env, **stage.now}
        for binding in (*stage.body.bindings[When.BEGIN], *stage.body.bindings[When.END]):
            self._copy(binding, env, f"_{micro}")
        stage.env.update(env)
        stage.ended.update(b.var for b in stage.body.bindings[When.END])
        for slot, param in stage.body.params.items():
            if slot in stage.body.results and slot.partition(":")[0] not in PASSED:
                stage.now[param] = substitute(stage.body.results[slot], env)

    def made(self, number: int, slot: str, micro: int) -> Var:
        """Return the value that a task of a micro-batch computed for another stage."""
        stage = self.stages[number]
        return substitute(stage.body.results[slot], stage.micro(micro))

    def _hand_on(self, number: int, unit: PipelineAction) -> None:
        """Pass the results of a task to the neighbouring stage in the same function."""
        kind, ahead = (ACTIVATION, 1) if unit.phase == FORWARD else (GRADIENT, -1)
        other = number + ahead
        if unit.phase not in (FORWARD, BACKWARD) or other not in self.stages:
            return
        for slot in self.stages[number].body.results:
            if slot.startswith(f"{kind}:"):
                self.arrive(other, slot, unit.micro, self.made(number, slot, unit.micro))

    def end(self, number: int, returned: Sequence[str] | None = None) -> None:
        """Write the work after all micro-batches, for some results or all of them."""
        stage = self.stages[number]
        bindings = stage.body.bindings[When.END]
        slots = stage.body.results if returned is None else returned
        read = (v for slot in slots for v in variables(stage.body.results[slot]))
        needed = dependencies(read, bindings)
        for binding in bindings:
            if binding.var not in stage.ended and (returned is None or binding.var in needed):
                stage.ended.add(binding.var)
                self._copy(binding, stage.env, "")

    def result(self, number: int, slot: str) -> Var:
        """Return a result that is computed once."""
        stage = self.stages[number]
        return substitute(stage.body.results[slot], stage.env)

    def function(
        self, params: Sequence[Var], result: Expr, is_pure: bool, attrs: Mapping[str, Any]
    ) -> relax.Function:
        """Build the function of everything that was written."""
        body = typed(relax.SeqExpr([relax.BindingBlock(self.bindings)], result), result.ty)
        nodes = ir.make_node("ir.DictAttrs", **attrs)
        return relax.Function(list(params), body, result.ty, is_pure, nodes)

    def sum_of(self, first: Expr, second: Expr, name: str) -> Var:
        """Emit the sum of two terms."""
        return self.emit(add(first, second), name)

    def _copy(self, binding: Binding, env: dict[Var, Expr], suffix: str) -> None:
        value = substitute(binding.value, env)
        if isinstance(value, ir.Var):
            env[binding.var] = value
            return
        if self.binds_tuples and isinstance(value, ir.Call):
            args = [self._bound(arg, binding.var.name) for arg in value.args]
            value = make_call(value.op, args, value.attrs, value.ty_args, value.ty, value.span)
        env[binding.var] = self.bind(value, f"{binding.var.name}{suffix}", binding.var.ty)

    def _bound(self, arg: Any, name: str) -> Any:
        """Bind an argument that is a tuple to a variable."""
        if not isinstance(arg, relax.Tuple):
            return arg
        fields = tuple_of([self._bound(field, name) for field in arg.fields])
        return self.bind(fields, f"{name}_given")
