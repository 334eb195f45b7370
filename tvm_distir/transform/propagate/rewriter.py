# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrites one function from tensors to DTensors, with the conversions a decision asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax.op.distributed import redistribute
from tvm.relax.script.builder.distributed.ir import call_tir as dist_call_tir

from ...errors import PropagationError
from ...ir import P, R, carries_value, ops, placement_of, tensor_type, value_types
from ...ir.rewrite import argument, handle, make_binding, make_call, make_var, merged_blocks
from ...propagation.graph import CONST, PACKED_HANDLES, distributed_name
from .operands import Operands
from .values import is_dataflow, rebuilt, tuple_items

CALL_TIR = ir.Op.get("relax.call_tir")
CREATED = {"relax.zeros": 0, "relax.ones": 1}
"""Ops without a tensor operand, and what they fill with."""


class FunctionRewriter(Operands):
    """Writes one specialisation: walks blocks, bindings and the result."""

    # entry -----------------------------------------------------------------------------

    def run(self, attrs: Any) -> relax.Function:
        """Parameters, blocks, result; ``attrs`` are those of the new function."""
        params = []
        for p in self.old.params[:]:
            key, plain = handle(p), p.ty
            leaves = self.g.env[key]
            if type(plain) is relax.TensorType:
                name = self.g.values[leaves[0]].name
                new = make_var(name, self._root_type(leaves[0]))
                self.exprs[key] = self.homes[leaves[0]] = new
            else:
                new = make_var(p.name, rebuilt(plain, iter(map(self._root_type, leaves))))
                self._bind_leaves(p, new)
            params.append(new)
        blocks = [self._block(*one) for one in enumerate(self.old.body.blocks[:])]
        self.bindings, self.dataflow = [], False
        result = self._result()
        if self.bindings:
            blocks.append(relax.BindingBlock(self.bindings))
        body = relax.SeqExpr(merged_blocks(blocks), result)
        relax.expr._update_type(body, result.ty)
        return relax.Function(params, body, result.ty, self.old.is_pure, attrs)

    def _block(self, number: int, block: Any) -> Any:
        self.bindings, self.dataflow = [], isinstance(block, relax.DataflowBlock)
        before = set(self.made)
        old = block.bindings[:]
        bound = [(b, b.var) for b in old]
        self.shadowed = self._read_inside(number, bound) if self.dataflow else {}
        for b, var in bound:
            self._binding(b, var)
        if not self.dataflow:
            return relax.BindingBlock(self.bindings)
        if block.same_as(self.old.body.blocks[-1]):
            self._convert_results()
        for v, field in self.fields.items():  # outside it is taken of its tuple again
            if is_dataflow(self.homes.get(v)):
                self.homes[v] = field
        self.fields.clear()
        for v in self.arrived:  # outside it is brought again
            if is_dataflow(self.homes.get(v)):
                del self.homes[v]
        self.arrived.clear()
        for key, var in self.shadowed.items():
            inner = self.exprs[key]
            outer = make_var(var.name, inner.ty)
            self.bindings.append(make_binding(outer, inner))
            for v in self.g.env[key]:
                self.homes.pop(v, None)
            self._bind_leaves(var, outer)
        self.made = {k: v for k, v in self.made.items() if k in before or not is_dataflow(v)}
        return relax.DataflowBlock(self.bindings)

    def _read_inside(self, number: int, bound: list[tuple[Any, Any]]) -> dict[int, Any]:
        """Outputs of a dataflow block that it reads itself, by handle, in order of binding.

        TVM's parser infers the types of their readers anew, from what its own inference knows;
        so inside the block they get names of their own.
        """
        reads = self.g.reads[number]
        outputs = {handle(var): var for _, var in bound if not is_dataflow(var)}
        return {key: var for key, var in outputs.items() if key in reads}

    # bindings --------------------------------------------------------------------------

    def _binding(self, b: Any, var: Any) -> None:
        k = self.g.node_of.get(handle(var), -1)
        if k < 0:
            self._alias(b, var)
            return
        value, name = b.value, var.name
        node = self.g.nodes[k]
        if node.kind == "pin":
            expr = self._operand(k, 0, argument(value, 0), name, var)
            if self.dataflow and is_dataflow(expr) and not self._stays_inside(var):
                expr = self._emit(name, expr, expr.ty, var)
            self._home(node.results[0], expr)
            self.exprs[handle(var)] = expr
            return
        ty = self._result_type(k, var.ty)
        if node.kind == "call":
            args = self._arguments(k, value.args)
            call = make_call(self.callees[k], args, value.attrs, [], ty)
        else:
            call = self._op(k, value, ty)
        self._result_of(k, var, call, ty)

    def _alias(self, b: Any, var: Any) -> None:
        """A variable, a tuple, a field, a constant or a cast bound to a name."""
        key = handle(var)
        source = self.g.pinned.get(key)
        if source is not None:  # the annotation became its parameter's placement
            self.exprs[key] = self.exprs[source]
            return
        value, name, leaves = b.value, var.name, self.g.env[key]
        self.aliases[key] = value
        if type(b) is relax.MatchCast:
            expr = self._plain_expr(value)
            ty = rebuilt(b.ty, map(self._cast_type, leaves, value_types(b.ty)))
            inner = self.dataflow and self._stays_inside(var)
            new = make_var(name, ty, inner)
            self.bindings.append(relax.MatchCast(new, expr, ty))
            for v in leaves:
                self.homes.pop(v, None)
            self._bind_leaves(var, new)
            return
        if leaves == (CONST,):  # no program holds it: each reader takes the constant in its form
            self.exprs[key] = self._constant(value, 0)
            return
        if handle(value) in self.g.env and handle(value) not in self.exprs:
            return
        expr = self._plain_expr(value)
        if type(expr) is relax.Tuple and self._mixes_meshes(leaves):
            if not self.dataflow or self._stays_inside(var):
                self.exprs[key] = expr  # no program holds it: its readers take the fields
                return
        new = self._emit(name, expr, expr.ty, var)
        leaves_block = self.dataflow and not self._stays_inside(var)
        for v in leaves:
            if leaves_block or type(self.homes.get(v)) is relax.TupleGetItem:
                self.homes.pop(v, None)
        self._bind_leaves(var, new)

    def _mixes_meshes(self, leaves: Sequence[int]) -> bool:
        return len({self.g.values[v].mesh for v in leaves if v >= 0}) > 1

    # results ---------------------------------------------------------------------------

    def _op(self, k: int, old: ir.Call, ty: Any) -> Any:
        args, op = self._arguments(k, old.args), old.op
        if type(op) is relax.ExternFunc or handle(op) in PACKED_HANDLES:
            types = [self._field_type(k, j, t) for j, t in enumerate(old.ty_args)]
            return make_call(distributed_name(op), args, old.attrs, types, ty)
        if not self.g.nodes[k].operands:
            return self._created(k, old)
        if CALL_TIR.same_as(op):
            count = len(self.g.nodes[k].results)
            types = [self._raw_type(k, j) for j in range(count)]
            return dist_call_tir(args[0], args[1], types)
        return make_call(op, args, old.attrs, old.ty_args, ty)

    def _created(self, k: int, old: ir.Call) -> Any:
        """A tensor made from nothing, from a placed constant.

        TVM gives a call without a tensor operand a plain type: as a DTensor it could not be
        parsed back. ``zeros`` and ``ones`` become ``full``, ``arange`` a constant.
        """
        name, mesh = str(old.op.name), self.g.nodes[k].mesh
        if name in CREATED:
            value = np.array(CREATED[name], dtype=str(old.attrs.dtype))
            placed = self._constant(relax.const(value, str(old.attrs.dtype)), mesh)
            return ir.Call(ir.Op.get("relax.full"), [old.args[0], placed], old.attrs)
        bounds: list[Any] = [getattr(a, "value", None) for a in old.args]
        if name != "relax.arange" or any(not isinstance(b, int | float) for b in bounds):
            raise PropagationError(
                "DIST0417",
                f"{name} makes a tensor from nothing, which has no DTensor form",
                place=self.g.place(k),
                remedy="Fold it into a constant first (relax.transform.FoldConstant).",
            )
        dtype = str(old.attrs.dtype)
        placed = self._constant(relax.const(np.arange(*bounds).astype(dtype), dtype), mesh)
        form = self.decision.gives(self.inst, k, 0, mesh)
        if all(x == R for x in form):
            return placed
        return redistribute(placed, self.meshes[mesh], placement_of(form))

    def _field_type(self, k: int, j: int, plain: Any) -> Any:
        return plain if tensor_type(plain) is None else self._raw_type(k, j)

    def _raw_type(self, k: int, j: int) -> Any:
        v = self.g.nodes[k].results[j]
        route = self._route(v)
        form = route.root if route.settled else self.decision.value_form(self.inst, v)
        return self._type(v, form)

    def _result_type(self, k: int, plain: Any) -> Any:
        """Type of a call's result as the call gives it."""
        node = self.g.nodes[k]
        if type(plain) is relax.TensorType:
            return self._raw_type(k, 0)
        types = [
            self._raw_type(k, j) if self.g.values[v].ty is not None else t
            for j, (v, t) in enumerate(zip(node.results, value_types(plain)))
        ]
        return rebuilt(plain, iter(types))

    def _result_of(self, k: int, var: Any, call: Any, ty: Any) -> None:
        """Bind a call; wrap results whose pending reduction must wait."""
        node, name = self.g.nodes[k], var.name
        waits = [self._waiting(k, v) for v in node.results]
        single = type(var.ty) is not relax.TupleType
        if single and waits[0]:
            raw = self._emit(name, call, ty)
            wrapped = ops.partial(raw, self._mesh(node.results[0]), waits[0])
            new = self._emit(name, wrapped, ty, var)
        else:
            new = self._emit(name, call, ty, var)
        self._bind_leaves(var, new)
        if not single:
            for v, axes in zip(node.results, waits):
                if axes:
                    raw = self.homes[v]
                    field = self._field(name, raw)
                    wrapped = ops.partial(field, self._mesh(v), axes)
                    self.homes[v] = self._emit(name, wrapped, raw.ty)

    def _waiting(self, k: int, v: int) -> list[int]:
        """Mesh axes along which a call's own reduction stays pending, with those carried."""
        node = self.g.nodes[k]
        if node.rule is None or P not in self._route(v).root:
            return []
        factors = self.decision.factors(self.inst, k, self.g.values[v].mesh)
        root = self._route(v).root
        own = [
            a
            for a, f in enumerate(factors)
            if f is not None and node.rule.factors[f].kind == "sum" and root[a] == P
        ]
        return [a for a, x in enumerate(root) if x == P] if own else []

    def _convert_results(self) -> None:
        """Convert what the function returns while the dataflow block is still open."""
        for k in self.g.rets:
            v = self.g.nodes[k].operands[0]
            if v < 0:
                continue
            self._arrive(v)
            form = self.decision.needs(self.inst, k, 0, self.g.values[v].mesh)
            if form != self._route(v).root:
                marker = self.old.body.body
                self._form(v, form, var=marker)

    def _returns_root(self, k: int) -> bool:
        """Whether a result is returned in the form it is produced in."""
        v = self.g.nodes[k].operands[0]
        if v < 0:
            return False
        form = self.decision.needs(self.inst, k, 0, self.g.values[v].mesh)
        return form == self._route(v).root

    def _result(self) -> Any:
        body = self.old.body.body
        return self._returned(body, body.ty, list(self.g.rets))

    def _returned(self, old: Any, ty: Any, rets: list[int]) -> Any:
        """A returned expression; takes its nodes off the front of ``rets``."""
        if isinstance(ty, relax.TupleType):
            key = handle(old)
            if not isinstance(old, relax.Tuple) and key in self.exprs:
                own = rets[: len(self.g.env[key])]
                if all(self._returns_root(k) for k in own):
                    del rets[: len(own)]
                    return self.exprs[key]
            items = tuple_items(old)
            return relax.Tuple([self._returned(x, t, rets) for x, t in zip(items, ty.fields)])
        if not carries_value(ty):
            return old
        k = rets.pop(0)
        v = self.g.nodes[k].operands[0]
        if v == CONST:
            return self._constant_operand(k, 0, old)
        self._arrive(v)
        form = self.decision.needs(self.inst, k, 0, self.g.values[v].mesh)
        known = self.exprs.get(handle(old))
        if form == self._route(v).root and known is not None:
            return known
        return self._form(v, form)
