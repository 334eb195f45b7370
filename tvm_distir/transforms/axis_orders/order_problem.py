# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the order problem of a module: which dims have an order of axes, and what ties them.

A dim that several mesh axes shard has an order of these axes. Calls tie the dims that walk the
same factor, functions their arguments and results, and a step the weights that it reads and
updates. Redistributions move values from one order to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from tvm_distir.core.analysis import PartialState
from tvm_distir.core.ir import FieldLeaves, handle, is_private, named_leaves, value_types
from tvm_distir.core.ir.attributes import PIPELINE_ATTR, REPEAT_ATTR, stated_orders, training_notes
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
    all_bindings,
    called_name,
    callees_first,
    callees_of,
    is_redistribute,
    tensor_args,
)
from tvm_distir.support import GenericConst, PropagationError

from .ordered_dims import NONE, OrderedDims, PlacedTensor


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
    dims : OrderedDims
    leaves : mapping of variables to their tensors
    constants : mapping of handles of constants to their tensors
    moves : list of Move
    """

    def __init__(self, mod: ir.IRModule) -> None:
        self.mod = mod
        self.dims = OrderedDims()
        self.moves: list[Move] = []
        self.leaves: dict[ir.Expr, list[PlacedTensor | None]] = {}
        self.constants: dict[int, PlacedTensor | None] = {}
        self.results: dict[str, list[PlacedTensor | None]] = {}
        self.runs: dict[str, int] = {}
        self._slots: dict[str, PlacedTensor | None] = {}
        self._fields = FieldLeaves(value_types)
        functions = callees_first(mod)
        for gv, fn in functions:
            self._function(str(gv.name_hint), fn)
        pipeline = Pipeline.of(mod)
        if pipeline is not None:
            for stage, note in enumerate(pipeline.stages):
                self._stage(stage, note)
        self._count(functions)

    def of(self, expr: Any) -> list[PlacedTensor | None]:
        """Return the tensors of an expression; None for values without a placement."""
        if isinstance(expr, relax.Tuple):
            return [leaf for field in expr.fields[:] for leaf in self.of(field)]
        if isinstance(expr, relax.TupleGetItem):
            full, leaves = self.of(expr.tuple_value), self._fields.of(expr)
            return full[leaves.start : leaves.stop]
        if expr in self.leaves:
            return self.leaves[expr]
        if isinstance(expr, GenericConst):
            key = handle(expr)
            if key not in self.constants:
                self.constants[key] = self.dims.tensor(expr.ty)
            return [self.constants[key]]
        return [None] * len(value_types(expr.ty))

    def _bind(self, var: relax.Var) -> list[PlacedTensor | None]:
        self.leaves[var] = [self.dims.tensor(ty) for ty in value_types(var.ty)]
        return self.leaves[var]

    def _function(self, name: str, fn: relax.Function) -> None:
        terms = PartialState(self.mod, name, fn, legalized=False)
        terms.check()
        for param in fn.params:
            self._bind(param)
        for binding in all_bindings(fn.body):
            if isinstance(binding, relax.MatchCast):
                self.dims.tie(self._bind(binding.var), self.of(binding.value))
            elif isinstance(binding.value, ir.Call):
                self._call(name, binding.var, binding.value, terms)
            elif isinstance(binding.value, relax.If):
                outs = self._bind(binding.var)
                for branch in (binding.value.true_branch, binding.value.false_branch):
                    self.dims.tie(outs, self.of(branch.body))
            else:
                self.leaves[binding.var] = self.of(binding.value)
        self.results[name] = self.of(fn.body.body)
        self._stated(name, fn)
        if not is_private(fn) and PIPELINE_ATTR not in (self.mod.attrs or {}):
            self._updated(fn, self.results[name])

    def _stated(self, name: str, fn: relax.Function) -> None:
        """Note the orders that are stated of parameters and results."""
        ends = {plain_name(str(param.name)): self.leaves[param] for param in fn.params}
        ends |= {f"#{n}": [result] for n, result in enumerate(self.results[name])}
        for end, orders in stated_orders(fn).items():
            location = f"{name}/{end}"
            key = end if end in ends else plain_name(end)
            if key not in ends:
                problem = "the order of mesh axes is stated of what the function does not have"
                remedy = "State orders of parameters of this function, and of its results."
                raise PropagationError("DIST0405", problem, location=location, remedy=remedy)
            for tensor in filter(None, ends[key]):
                for axes in orders:
                    self.dims.state(tensor, axes, location)

    def _updated(self, fn: relax.Function, results: Sequence[PlacedTensor | None]) -> None:
        """Tie weights and states of a training step to their new values."""
        names = [plain_name(name) for name in training_notes(fn, "updated")]
        stated = {plain_name(str(k)): int(v) for k, v in training_notes(fn, "places").items()}
        number_of = stated or {name: n for n, name in enumerate(names, 1)}
        for param in fn.params:
            fields = named_leaves(str(param.name), param.ty)
            for (field, _), leaf in zip(fields, self.leaves[param], strict=False):
                number = number_of.get(plain_name(field), NONE)
                if plain_name(field) in names and 0 <= number < len(results):
                    self.dims.tie([leaf], [results[number]])

    def _stage(self, stage: int, note: StageNote) -> None:
        """Tie what stages read and update, sum and send each other."""
        params = [leaf for param in self.mod[note.function].params for leaf in self.leaves[param]]
        results = self.results[note.function]
        for is_read, ends in enumerate((zip(note.results, results), zip(note.params, params))):
            for slot, leaf in ends:
                kind, _, name = slot.partition(":")
                if kind in (ACTIVATION, GRADIENT):
                    slot = f"{slot}:{stage - is_read if kind == ACTIVATION else stage + is_read}"
                elif kind in (PART, TOTAL):
                    slot = f"{PART}:{name}"
                self.dims.tie([self._slots.setdefault(slot, leaf)], [leaf])

    def _call(self, name: str, var: relax.Var, call: ir.Call, terms: PartialState) -> None:
        outs = self._bind(var)
        if isinstance(call.op, ir.GlobalVar):
            callee = str(call.op.name_hint)
            for arg, param in zip(call.args, self.mod[call.op].params, strict=True):
                self.dims.tie(self.of(arg), self.leaves[param])
            self.dims.tie(outs, self.results[callee])
            return
        operands = [leaf for arg in tensor_args(call) for leaf in self.of(arg)]
        op = called_name(call)
        if is_redistribute(call) and operands[0] is not None:
            self._move(name, operands[0], terms.of(call.args[0])[0], outs[0])
        elif op == "relax.dist.partial":
            self.dims.tie(operands, outs)
        elif is_packed_call(call) or (op.startswith("relax.dist.") and op not in COMPUTE_OPS):
            self.dims.fix([leaf for arg in call.args for leaf in self.of(arg)] + outs)
        else:
            self._op(name, var, call, operands)

    def _move(
        self, name: str, source: PlacedTensor, partial: Iterable[int], target: PlacedTensor | None
    ) -> None:
        if target is None or source.view.family != target.view.family:
            self.dims.fix([source, target])
            return
        summed = frozenset(source.view.axes[a] for a in partial)
        self.moves.append(Move(name, source, summed, target))

    def _op(
        self, name: str, var: relax.Var, call: ir.Call, ins: Sequence[PlacedTensor | None]
    ) -> None:
        """Tie the dims of a call that walk the same factor."""
        outs = self.leaves[var]
        every = [leaf for leaf in (*ins, *outs) if leaf is not None]
        if all(number == NONE for leaf in every for number in leaf.dims):
            return
        types = value_types(var.ty)
        if any(type(ty) is not DTensorType for ty in types):
            self.dims.fix(every)
            return
        followed = call_sharding(call, types, self.mod, name, var).factors
        tied: set[int] = set()
        for factor in {id(f): f for f in followed if f is not None}.values():
            walked = [*zip(ins, factor.ins, strict=True), *zip(outs, factor.outs, strict=True)]
            numbers = [x.dims[d] for x, d in walked if x is not None and d is not None]
            numbers = [number for number in numbers if number != NONE]
            self.dims.join(numbers)
            tied.update(numbers)
        self.dims.keep(n for leaf in every for n in leaf.dims if n not in tied)

    def _count(self, functions: Sequence[tuple[ir.GlobalVar, relax.Function]]) -> None:
        """Count how often a step runs each function."""
        for gv, fn in reversed(functions):
            name = str(gv.name_hint)
            runs = self.runs.setdefault(name, 1)
            if fn.attrs and REPEAT_ATTR in fn.attrs:
                runs = self.runs[name] = max(runs, int(fn.attrs[REPEAT_ATTR]))
            for callee in map(str, (gv.name_hint for gv in callees_of(fn))):
                self.runs[callee] = self.runs.get(callee, 0) + runs
