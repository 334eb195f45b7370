# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One binding after the other from level 4 to level 5."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from ...errors import LoweringError, PropagationError
from ...ir import (
    flat_types,
    ops,
    static_shape,
    tensor_type,
)
from ...ir.ops import call_axes, dist_op_name
from ...rules import is_packed_call, rule_of
from ..legalize.emit import (
    TIR_CALLS,
    is_tensors,
    leaves_of,
    place_of,
    rebuild,
    substitute,
    tensor_args,
)
from ..legalize.shards import terms_of
from ..legalize.terms import (
    Terms,
    attribute_axes,
    axes_of,
    call_form,
    carried,
    sums,
    within,
    without,
)
from .calls import LocalCall, expected_mismatch, handlers
from .collectives import collective, reduced_terms
from .fold import folded, is_foldable
from .packed import packed_call
from .padding import protect, stays_zero
from .shard import Operand, Shard, shard
from .tir import call_tir
from .values import Values

REPLICA_TO_SHARD = "relax.dist.redistribute_replica_to_shard"
REDUCERS = ("all_reduce", "reduce_scatter")


class Bindings(Values):
    """Lowers bindings, see :class:`.function.LocalFunction`."""

    def _here(self, var: Any, value: Any) -> bool:
        where = self.context.meshes_of(var.ty)
        fields = self._fields(value) if len(where) > 1 else None
        if fields is not None:
            self.tuples[var] = fields
            if self.writer.dataflow and not isinstance(var, relax.DataflowVar):
                self._let_out(fields)
            self._note(
                var, [self._terms_of(e, n) for e, n, _ in leaves_of(relax.Tuple(fields))], False
            )
            return False
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.tuples:
            item = self.tuples[value.tuple_value][int(value.index)]
            if self.number in where:
                terms = [self._terms_of(e, n) for e, n, _ in leaves_of(item)]
                self._bind(var, self._local(item), terms, False)
            return False
        if not where:
            return not is_tensors(var.ty) or not isinstance(value, ir.Call)
        return self.number in where

    def _fields(self, value: Any) -> list[Any] | None:
        """Fields of what is a tuple over several meshes; None for other values."""
        if isinstance(value, relax.Tuple):
            return list(value.fields)
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.tuples:
            return self._fields(self.tuples[value.tuple_value][int(value.index)])
        return self.tuples.get(value) if isinstance(value, ir.Var) else None

    def _let_out(self, fields: Iterable[Any]) -> None:
        """What a tuple that spans meshes takes out of its dataflow block leaves it one by one."""
        for field in fields:
            if isinstance(field, relax.Tuple):
                self._let_out(field.fields)
            elif isinstance(field, ir.Var) and field in self.tuples:
                self._let_out(self.tuples[field])
            elif isinstance(field, relax.DataflowVar):
                if self.number not in self.context.meshes_of(field.ty):
                    continue
                value = self._local(field)
                if isinstance(value, relax.DataflowVar):
                    self.env[field] = relax.Var(str(field.name), value.ty)
                    self.writer.bind(self.env[field], value)

    def _visit(self, var: Any, value: Any) -> None:
        if not self._here(var, value):
            return
        kind = dist_op_name(value)
        name = (
            str(value.op.name) if isinstance(value, ir.Call) and isinstance(value.op, ir.Op) else ""
        )
        if name in ("relax.dist.redistribute", "relax.dist.annotate_sharding"):
            raise self._level("the module is not legalized yet", var, value)
        if kind in ("send", "recv"):
            self._transfer(var, value, kind)
        elif kind is not None:
            self._collective(var, value, kind)
        elif name == REPLICA_TO_SHARD:
            attrs = {
                "device_mesh": var.ty.device_mesh,
                "mesh_axis": 0,
                "dim": int(value.attrs.axis),
            }
            self._move(var, value, "local_slice", attrs)
        elif isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar):
            self._function_call(var, value)
        elif is_packed_call(value):
            local = self.builder.normalize(packed_call(self, var, value))
            self._bind(var, local, [], False)
        elif isinstance(value, ir.Call) and isinstance(value.op, ir.Op):
            self._op_call(var, value)
        elif isinstance(value, ir.Call):
            raise self._fault(
                "DIST0506",
                "what it does on shards is not known",
                var,
                value,
                "Call a Relax op or a PrimFunc instead.",
            )
        elif isinstance(value, relax.TupleGetItem):
            fields = list(value.tuple_value.ty.fields)[: int(value.index)]
            first = sum(len(flat_types(f)) for f in fields)
            count = len(flat_types(var.ty))
            terms = [self._terms_of(value.tuple_value, first + i) for i in range(count)]
            zero = all(self._zero_of(value.tuple_value, first + i) for i in range(count))
            local = relax.TupleGetItem(self._local(value.tuple_value), int(value.index))
            self._bind(var, self.builder.normalize(local), terms, zero)
        else:
            leaves = list(leaves_of(value)) if is_tensors(var.ty) else []
            terms = [self._terms_of(e, n) for e, n, _ in leaves]
            local = self._local(value)
            for i, (e, n, _) in enumerate(leaves):
                if self._zero_of(e, n):
                    self.zero[(var, i)] = True
            self._bind(var, local, terms, False)

    def _transfer(self, var: Any, value: ir.Call, kind: str) -> None:
        if kind == "recv":
            names = (
                "device_mesh",
                "peer_mesh",
                "placement",
                "peer_placement",
                "shape",
                "dtype",
                "tag",
            )
            call = ops.recv(**{n: value.attrs[n] for n in names})
            self._bind(var, self.builder.normalize(call), [()], False)
            return
        source = value.args[0]
        if self._terms_of(source, 0):
            raise self._level("it sends an unfinished reduction", var, value)
        call = rebuild(value, value.op, [self._local(source)])
        self._bind(var, self.builder.normalize(call), [()], self._zero_of(source, 0))

    def _collective(self, var: Any, value: ir.Call, kind: str) -> None:
        if kind == "axis_index":
            raise self._level("axis_index belongs to level 5", var, value)
        self._move(var, value, kind, value.attrs)

    def _move(self, var: Any, value: ir.Call, kind: str, attrs: Any) -> None:
        source = value.args[0]
        terms = self._terms_of(source, 0)
        if kind in REDUCERS:
            axes = list(call_axes(value))
            known = dict(terms)
            if any(known.get(a) != str(attrs["op"]) for a in axes):
                raise self._fault(
                    "DIST0503",
                    f"it reduces ({attrs['op']}) along the mesh axes {axes}, where its operand "
                    f"is {'unfinished: ' + str(terms) if terms else 'complete'}",
                    var,
                    value,
                    "Reduce each unfinished axis once, with its own op.",
                )
            terms = without(terms, axes)
        elif kind == "partial":
            axes = [int(a) for a in attrs["mesh_axes"]]
            if within(terms, axes):
                raise self._level("it wraps a value that is unfinished already", var, value)
            terms = tuple(sorted((*terms, *((a, str(attrs["op"])) for a in axes))))
        want = self.shard_of(var.ty, place_of(self.name, var, value))
        local, name = self._local(source), str(var.name)
        move = terms_of(value)
        if move is None:
            local = collective(self.writer, kind, attrs, local, want.local, name)
        else:
            local = reduced_terms(self.writer, move, attrs, local, name)
        local = self.builder.normalize(local)
        self._check(local.ty, [want], var, value)
        self._bind(var, local, [terms], self._zero_of(source, 0) and _sum_like(kind, attrs))

    def _function_call(self, var: Any, value: ir.Call) -> None:
        callee = self.context.mod[value.op]
        params, results = attribute_axes(callee, "params"), attribute_axes(callee, "results")
        at = 0
        for arg in value.args:
            for expr, number, _ in leaves_of(arg) if is_tensors(arg.ty) else ():
                if axes_of(self._terms_of(expr, number)) != params.get(at, ()):
                    raise self._level(
                        f"argument {at} is partial along "
                        f"{list(axes_of(self._terms_of(expr, number)))}, the callee expects "
                        f"{list(params.get(at, ()))}",
                        var,
                        value,
                    )
                at += 1
        args = [self._local(a) for a in value.args]
        call = self.builder.normalize(rebuild(value, self.context.callees[value.op], args))
        terms = [sums(results.get(i, ())) for i in range(len(flat_types(var.ty)))]
        self._bind(var, call, terms, False)

    def _op_call(self, var: Any, value: ir.Call) -> None:
        if not is_tensors(var.ty):
            self._bind(var, substitute(value, self.env), [], False)
            return
        place = place_of(self.name, var, value)
        if is_foldable(value):
            self.caches[("folds", var)] = value
        elif len(value.args) and isinstance(value.args[0], relax.Var):
            source = self.caches.get(("folds", value.args[0]))
            if source is not None:
                value = folded(value, source, self.context.mod, self.name, var)
        outs = flat_types(var.ty)
        form = call_form(value, outs, self.context.mod, self.name, var)
        operands = [leaf for arg in tensor_args(value) for leaf in leaves_of(arg)]
        handed = self._handed(var, value, form, operands)
        ins = []
        for (expr, number, ty), labels in zip(operands, form.ins):
            if isinstance(expr, ir.GenericConst):
                shape = static_shape(ty) or ()
                plain: Any = tensor_type(ty)
                own = shard(shape, labels, self.sizes, str(plain.dtype))
                ins.append(Operand(self._constant(expr, labels), None, own, True))
                continue
            if (
                isinstance(ty, DTensorType)
                and self.context.mesh_number(ty.device_mesh) != self.number
            ):
                raise self._fault(
                    "DIST0503",
                    "an operand lies on another mesh than the result",
                    var,
                    value,
                    "Redistribute it to the mesh of the result.",
                )
            at = number if isinstance(expr.ty, relax.TupleType) else None
            own = self.shard_of(ty, place)
            ins.append(Operand(self._local(expr), at, own, self._zero_of(expr, number)))
        wanted = [self.shard_of(t, place) for t in outs]
        cx = LocalCall(
            value,
            form,
            value.args,
            ins,
            wanted,
            self.mesh,
            self.writer,
            self.name,
            var,
            self.caches,
        )
        protect(cx)
        handler = handlers().get(str(value.op.name))
        if str(value.op.name) in TIR_CALLS:
            local = call_tir(cx, self.context.mod, self.context.prim_funcs)
        else:
            local = handler(cx) if handler and form.sharded else cx.same()
        local = self._normalized(local, var, value)
        self._check(local.ty, wanted, var, value)
        zero = not any(o.padded_dims for o in wanted) or stays_zero(cx)
        terms = tuple(sorted((*form.terms, *handed)))
        self._bind(var, local, [terms] * len(outs), zero)

    def _normalized(self, local: Any, var: Any, value: Any) -> Any:
        if isinstance(local, ir.Var):
            return local
        try:
            return self.builder.normalize(local)
        except (LoweringError, PropagationError):
            raise
        except Exception as error:
            lines = [x for x in str(error).strip().splitlines() if x.strip()]
            raise self._fault(
                "DIST0505",
                f"the op refuses shards: {lines[-1].strip() if lines else type(error).__name__}",
                var,
                value,
                "Replicate its operands, or register_local a form for shards.",
            ) from error

    def _handed(self, var: Any, value: ir.Call, form: Any, operands: Sequence[Any]) -> Terms:
        """Terms that the call carries; everything unfinished must be carried."""
        have = [self._terms_of(e, n) for e, n, _ in operands]
        if not any(have):
            return ()
        rule = form.rule or rule_of(value, self.context.mod)
        constants = [i for i, (e, _, _) in enumerate(operands) if isinstance(e, ir.GenericConst)]
        handed, needed = carried(rule, have, constants, form)
        if needed or any(without(t, axes_of(handed)) for t in have):
            raise self._level("it reads an unfinished reduction", var, value)
        return handed

    def _check(self, ty: Any, wanted: Sequence[Shard], var: Any, value: Any) -> None:
        wrong = expected_mismatch(ty, wanted)
        if wrong:
            raise self._fault(
                "DIST0505",
                wrong,
                var,
                value,
                "Replicate its operands, or register_local a form for shards.",
            )


def _sum_like(kind: str, attrs: Any) -> bool:
    """Whether zeros in the padding stay zeros through a collective."""
    return kind not in ("all_reduce", "reduce_scatter", "partial") or str(attrs["op"]) == "sum"
