# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrites one function from tensors to DTensors, with the conversions a decision asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax.distributed import DeviceMesh
from tvm.relax.op.distributed import redistribute
from tvm.relax.script.builder.distributed.ir import call_tir as dist_call_tir

from ..errors import PropagationError
from ..ir import P, R, as_dtensor, meshes, ops, placement_of, tensor_type
from ..ir.types import carries_value, value_types
from ..propagation import Decision, Instance
from ..propagation.graph import CONST
from ..propagation.packed import distributed_name
from ..propagation.routes import Form, Route
from .blocks import merged_blocks

CREATED = {"relax.zeros": 0, "relax.ones": 1}
"""Ops without a tensor operand, and what they fill with."""


class FunctionRewriter:
    """Writes one specialisation.

    ``homes`` maps each value number to the expression of its root form; ``made`` the forms
    converted so far. Both forget what a closed dataflow block hides.
    """

    def __init__(
        self,
        mod: ir.IRModule,
        decision: Decision,
        inst: Instance,
        old: relax.Function,
        callees: dict[int, ir.GlobalVar],
    ) -> None:
        self.mod, self.decision, self.inst, self.old, self.callees = (
            mod,
            decision,
            inst,
            old,
            callees,
        )
        self.g = inst.graph
        self.meshes: list[DeviceMesh] = meshes(mod)
        self.exprs: dict[Any, Any] = {}
        self.homes: dict[int, Any] = {}
        self.made: dict[tuple[int, Form], Any] = {}
        self.routes: dict[int, Route] = {}
        self.plains: dict[int, Any] = {}
        self.shadowed: list[Any] = []
        self.types: dict[tuple[int, Form], Any] = {}
        self.bindings: list[Any] = []
        self.dataflow = False

    # entry -----------------------------------------------------------------------------

    def run(self) -> relax.Function:
        """Parameters, blocks, result."""
        params = []
        for p in self.old.params:
            leaves = [self._root_type(v) for v in self.g.env[p]]
            new = relax.Var(p.name, _rebuilt(p.ty, iter(leaves)))
            params.append(new)
            self._bind_leaves(p, new)
        blocks = [self._block(block) for block in self.old.body.blocks]
        self.bindings, self.dataflow = [], False
        result = self._result()
        if self.bindings:
            blocks.append(relax.BindingBlock(self.bindings))
        body = relax.SeqExpr(merged_blocks(blocks), result)
        relax.expr._update_type(body, result.ty)
        return relax.Function(params, body, result.ty, self.old.is_pure, self.old.attrs)

    def _block(self, block: Any) -> Any:
        self.bindings, self.dataflow = [], isinstance(block, relax.DataflowBlock)
        before = set(self.made)
        self.shadowed = _read_inside(block) if self.dataflow else []
        for b in block.bindings:
            self._binding(b)
        if not self.dataflow:
            return relax.BindingBlock(self.bindings)
        if block.same_as(self.old.body.blocks[-1]):
            self._convert_results()
        for var in self.shadowed:
            inner = self.exprs[var]
            self.exprs[var] = relax.Var(var.name, inner.ty)
            self.bindings.append(relax.VarBinding(self.exprs[var], inner))
            for v in self.g.env[var]:
                self.homes.pop(v, None)
            self._bind_leaves(var, self.exprs[var])
        self.made = {k: v for k, v in self.made.items() if k in before or not _is_dataflow(v)}
        return relax.DataflowBlock(self.bindings)

    # values ----------------------------------------------------------------------------

    def _mesh(self, value: int) -> DeviceMesh:
        return self.meshes[self.g.values[value].mesh]

    def _route(self, value: int) -> Route:
        if value not in self.routes:
            self.routes[value] = self.decision.route(self.inst, value)
        return self.routes[value]

    def _type(self, value: int, form: Form) -> Any:
        """DTensor type of a value in a form, None for an opaque value."""
        key = (value, form)
        if key not in self.types:
            base = self._plain(value)
            labels = [R if x == P else x for x in form]
            placed = None if base is None else as_dtensor(base, self._mesh(value), labels)
            self.types[key] = placed
        return self.types[key]

    def _plain(self, value: int) -> Any:
        """Tensor type of a value, None for an opaque one."""
        if not self.plains:
            for var, leaves in self.g.env.items():
                for v, ty in zip(leaves, value_types(var.ty)):
                    if v >= 0:
                        self.plains.setdefault(v, tensor_type(ty))
            for node in self.g.nodes:
                if node.kind == "move":
                    self.plains.setdefault(node.results[0], self.plains[node.operands[0]])
        return self.plains.get(value)

    def _root_type(self, value: int) -> Any:
        return self._type(value, self._route(value).root)

    def _bind_leaves(self, var: Any, expr: Any) -> None:
        """Note that the leaves of a Relax variable are fields of a new expression."""
        leaves = list(self.g.env[var])
        self.exprs[var] = expr
        _walk_fields(expr, var.ty, iter(leaves), self._home)

    def _home(self, value: int, expr: Any) -> None:
        if value >= 0 and value not in self.homes:
            self.homes[value] = expr

    # emission --------------------------------------------------------------------------

    def _emit(self, name: str, value: Any, ty: Any, var: Any = None) -> Any:
        """Bind an expression of known type; ``var`` keeps the kind of an old variable."""
        if isinstance(value, ir.Call):
            relax.expr._update_type(value, ty)
        inner = self.dataflow and (var is None or self._stays_inside(var))
        new = (relax.DataflowVar if inner else relax.Var)(name, ty)
        self.bindings.append(relax.VarBinding(new, value))
        return new

    def _stays_inside(self, var: Any) -> bool:
        """Whether a variable of a dataflow block is bound to one that the block hides."""
        return _is_dataflow(var) or any(var.same_as(s) for s in self.shadowed)

    def _form(self, value: int, form: Form, name: str | None = None, var: Any = None) -> Any:
        """Expression of a value in a form, converting it at most once."""
        route = self._route(value)
        if form == route.root:
            return self._at_home(value)
        key = (value, form)
        if key in self.made:
            return self.made[key]
        source = route.source(form)
        start = self._form(value, source)
        self.made[key] = self._convert(value, start, source, form, name, var)
        return self.made[key]

    def _at_home(self, value: int) -> Any:
        home = self.homes[value]
        if isinstance(home, relax.TupleGetItem):
            home = self._field(self.g.values[value].name, home)
            self.homes[value] = home
        return home

    def _field(self, name: str, expr: Any) -> Any:
        """Bind a field of a (nested) tuple step by step: each is taken of a variable."""
        whole = expr.tuple_value
        if isinstance(whole, relax.TupleGetItem):
            expr = relax.TupleGetItem(self._field(name, whole), expr.index)
        return self._emit(name, expr, expr.ty)

    def _convert(
        self, value: int, start: Any, have: Form, want: Form, name: str | None, var: Any
    ) -> Any:
        name = name or self.g.values[value].name
        mesh = self._mesh(value)
        pending = [i for i, x in enumerate(want) if x == P]
        moved = any(x != y and not (x == R and y == P) for x, y in zip(have, want))
        out = start
        if moved:
            complete = [R if x == P else x for x in want]
            call = redistribute(start, mesh, placement_of(complete))
            out = self._emit(name, call, self._type(value, want), None if pending else var)
        if pending:
            out = self._emit(name, ops.partial(out, mesh, pending), self._type(value, want), var)
        return out

    # bindings --------------------------------------------------------------------------

    def _binding(self, b: Any) -> None:
        var, value, name = b.var, b.value, b.var.name
        if var not in self.g.node_of:
            self._alias(b)
            return
        k = self.g.node_of[var]
        node = self.g.nodes[k]
        if node.kind == "pin":
            expr = self._operand(k, 0, value.args[0], name, var)
            if self.dataflow and _is_dataflow(expr) and not self._stays_inside(var):
                expr = self._emit(name, expr, expr.ty, var)
            self._home(node.results[0], expr)
            self.exprs[var] = expr
            return
        if node.kind == "call":
            call = ir.Call(self.callees[k], self._arguments(k, value.args), value.attrs)
        else:
            call = self._op(k, value)
        self._result_of(k, var, call)

    def _alias(self, b: Any) -> None:
        """A variable, a tuple, a field, a constant or a cast bound to a name."""
        var, value, name = b.var, b.value, b.var.name
        leaves = self.g.env[var]
        if isinstance(b, relax.MatchCast):
            expr = self._plain_expr(value)
            ty = _rebuilt(b.ty, iter([self._root_type(v) for v in leaves]))
            inner = self.dataflow and self._stays_inside(var)
            new = (relax.DataflowVar if inner else relax.Var)(name, ty)
            self.bindings.append(relax.MatchCast(new, expr, ty))
            self.exprs[var] = new
            for v in leaves:
                self.homes.pop(v, None)
            self._bind_leaves(var, new)
            return
        if value in self.g.env and self.exprs.get(value) is None:
            return
        expr = self._plain_expr(value)
        if _is_annotated_param(self.g, var, value):
            self.exprs[var] = expr
            return
        if isinstance(expr, relax.Tuple) and self._mixes_meshes(leaves):
            if not self.dataflow or self._stays_inside(var):
                self.exprs[var] = expr  # no program holds it: its readers take the fields
                return
        new = self._emit(name, expr, expr.ty, var)
        self.exprs[var] = new
        leaves_block = self.dataflow and not self._stays_inside(var)
        for v in leaves:
            if leaves_block or isinstance(self.homes.get(v), relax.TupleGetItem):
                self.homes.pop(v, None)
        self._bind_leaves(var, new)

    def _mixes_meshes(self, leaves: Sequence[int]) -> bool:
        return len({self.g.values[v].mesh for v in leaves if v >= 0}) > 1

    def _plain_expr(self, value: Any) -> Any:
        """An expression without conversions: values in their root forms."""
        if isinstance(value, ir.Call):  # an annotation that became its parameter's placement
            return self._plain_expr(value.args[0])
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._plain_expr(f) for f in value.fields])
        if isinstance(value, relax.TupleGetItem):
            whole = self._plain_expr(value.tuple_value)
            if isinstance(whole, relax.Tuple):
                return whole.fields[value.index]
            return relax.TupleGetItem(whole, value.index)
        if isinstance(value, ir.GenericConst):
            return self._constant(value, 0)
        if value in self.exprs:
            return self.exprs[value]
        return value

    def _constant(self, value: Any, mesh: int) -> Any:
        labels = [R] * len(self.decision.mesh_axes(mesh))
        return ir.GenericConst(value.value, as_dtensor(value.ty, self.meshes[mesh], labels))

    # operands --------------------------------------------------------------------------

    def _operand(self, k: int, i: int, old: Any, name: str | None = None, var: Any = None) -> Any:
        """Operand i of node k in the form the node wants."""
        v = self.g.nodes[k].operands[i]
        if v == CONST:
            return self._constant_operand(k, i, old)
        self._arrive(v)
        mesh = self.g.values[v].mesh
        form = self.decision.needs(self.inst, k, i, mesh)
        if form == self._route(v).root and old in self.exprs and self.g.env[old] == (v,):
            return self.exprs[old]
        return self._form(v, form, name, var)

    def _constant_operand(self, k: int, i: int, old: Any) -> Any:
        node = self.g.nodes[k]
        mesh = node.mesh
        if node.kind == "call":
            mesh = self.inst.kids[k].graph.values[self.inst.kids[k].graph.param_value(i)].mesh
        elif node.kind == "ret":
            mesh = 0
        form = self.decision.needs(self.inst, k, i, mesh)
        out = self._constant(old, mesh)
        have = [R] * len(form)
        ty = out.ty
        if any(x >= 0 for x in form):
            have = [max(x, R) for x in form]
            ty = as_dtensor(old.ty, self.meshes[mesh], have)
            out = self._emit("const", redistribute(out, self.meshes[mesh], placement_of(have)), ty)
        pending = [a for a, x in enumerate(form) if x == P]
        if pending:
            out = self._emit("const", ops.partial(out, self.meshes[mesh], pending), ty)
        return out

    def _arrive(self, v: int) -> None:
        """Emit the move that brings a value from another mesh, once."""
        if v in self.homes:
            return
        k, _ = self.g.producer[v]
        node = self.g.nodes[k]
        source = node.operands[0]
        self._arrive(source)
        mesh = self.g.values[source].mesh
        expr = self._form(source, self.decision.needs(self.inst, k, 0, mesh))
        root = self._route(v).root
        call = redistribute(expr, self._mesh(v), placement_of(root))
        self.homes[v] = self._emit(self.g.values[v].name, call, self._type(v, root))

    def _arguments(self, k: int, args: Sequence[Any]) -> list[Any]:
        """All arguments of a call, tensors in their wanted forms."""
        position = 0

        def convert(old: Any) -> Any:
            nonlocal position
            ty = old.ty
            if isinstance(ty, relax.TupleType):
                if isinstance(old, relax.Tuple):
                    fields = [convert(f) for f in old.fields]
                else:
                    fields = [convert(relax.TupleGetItem(old, i)) for i in range(len(ty.fields))]
                whole = self._unchanged_tuple(old, fields)
                return whole if whole is not None else relax.Tuple(fields)
            if not carries_value(ty):
                return old
            position += 1
            return self._operand(k, position - 1, old)

        return [convert(a) for a in args]

    def _unchanged_tuple(self, old: Any, fields: list[Any]) -> Any:
        """The old tuple variable's expression when every field is used as it is there."""
        expr = self.exprs.get(old) if old in self.exprs else None
        if expr is None or not isinstance(expr.ty, relax.TupleType):
            return None
        leaves = self.g.env[old]
        if len(leaves) != len(fields) or any(v < 0 for v in leaves):
            return None
        same = all(f.same_as(self.homes.get(v)) for f, v in zip(fields, leaves))
        return expr if same else None

    # results ---------------------------------------------------------------------------

    def _op(self, k: int, old: ir.Call) -> Any:
        args = self._arguments(k, old.args)
        if isinstance(old.op, relax.ExternFunc):
            types = [self._field_type(k, j, t) for j, t in enumerate(old.ty_args)]
            return ir.Call(distributed_name(old.op), args, old.attrs, types)
        if isinstance(old.op, ir.Op) and not self.g.nodes[k].operands:
            return self._created(k, old)
        if isinstance(old.op, ir.Op) and str(old.op.name) == "relax.call_tir":
            count = len(self.g.nodes[k].results)
            types = [self._raw_type(k, j) for j in range(count)]
            return dist_call_tir(args[0], args[1], types)
        return ir.Call(old.op, args, old.attrs, old.ty_args)

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
        return self._type(v, self.decision.value_form(self.inst, v))

    def _result_of(self, k: int, var: Any, call: Any) -> None:
        """Bind a call; wrap results whose pending reduction must wait."""
        node, name = self.g.nodes[k], var.name
        types = [
            self._raw_type(k, j) if self._plain(v) is not None else t
            for j, (v, t) in enumerate(zip(node.results, value_types(var.ty)))
        ]
        ty = _rebuilt(var.ty, iter(types))
        waits = [self._waiting(k, v) for v in node.results]
        single = not isinstance(var.ty, relax.TupleType)
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
        if node.rule is None:
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
        position = 0
        body = self.old.body.body

        def convert(old: Any, ty: Any) -> Any:
            nonlocal position
            if isinstance(ty, relax.TupleType):
                if old is not None and not isinstance(old, relax.Tuple) and old in self.exprs:
                    rets = self.g.rets[position : position + len(self.g.env[old])]
                    if all(self._returns_root(k) for k in rets):
                        position += len(rets)
                        return self.exprs[old]
                fields = []
                for i, t in enumerate(ty.fields):
                    item = old.fields[i] if isinstance(old, relax.Tuple) else None
                    fields.append(convert(item, t))
                return relax.Tuple(fields)
            if not carries_value(ty):
                return old
            k = self.g.rets[position]
            position += 1
            v = self.g.nodes[k].operands[0]
            if v == CONST:
                return self._constant_operand(k, 0, old)
            self._arrive(v)
            form = self.decision.needs(self.inst, k, 0, self.g.values[v].mesh)
            if form == self._route(v).root and old is not None and old in self.exprs:
                return self.exprs[old]
            return self._form(v, form)

        return convert(body, body.ty)


def _read_inside(block: Any) -> list[Any]:
    """Outputs of a dataflow block that it reads itself, in order of binding.

    TVM's parser infers the types of their readers anew, from what its own inference knows; so
    inside the block they get names of their own.
    """
    outputs = {b.var: False for b in block.bindings if not _is_dataflow(b.var)}

    def note(expr: Any) -> None:
        if isinstance(expr, relax.Tuple):
            for field in expr.fields:
                note(field)
        elif isinstance(expr, relax.TupleGetItem):
            note(expr.tuple_value)
        elif isinstance(expr, ir.Var) and expr in outputs:
            outputs[expr] = True

    for b in block.bindings:
        for expr in b.value.args if isinstance(b.value, ir.Call) else (b.value,):
            note(expr)
    return [var for var, read in outputs.items() if read]


def _is_dataflow(expr: Any) -> bool:
    return isinstance(expr, relax.DataflowVar)


def _is_annotated_param(g: Any, var: Any, value: Any) -> bool:
    """A variable bound to an annotation that became its parameter's own placement."""
    return isinstance(value, ir.Call) and var not in g.node_of


def _rebuilt(ty: Any, leaves: Any) -> Any:
    """A type of the same nesting with new leaves; None keeps the old leaf."""
    if isinstance(ty, relax.TupleType):
        return relax.TupleType([_rebuilt(f, leaves) for f in ty.fields])
    if not carries_value(ty):
        return ty
    new = next(leaves, None)
    return ty if new is None else new


def _walk_fields(expr: Any, ty: Any, leaves: Any, visit: Any) -> None:
    """Visit (leaf number, expression of that field) over a nested tuple type."""
    if not isinstance(ty, relax.TupleType):
        if carries_value(ty):
            visit(next(leaves), expr)
        return
    for i, field in enumerate(ty.fields):
        _walk_fields(relax.TupleGetItem(expr, i), field, leaves, visit)
