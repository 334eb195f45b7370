# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One function from level 3 to level 4: redistributions and reductions become collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from ...errors import LevelError
from ...ir import flat_types, ops
from ...ir.ops import call_axes, dist_op_name
from ...rules import is_packed_call, rule_of
from .emit import (
    BlockWriter,
    is_tensors,
    leaves_of,
    place_of,
    rebuild,
    substitute,
    tensor_args,
    typed,
    with_body,
)
from .moves import Moves, is_redistribute
from .terms import Terms, attribute_axes, axes_of, call_form, carried, sums, within, without
from .values import REDUCERS


class FunctionLegalizer(Moves):
    """Rewrites one function; the parameters are those of :class:`.values.Values`."""

    def _visit(self, var: Any, value: Any) -> None:
        kind = dist_op_name(value)
        if is_redistribute(value):
            self._redistribute(var, value)
        elif kind == "partial":
            self._wrap(var, value)
        elif kind is not None:
            self._collective(var, value, kind)
        elif isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar):
            self._function_call(var, value)
        elif is_packed_call(value):
            self._packed_call(var, value)
        elif isinstance(value, ir.Call) and tensor_args(value):
            self._op_call(var, value)
        elif isinstance(value, ir.Call):
            self._creation(var, value)
        elif isinstance(value, relax.TupleGetItem):
            new = substitute(value, self.env)
            terms = [
                self._terms(new.tuple_value, self._first_leaf(new) + i)
                for i in range(len(flat_types(var.ty)))
            ]
            self._bind(var, new, terms)
        elif isinstance(value, ir.Var):
            # A plain alias stays, under its own name.
            new = substitute(value, self.env)
            known = [self._terms(new, i) for i in range(len(flat_types(var.ty)))]
            self._bind(var, new, known)
        else:
            new = substitute(value, self.env)
            terms = [self._terms(e, n) for e, n, _ in leaves_of(new)]
            self._bind(var, new, terms)

    @staticmethod
    def _first_leaf(item: Any) -> int:
        fields = list(item.tuple_value.ty.fields)[: int(item.index)]
        return sum(len(flat_types(f)) for f in fields)

    def _creation(self, var: Any, value: ir.Call) -> None:
        self._bind(var, substitute(value, self.env))

    def _collective(self, var: Any, value: ir.Call, kind: str) -> None:
        """Take an explicit collective of level 4 as it is."""
        if not value.args:
            self._bind(var, value)
            return
        source = value.args[0]
        raw = self.env.get(source, source)
        if kind in REDUCERS and source in self.raw:
            raw = self.raw[source][0]
        axes: list[int] = []
        if kind in REDUCERS:
            axes = list(call_axes(value))
        terms = self._terms(raw, 0)
        if not set(axes) <= set(axes_of(terms)):
            raise LevelError(
                "DIST0451",
                f"its operand is complete along the mesh axes {axes}: "
                "the module is legalized already, or it counts twice",
                place=place_of(self.name, var, value),
                remedy="Give LegalizeRedistribute a module at level 3.",
            )
        self._bind(var, rebuild(value, value.op, [raw], value.ty), [without(terms, axes)])

    def _function_call(self, var: Any, value: ir.Call) -> None:
        callee = self.mod[value.op]
        params, results = attribute_axes(callee, "params"), attribute_axes(callee, "results")
        args, at = [], 0
        for arg in value.args:
            arg = substitute(arg, self.env)
            if not is_tensors(arg.ty):
                args.append(arg)
                continue
            count = len(list(leaves_of(arg)))
            mesh = self._mesh_of(flat_types(callee.params[len(args)].ty))
            wanted = [params.get(at + i, ()) for i in range(count)]
            args.append(self._demand(arg, wanted, mesh))
            at += count
        new = rebuild(value, self.env.get(value.op, value.op), args, value.ty)
        self._bind(var, new, [sums(results.get(i, ())) for i in range(len(flat_types(var.ty)))])

    @staticmethod
    def _mesh_of(leaves: Sequence[Any]) -> Any:
        return next((t.device_mesh for t in leaves if isinstance(t, DTensorType)), None)

    def _packed_call(self, var: Any, value: ir.Call) -> None:
        """A packed function takes tensors that are complete."""
        args = [self._finished(substitute(arg, self.env)) for arg in value.args]
        self._bind(var, rebuild(value, value.op, args, value.ty))

    def _finished(self, arg: Any) -> Any:
        """An argument whose tensors are complete; shapes and objects stay."""
        if is_tensors(arg.ty):
            return self._demand(arg, [()] * len(list(leaves_of(arg))))
        if isinstance(arg, relax.Tuple):
            fields = [self._finished(field) for field in arg.fields]
            return typed(relax.Tuple(fields), relax.TupleType([f.ty for f in fields]))
        return arg

    def _op_call(self, var: Any, value: ir.Call) -> None:
        outs = flat_types(var.ty)
        if not any(isinstance(t, DTensorType) for t in outs):
            self._creation(var, value)
            return
        form = call_form(value, outs, self.mod, self.name, var)
        skip = 1 if isinstance(value.args[0], ir.GlobalVar) else 0
        args = [substitute(a, self.env) for a in value.args]
        operands = [x for a in args[skip:] if is_tensors(a.ty) for x in leaves_of(a)]
        have = [self._terms(e, n) for e, n, _ in operands]
        handed: Terms = ()
        if any(have):
            rule = form.rule or rule_of(value, self.mod)
            constants = [
                i for i, (e, _, _) in enumerate(operands) if isinstance(e, ir.GenericConst)
            ]
            handed, needed = carried(rule, have, constants, form)
            mesh = outs[0].device_mesh
            at = 0
            for i, arg in enumerate(args):
                if i < skip or not is_tensors(arg.ty):
                    continue
                count = len(list(leaves_of(arg)))
                wanted = []
                for j in range(at, at + count):
                    kept = axes_of(within(have[j], axes_of(handed)))
                    wanted.append(tuple(sorted((*kept, *needed.get(j, ())))))
                args[i] = self._demand(arg, wanted, mesh)
                at += count
        op = self.env.get(value.op, value.op)
        changed = any(not a.same_as(b) for a, b in zip(args, value.args))
        new = rebuild(value, op, args, value.ty) if changed else value
        if not form.terms:
            self._bind(var, new, [handed] * len(outs))
            return
        self._reducing(var, new, form.terms, handed, outs)

    def _reducing(
        self, var: Any, call: ir.Call, made: Terms, handed: Terms, outs: Sequence[Any]
    ) -> None:
        """Bind a reducing call and complete it for all but its wraps."""
        readers = self.readers.get(var, [])
        terms = tuple(sorted((*made, *handed)))
        plain = any(how == "use" for how, _ in readers) or not readers
        if not plain:
            self.raw[var] = (self._bind(var, call, [terms]), axes_of(made))
            return
        local = isinstance(var, relax.DataflowVar) and self.writer.dataflow
        raw = (relax.DataflowVar if local else relax.Var)(f"{var.name}_terms", var.ty)
        self.writer.bind(raw, call)
        for i in range(len(outs)):
            self.terms[(raw, i)] = terms
        if len(outs) == 1 and not isinstance(var.ty, relax.TupleType):
            self.raw[var] = (raw, axes_of(made))
            mesh, value = outs[0].device_mesh, raw
            groups = [(op, [a for a, o in made if o == op]) for op in sorted({o for _, o in made})]
            for op, axes in groups[:-1]:
                value = self.writer.emit(ops.all_reduce(value, mesh, axes, op), f"{var.name}_terms")
            op, axes = groups[-1]
            last = self.builder.normalize(ops.all_reduce(value, mesh, axes, op))
            self._bind(var, last, [handed])
            return
        leaves = [self._complete(raw, i, axes_of(handed), var.name) for i in range(len(outs))]
        self._bind(var, typed(relax.Tuple(leaves), var.ty), [handed] * len(outs))

    def run(self) -> relax.Function:
        """Return the function at level 4."""
        fn = self.fn
        self._collect()
        at = 0
        boundary = attribute_axes(fn, "params")
        for param in fn.params:
            for i in range(len(flat_types(param.ty)) if is_tensors(param.ty) else 0):
                self.terms[(param, i)] = sums(boundary.get(at, ()))
                at += 1
        blocks = []
        for block in fn.body.blocks:
            dataflow = isinstance(block, relax.DataflowBlock) and not self.impure
            self.writer = BlockWriter(self.builder, dataflow)
            self.finished.clear()
            for binding in block.bindings:
                self._visit(binding.var, binding.value)
            blocks.append(self.writer.block())
        self.writer = BlockWriter(self.builder, False)
        self.finished.clear()
        wanted = attribute_axes(fn, "results")
        result = substitute(fn.body.body, self.env)
        count = len(list(leaves_of(result)))
        if count:
            result = self._demand(result, [wanted.get(i, ()) for i in range(count)])
        blocks.append(self.writer.block())
        return with_body(fn, fn.params, blocks, result, bool(fn.is_pure) and not self.impure)
