# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite a function from tensors to DTensors, with the conversions that a decision requires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax.op.distributed import redistribute

from tvm_distir.core.ir.arrays import unpack
from tvm_distir.core.ir.attributes.keys import VALUE_MARK
from tvm_distir.core.ir.attributes.readers import stated_orders
from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.placement import R
from tvm_distir.core.ir.types import as_dtensor, value_types
from tvm_distir.core.propagation.decision import Decision, Instance
from tvm_distir.core.propagation.graph.graph import CONST
from tvm_distir.core.rewriting.calls import typed
from tvm_distir.core.rewriting.native.making import make_variables
from tvm_distir.core.rewriting.nodes import argument, make_var
from tvm_distir.core.rewriting.writer import merged_blocks
from tvm_distir.support import GenericConst

from .call_rewriter import Calls
from .operands import Operands
from .placed_values import PlacedValues, is_dataflow
from .plain import PlainCalls
from .result_types import CallResults, Returned
from .tuples import rebuilt


class FunctionRewriter:
    """A writer of a specialization, which walks blocks, bindings and the result.

    Parameters
    ----------
    mod : IRModule
        The module, at level 2.
    decision : Decision
    inst : Instance
        The specialization.
    old : relax.Function
        The function of the module that it specialises.
    callees : mapping of node number to GlobalVar
        The specializations that it calls.
    """

    def __init__(
        self,
        mod: ir.IRModule,
        decision: Decision,
        inst: Instance,
        old: relax.Function,
        callees: Mapping[int, ir.GlobalVar],
    ) -> None:
        self.old, self._first = old, 0
        self.values = PlacedValues(mod, decision, inst)
        self.operands = Operands(self.values)
        self.results = CallResults(self.values)
        self.calls = Calls(self.values, self.operands, self.results, callees)
        self.returned = Returned(self.values, self.operands, old.body.body)
        self.plain = PlainCalls(self.values)

    def run(self, attrs: Any) -> relax.Function:
        """Return the new function, with the attributes ``attrs``."""
        values = self.values
        params = self._params()
        blocks = [self._block(*item) for item in enumerate(self.old.body.blocks[:])]
        values.open_block(False)
        result = self.returned.expression()
        if values.bindings:
            blocks.append(relax.BindingBlock(values.bindings))
        body = typed(relax.SeqExpr(merged_blocks(blocks), result), result.ty)
        return relax.Function(params, body, result.ty, self.old.is_pure, attrs)

    def _params(self) -> list[ir.Expr]:
        """Return the new parameters; tensors among them are made at once."""
        values, params = self.values, list[Any]()
        env, flat, plain = values.g.env, values.g.values, values.g.tensors
        tensors: list[tuple[int, int, int]] = []  # place, handle of the old variable, value
        types, which = list[Any](), list[int]()
        known: dict[tuple[int, int, Any], int] = {}
        for old in unpack(self.old.params):
            key = handle(old)
            leaves = env[key]
            if key in plain:
                v = leaves[0]
                tensors.append((len(params), key, v))
                like = (id(flat[v].ty), flat[v].mesh, values.route(v).root)
                number = known.setdefault(like, len(types))
                if number == len(types):
                    types.append(values.root_type(v))
                which.append(number)
                params.append(None)
                continue
            new = make_var(old.name, rebuilt(old.ty, iter(map(values.root_type, leaves))))
            values.bind_leaves(old, new)
            params.append(new)
        variables = make_variables([flat[v].name for _, _, v in tensors], types, which)
        for (position, key, v), new in zip(tensors, variables):
            params[position] = values.exprs[key] = values.roots[v] = new
        # An annotation of a parameter became its placement.
        values.exprs.update((key, values.exprs[of]) for key, of in values.g.pinned.items())
        self.plain.know(values.exprs.items())
        return params

    def _block(self, number: int, block: relax.BindingBlock) -> relax.BindingBlock:
        values, plain = self.values, self.plain
        dataflow, old = isinstance(block, relax.DataflowBlock), block.bindings
        first, self._first = self._first, self._first + len(old)
        bindings = values.g.bindings[first : self._first]
        keys = values.g.bound[first : self._first]
        shadowed = self._reread(number, keys, bindings) if dataflow else {}
        values.open_block(dataflow, shadowed)
        plain.open(first, old, list(shadowed))
        pinned, exprs, at = values.g.pinned, values.exprs, 0
        while at < len(keys):
            key = keys[at]
            count = 1 if key in pinned else plain.write(first + at)
            if not count:
                self._binding(key, bindings[at])
                if key in exprs:
                    plain.know([(key, exprs[key])])
            at += count or 1
        if not dataflow:
            return relax.BindingBlock(values.bindings)
        if block.same_as(self.old.body.blocks[-1]):
            self.returned.convert()
        values.close_dataflow()
        plain.know([(key, exprs[key]) for key in shadowed])
        return relax.DataflowBlock(values.bindings)

    def _reread(
        self, number: int, keys: Sequence[int], bindings: Sequence[relax.Binding]
    ) -> dict[int, ir.Expr]:
        """Return the outputs of a dataflow block that it reads, by handle, in order of binding.

        TVM's parser infers the types of their readers anew, from what its inference knows;
        so inside the block they get separate names.
        """
        reads = set(self.values.g.block_reads[number])
        return {key: b.var for key, b in zip(keys, bindings) if key in reads} if reads else {}

    def _binding(self, key: int, b: relax.Binding) -> None:
        g, var = self.values.g, b.var
        k = g.node_of.get(key, -1)
        if k < 0:
            self._alias(key, b, var)
            return
        kind = g.nodes[k].kind
        if kind == "pin":
            self._annotation(k, var, argument(b.value, 0))
            return
        ty = self.results.type_of(k, var.ty)
        write = self.calls.function_call if kind == "call" else self.calls.op_call
        self.results.bind(k, var, write(k, b.value, ty), ty)

    def _annotation(self, k: int, var: relax.Var, annotated: ir.Expr) -> None:
        """Return the annotation of node k: its operand where it is annotated to be."""
        values, name = self.values, var.name
        expr: Any
        if VALUE_MARK + name in stated_orders(self.old):
            # A value of its own has the stated order; neither its source nor its readers need it.
            expr = self.operands.operand(k, 0, annotated)
            for title in (name, f"{name}_read"):
                call = redistribute(expr, expr.ty.device_mesh, expr.ty.placement)
                expr = values.emit(title, call, expr.ty, None if title == name else var)
        else:
            expr = self.operands.operand(k, 0, annotated, name, var)
        if values.dataflow and is_dataflow(expr) and not values.stays_inside(var):
            expr = values.emit(name, expr, expr.ty, var)
        values.note_root(values.g.nodes[k].results[0], expr)
        values.exprs[handle(var)] = expr

    def _alias(self, key: int, b: relax.Binding, var: relax.Var) -> None:
        """Rewrite a binding of a variable, a tuple, a field, a constant or a cast."""
        values = self.values
        g = values.g
        value, leaves = b.value, g.env[key]
        values.aliases[key] = value
        if type(b) is relax.MatchCast:
            self._cast(b, var)
            return
        if leaves == (CONST,):  # no program holds it: each reader takes the constant in its form
            values.exprs[key] = values.constant(value, 0)
            return
        if handle(value) in g.env and handle(value) not in values.exprs:
            return
        expr = self._unconverted(value)
        inside = not values.dataflow or values.stays_inside(var)
        if inside and type(expr) is relax.Tuple and self._mixes_meshes(leaves):
            values.exprs[key] = expr  # no program holds it: its readers take the fields
            return
        new = values.emit(var.name, expr, expr.ty, var)
        for v in leaves:
            if not inside or type(values.roots.get(v)) is relax.TupleGetItem:
                values.roots.pop(v, None)
        values.bind_leaves(var, new)

    def _cast(self, b: Any, var: relax.Var) -> None:
        values = self.values
        leaves = values.g.env[handle(var)]
        expr = self._unconverted(b.value)
        ty = rebuilt(b.ty, map(self._cast_type, leaves, value_types(b.ty)))
        new = make_var(var.name, ty, values.dataflow and values.stays_inside(var))
        values.bindings.append(relax.MatchCast(new, expr, ty))
        for v in leaves:
            values.roots.pop(v, None)
        values.bind_leaves(var, new)

    def _cast_type(self, value: int, plain: ir.Type) -> Any:
        """Return the type of a field of a cast: the value's, the cast's for a constant."""
        values = self.values
        if value >= 0:
            return values.root_type(value)
        return as_dtensor(plain, values.meshes[0], [R] * len(values.decision.mesh_axes(0)))

    def _unconverted(self, old: ir.Expr) -> ir.Expr:
        """Return an expression without conversions: values in their root forms."""
        cached = self.values.exprs.get(handle(old))
        if cached is not None:
            return cached
        if type(old) is relax.Tuple:
            return relax.Tuple([self._unconverted(f) for f in old.fields[:]])
        if type(old) is relax.TupleGetItem:
            source = self._unconverted(old.tuple_value)
            if type(source) is relax.Tuple:
                return source.fields[old.index]
            return relax.TupleGetItem(source, old.index)
        return self.values.constant(old, 0) if type(old) is GenericConst else old

    def _mixes_meshes(self, leaves: Sequence[int]) -> bool:
        values = self.values.g.values
        return len({values[v].mesh for v in leaves if v >= 0}) > 1
