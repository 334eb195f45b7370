# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite a function from level 3 to level 4, with collectives for redistributions and reductions.

Most bindings of a function stay as they are: a binding that is equal to another one that stayed,
and that reads no changed variable, stays too (:class:`~.repeated_bindings.RepeatedBindings`).
"""

from __future__ import annotations

from tvm import ir, relax

from tvm_distir.core.ir.operators.names import REDUCTIONS
from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.ir.types import FieldLeaves, flat_types
from tvm_distir.core.ops.dist_ops import dist_ops
from tvm_distir.core.ops.packed import is_packed_call
from tvm_distir.core.ops.terms import attribute_axes, sums
from tvm_distir.core.rewriting.calls import is_redistribute, is_tensors, leaves_of, tensor_args
from tvm_distir.core.rewriting.native.function_index import ITEM as FIELD
from tvm_distir.core.rewriting.native.function_index import FunctionView
from tvm_distir.core.rewriting.repeated_bindings import RepeatedBindings, Templates
from tvm_distir.core.rewriting.substitute import VARIABLES, substitute
from tvm_distir.core.rewriting.writer import with_body

from .call_legalizer import CallLegalizer
from .moves import Moves
from .partial_values import ITEM, REDUCE, USE, WRAP, LegalizedValues

_READS = {"partial": WRAP, **dict.fromkeys(REDUCTIONS, REDUCE)}
"""How calls of ``R.dist`` read their operands, unless it is any other use."""


class FunctionLegalizer:
    """A rewriter of a function.

    Parameters
    ----------
    mod : IRModule
        The module, at level 3.
    fn : relax.Function
    reading : FunctionView
        The view of the function, which has no control flow.
    values : LegalizedValues
    moves : Moves
        The moves of the same values.
    templates : Templates
        The bindings that stay, of the pass.
    """

    def __init__(
        self,
        mod: ir.IRModule,
        fn: relax.Function,
        reading: FunctionView,
        values: LegalizedValues,
        moves: Moves,
        templates: Templates,
    ) -> None:
        self.fn, self.reading, self.values, self.moves = fn, reading, values, moves
        self.calls = CallLegalizer(mod, values, moves)
        self.repeated = RepeatedBindings(values, reading, templates)
        self._leaves = FieldLeaves()

    def run(self) -> relax.Function:
        """Return the function at level 4, or itself where that is the same."""
        fn, values = self.fn, self.values
        self._note_reads()
        self._open_params()
        if values.terms:
            for position in range(self.reading.params):
                self.repeated.note(position)
        else:
            self.repeated.stay(())
        blocks, end = [], 0
        for block in fn.body.blocks[:]:
            values.open_block(isinstance(block, relax.DataflowBlock) and not values.impure)
            first, end = end, end + len(block.bindings)
            self.repeated.write(first, end, self._binding)
            blocks.append(values.writer.block())
        values.open_block(False)
        result_axes = attribute_axes(fn, "results")
        old = fn.body.body
        result = substitute(old, values.env)
        count = len(list(leaves_of(result)))
        if count:
            result = values.demand(result, [result_axes.get(i, ()) for i in range(count)])
        if not values.written and result is old and not values.writer.bindings:
            return fn
        blocks.append(values.writer.block())
        return with_body(fn, fn.params, blocks, result, bool(fn.is_pure) and not values.impure)

    def _note_reads(self) -> None:
        """Record the kinds of readers of each variable, for wraps and reductions."""
        reading = self.reading
        reads = bytearray(len(reading.variables) + 1)  # the last is of constants
        others = list(reading.reads)
        for number, name in enumerate(dist_ops(reading)):
            field = reading.kinds[number] == FIELD
            if name is None and not field:
                continue
            how = ITEM if field else _READS.get(name or "", USE)
            first, end = reading.begin[number : number + 2]
            for used in others[first:end]:
                reads[used] |= how
            others[first:end] = [-1] * (end - first)
        for used in {*others, *reading.result}:
            reads[used] |= USE
        self.values.reads = dict(zip(reading.variables, reads))

    def _open_params(self) -> None:
        at, boundary = 0, attribute_axes(self.fn, "params")
        if not boundary:
            return
        for param in self.fn.params:
            for i in range(len(flat_types(param.ty)) if is_tensors(param.ty) else 0):
                self.values.terms[(param, i)] = sums(boundary.get(at, ()))
                at += 1

    def _binding(self, number: int) -> None:
        """Copy or rewrite a binding."""
        binding, value = self.reading.bindings[number], self.reading.values[number]
        new_bindings = self.values.writer.bindings
        before = len(new_bindings)
        self._visit(self.reading.bound(number), value, self.reading.like[number])
        stays = len(new_bindings) == before + 1 and new_bindings[-1].value.same_as(value)
        if stays and new_bindings[-1].var.same_as(binding.var):
            new_bindings[-1] = binding
        else:
            self.values.written = True

    def _visit(self, var: relax.Var, value: ir.Expr, like: int) -> None:
        kind, values = dist_op_name(value), self.values
        if is_redistribute(value):
            self.moves.redistribute(var, value)
        elif kind == "partial":
            self.moves.wrap(var, value)
        elif kind is not None:
            self.calls.collective(var, value, kind)
        elif type(value) is ir.Call and type(value.op) is ir.GlobalVar:
            self.calls.function_call(var, value)
        elif is_packed_call(value):
            self.calls.packed_call(var, value)
        elif type(value) is ir.Call and tensor_args(value):
            self.calls.op_call(var, value, like)
        elif type(value) is ir.Call:
            self.calls.creation(var, value)
        elif type(value) is relax.TupleGetItem:
            new = substitute(value, values.env)
            leaves = self._leaves.of(new)
            values.bind(var, new, [values.terms_of(new.tuple_value, i) for i in leaves])
        elif type(value) in VARIABLES:
            # A plain alias stays, under its name.
            new = substitute(value, values.env)
            values.bind(var, new, [values.terms_of(new, i) for i in range(len(flat_types(var.ty)))])
        else:
            new = substitute(value, values.env)
            values.bind(var, new, [values.terms_of(e, n) for e, n, _ in leaves_of(new)])
