# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the order problem of a module: which dims have an order of axes, and what ties them.

A dim that several mesh axes shard has an order of these axes. Calls tie the dims that walk the
same factor, functions their arguments and results, and a step the weights that it reads and
updates. Redistributions move values from one order to another.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from tvm_distir.core.analysis import PartialState
from tvm_distir.core.ir import (
    FieldLeaves,
    handle,
    is_private,
    named_leaves,
    relax_functions,
    unpack,
    value_types,
)
from tvm_distir.core.ir.attributes import (
    PIPELINE_ATTR,
    REPEAT_ATTR,
    VALUE_MARK,
    stated_orders,
    training_notes,
)
from tvm_distir.core.ir.operators import COMPUTE_OPS
from tvm_distir.core.ops import call_sharding, is_packed_call
from tvm_distir.core.plan import (
    ACTIVATION,
    GRADIENT,
    PART,
    TOTAL,
    Pipeline,
    StageNote,
    plain_name,
)
from tvm_distir.core.rewriting import (
    VARIABLES,
    called_name,
    callees_first,
    is_redistribute,
    tensor_args,
)
from tvm_distir.core.rewriting.native import (
    CAST,
    FUNCTION,
    FUNCTION_CALL,
    IF,
    OP_CALL,
    OTHER_CALL,
    FunctionView,
    read_functions,
    read_module,
)
from tvm_distir.support import GenericConst

from .ordered_dims import NONE, Leaves, OrderedDims, PlacedTensor

Ties = list[list[tuple[int, int]]]
"""The dims of operands and results that walk each factor of a call: positions and dims. Empty where
no dim of a call has an order."""
CALLS = (OP_CALL, FUNCTION_CALL, OTHER_CALL)


@dataclass(frozen=True)
class Move:
    """A redistribution: between two tensors, partial along some axes of the family before it."""

    function: str
    source: PlacedTensor
    partial: frozenset[int]
    target: PlacedTensor


class OrderProblem:
    """The dims of a module that several mesh axes shard, and the moves between them.

    Parameters
    ----------
    mod : IRModule
        Level 3.

    Attributes
    ----------
    functions : list of (GlobalVar, Function)
        The functions, callees first.
    readings : mapping of str to FunctionView
        The functions by name, as they are read.
    dims : OrderedDims
    leaves : mapping of handles of variables to their tensors
        Those of variables of which a dim has an order.
    constants : mapping of handles of constants to their tensors
    moves : list of Move
        Those from or to a tensor of which a dim has an order.
    """

    def __init__(self, mod: ir.IRModule) -> None:
        self.mod = mod
        self.dims = OrderedDims()
        self.moves: list[Move] = []
        self.leaves: dict[int, Leaves] = {}
        self.constants: dict[int, PlacedTensor | None] = {}
        self.results: dict[str, Leaves] = {}
        self.runs: dict[str, int] = {}
        self._ordered: dict[int, bool] = {}  # by number of a type
        self._ties: dict[int, Ties] = {}  # by class of bindings
        self._terms: PartialState | None = None
        self._slots: dict[str, PlacedTensor | None] = {}
        self._fields = FieldLeaves(value_types)
        self.functions: list[tuple[ir.GlobalVar, relax.Function]] = []
        known = relax_functions(mod)
        views = read_functions([fn for _, fn in known])
        self.readings = {str(gv.name_hint): view for (gv, _), view in zip(known, views)}
        marks = [any(map(self._has_order, view.variables, view.types)) for view in views]
        if not any(marks):
            return
        callees = {name: view.callees for name, view in self.readings.items()}
        self.functions = callees_first(mod, callees)
        for gv, fn in self.functions:
            self._function(str(gv.name_hint), fn)
        pipeline = Pipeline.of(mod)
        if pipeline is not None:
            for stage, note in enumerate(pipeline.stages):
                self._stage(stage, note)
        self._count(callees)

    def of(self, expr: Any) -> Leaves:
        """Return the tensors of an expression; None for values without a placement."""
        kind = type(expr)
        if kind is relax.Tuple:
            return [leaf for field in unpack(expr.fields) for leaf in self.of(field)]
        if kind is relax.TupleGetItem:
            full, leaves = self.of(expr.tuple_value), self._fields.of(expr)
            return full[leaves.start : leaves.stop]
        key = handle(expr)
        if key in self.leaves:
            return self.leaves[key]
        if kind is GenericConst:
            if key not in self.constants:
                self.constants[key] = self.dims.tensor(expr.ty)
            return [self.constants[key]]
        if kind in VARIABLES:
            return self.dims.tensors(expr.ty)
        return [None] * len(value_types(expr.ty))

    def _has_order(self, var: relax.Var, number: int) -> bool:
        """Return whether a dim of a variable, whose type has a number, has an order."""
        if number not in self._ordered:
            leaves = self.dims.tensors(var.ty)
            self._ordered[number] = any(leaf is not None and leaf.has_order for leaf in leaves)
        return self._ordered[number]

    def _bind(self, var: relax.Var) -> Leaves:
        self.leaves[handle(var)] = self.dims.tensors(var.ty)
        return self.leaves[handle(var)]

    def _function(self, name: str, fn: relax.Function) -> None:
        if {IF, FUNCTION}.intersection(self.readings[name].kinds):
            read_module(self.mod)  # says which binding has no distributed form
        self._body(name, self.readings[name])
        self.results[name] = self.of(fn.body.body)
        if stated_orders(fn):
            self._stated(name, fn)
        if not is_private(fn) and PIPELINE_ATTR not in (self.mod.attrs or {}):
            self._updated(fn, self.results[name])

    def _body(self, name: str, reading: FunctionView) -> None:
        """Read the bindings of a function in which something has an order."""
        variables, first = reading.variables, reading.params
        ordered = list(map(self._has_order, variables, reading.types))
        for var in itertools.compress(variables[:first], ordered):
            self._bind(var)
        rows = zip(reading.kinds, reading.like, reading.uses, reading.values)
        for n, (kind, like, reads, value) in enumerate(rows, first):
            var, has_order = variables[n], ordered[n]
            if kind == CAST:
                self.dims.tie(self._bind(var), self.of(value))
            elif kind not in CALLS:
                if has_order:
                    self.leaves[handle(var)] = self.of(value)
            elif has_order or any(r < 0 or ordered[r] for r in reads):
                if has_order:
                    self._bind(var)
                if self._ties.get(like) != []:
                    self._call(name, var, value, like)

    def _stated(self, name: str, fn: relax.Function) -> None:
        """Note the orders that are stated of parameters and results."""
        variables = self.readings[name].variables
        ends = {f"{VALUE_MARK}{var.name}": self.of(var) for var in variables}
        ends |= {plain_name(str(param.name)): self.of(param) for param in fn.params}
        ends |= {f"#{n}": [result] for n, result in enumerate(self.results[name])}
        for end, orders in stated_orders(fn).items():
            self.dims.state(end, ends, orders, name)

    def _updated(self, fn: relax.Function, results: Leaves) -> None:
        """Tie weights and states of a training step to their new values."""
        names = [plain_name(name) for name in training_notes(fn, "updated")]
        stated = {plain_name(str(k)): int(v) for k, v in training_notes(fn, "places").items()}
        number_of = stated or {name: n for n, name in enumerate(names, 1)}
        for param in fn.params:
            fields = named_leaves(str(param.name), param.ty)
            for (field, _), leaf in zip(fields, self.of(param), strict=False):
                number = number_of.get(plain_name(field), NONE)
                if plain_name(field) in names and 0 <= number < len(results):
                    self.dims.tie([leaf], [results[number]])

    def _stage(self, stage: int, note: StageNote) -> None:
        """Tie what stages read and update, sum and send each other."""
        params = [leaf for param in self.mod[note.function].params for leaf in self.of(param)]
        results = self.results[note.function]
        for is_read, ends in enumerate((zip(note.results, results), zip(note.params, params))):
            for slot, leaf in ends:
                kind, _, name = slot.partition(":")
                if kind in (ACTIVATION, GRADIENT):
                    slot = f"{slot}:{stage - is_read if kind == ACTIVATION else stage + is_read}"
                elif kind in (PART, TOTAL):
                    slot = f"{PART}:{name}"
                self.dims.tie([self._slots.setdefault(slot, leaf)], [leaf])

    def _call(self, name: str, var: relax.Var, call: ir.Call, like: int) -> None:
        outs = self.of(var)
        if isinstance(call.op, ir.GlobalVar):
            callee = str(call.op.name_hint)
            for arg, param in zip(call.args, self.mod[call.op].params, strict=True):
                self.dims.tie(self.of(arg), self.of(param))
            self.dims.tie(outs, self.results[callee])
            return
        operands = [leaf for arg in tensor_args(call) for leaf in self.of(arg)]
        op = called_name(call)
        if is_redistribute(call) and operands[0] is not None:
            self._move(name, operands[0], call.args[0], outs[0])
        elif op == "relax.dist.partial":
            self.dims.tie(operands, outs)
        elif is_packed_call(call) or (op.startswith("relax.dist.") and op not in COMPUTE_OPS):
            self.dims.fix([leaf for arg in call.args for leaf in self.of(arg)] + outs)
        else:
            self._op(name, var, call, like, [*operands, *outs])

    def _move(
        self, name: str, source: PlacedTensor, value: Any, target: PlacedTensor | None
    ) -> None:
        if target is None or source.view.family != target.view.family:
            self.dims.fix([source, target])
        elif source.has_order or target.has_order:
            if self._terms is None or self._terms.name != name:
                self._terms = PartialState(self.mod, name, self.mod[name], legalized=False)
                self._terms.check(self.readings[name], rules=False)
            summed = frozenset(source.view.axes[a] for a in self._terms.of(value)[0])
            self.moves.append(Move(name, source, summed, target))

    def _op(self, name: str, var: relax.Var, call: ir.Call, like: int, leaves: Leaves) -> None:
        """Tie the dims of a call that walk the same factor."""
        every, ties = [leaf for leaf in leaves if leaf is not None], self._ties.get(like)
        if ties is None:
            has_order = any(leaf.has_order for leaf in every)
            ties = self._walked(name, var, call) if has_order else []
            self._ties |= {like: ties} if like >= 0 else {}
        tied: set[int] = set()
        for walked in ties:
            ends = ((leaves[i], d) for i, d in walked)
            numbers = [leaf.dims[d] for leaf, d in ends if leaf is not None]
            numbers = [number for number in numbers if number != NONE]
            self.dims.join(numbers)
            tied.update(numbers)
        self.dims.keep(n for leaf in every for n in leaf.dims if n not in tied)

    def _walked(self, name: str, var: relax.Var, call: ir.Call) -> Ties:
        """Return the dims that walk each factor; no dim where a result has no placement."""
        types = value_types(var.ty)
        if any(type(ty) is not DTensorType for ty in types):
            return [[]]
        followed = call_sharding(call, types, self.mod, name, var).factors
        return [
            [(i, d) for i, d in enumerate((*factor.ins, *factor.outs)) if d is not None]
            for factor in {id(f): f for f in followed if f is not None}.values()
        ] or [[]]

    def _count(self, callees: Mapping[str, Sequence[ir.GlobalVar]]) -> None:
        """Count how often a step runs each function."""
        for gv, fn in reversed(self.functions):
            name = str(gv.name_hint)
            runs = self.runs.setdefault(name, 1)
            if fn.attrs and REPEAT_ATTR in fn.attrs:
                runs = self.runs[name] = max(runs, int(fn.attrs[REPEAT_ATTR]))
            for callee in (str(gv.name_hint) for gv in callees[name]):
                self.runs[callee] = self.runs.get(callee, 0) + runs
