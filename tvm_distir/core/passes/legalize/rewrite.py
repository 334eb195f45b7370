# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite a function from level 3 to level 4, with collectives for redistributions and reductions.

Most bindings of a function stay as they are. Bindings that are equal up to the variables that they
read are analysed once (:class:`.classes.Classes`), and a binding of an unchanged class that reads
no changed variable is copied without further analysis.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.names import REDUCTIONS
from tvm_distir.core.ir.ops import dist_op_name
from tvm_distir.core.ir.types import FieldLeaves, flat_types
from tvm_distir.core.ops.dist_ops import dist_ops
from tvm_distir.core.ops.packed import is_packed_call
from tvm_distir.core.ops.terms import attribute_axes, sums
from tvm_distir.core.rewriting.calls import is_redistribute, is_tensors, leaves_of, tensor_args
from tvm_distir.core.rewriting.native.function_index import ITEM as FIELD
from tvm_distir.core.rewriting.native.function_index import FunctionView
from tvm_distir.core.rewriting.substitute import VARIABLES, substitute
from tvm_distir.core.rewriting.writer import with_body

from .call_legalizer import CallLegalizer
from .classes import Classes
from .moves import Moves
from .partial_values import ITEM, REDUCE, USE, WRAP, LegalizedValues


class FunctionLegalizer:
    """A rewriter of a function.

    Parameters
    ----------
    classes : Classes
    fn : relax.Function
    reading : FunctionView
        The view of the function, which has no control flow.
    values : LegalizedValues
    moves : Moves
        The moves of the same values.
    """

    def __init__(
        self,
        classes: Classes,
        fn: relax.Function,
        reading: FunctionView,
        values: LegalizedValues,
        moves: Moves,
    ) -> None:
        self.classes, self.fn = classes, fn
        self.reading, self.values, self.moves = reading, values, moves
        self.calls = CallLegalizer(classes, values, moves)
        self._first = reading.params
        self._leaves = FieldLeaves()

    def run(self) -> relax.Function:
        """Return the function at level 4, or itself where that is the same."""
        fn, values = self.fn, self.values
        self._note_reads()
        self._open_params()
        params = self.reading.variables[: self._first] if values.env or values.terms else ()
        changed = {n for n, var in enumerate(params) if values.is_changed(var)}
        blocks, end = [], 0
        for block in fn.body.blocks[:]:
            values.open_block(isinstance(block, relax.DataflowBlock) and not values.impure)
            first, end = end, end + len(block.bindings)
            while first < end:
                first = self._bindings(first, end, changed)
            blocks.append(values.writer.block())
        values.open_block(False)
        wanted = attribute_axes(fn, "results")
        old = fn.body.body
        result = substitute(old, values.env)
        count = len(list(leaves_of(result)))
        if count:
            result = values.demand(result, [wanted.get(i, ()) for i in range(count)])
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
            how = (
                ITEM
                if field
                else WRAP
                if name == "partial"
                else REDUCE
                if name in REDUCTIONS
                else USE
            )
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

    def _bindings(self, first: int, end: int, changed: set[int]) -> int:
        """Write the next unchanged bindings, or a single binding; return the number of the next."""
        reading, last = self.reading, first
        if not self.values.impure:
            known, like = self.classes.staying, reading.like
            while last < end and known.get(like[last]):
                last += 1
        if last > first and changed.isdisjoint(
            reading.reads[reading.begin[first] : reading.begin[last]]
        ):
            self.values.writer.bindings += reading.bindings[first:last]
            return last
        last = max(last, first + 1)
        for number in range(first, last):
            self._binding(number, changed)
        return last

    def _binding(self, number: int, changed: set[int]) -> None:
        """Copy or rewrite a binding; ``changed`` holds the replaced variables so far."""
        reading, values = self.reading, self.values
        like, value = reading.like[number], reading.values[number]
        written = values.writer.bindings
        place = self._first + number
        var = reading.variables[place]
        if not values.impure and self.classes.stays(like, value):
            read = changed.intersection(reading.used(number)) if changed else changed
            if not read:
                written.append(reading.bindings[number])
                return
            if not any(values.has_terms(reading.variables[n]) for n in read):
                values.writer.bind(var, substitute(value, values.env))
                values.written = True
                return
        before = len(written)
        self._visit(var, value, like)
        if values.is_changed(var):
            changed.add(place)
        if len(written) == before + 1 and written[-1].value.same_as(value):
            if written[-1].var.same_as(var):
                written[-1] = reading.bindings[number]
                return
        values.written = True

    def _visit(self, var: Any, value: Any, like: int) -> None:
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
            self.calls.creation(var, value, like)
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
