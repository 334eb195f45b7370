# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One binding after the other from level 4 to level 5."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from ...errors import LoweringError, PropagationError
from ...ir import REDUCTIONS, call_axes, dist_op_name, flat_types, ops, static_shape, tensor_type
from ...ir.rewrite import (
    VARIABLES,
    is_tensors,
    leaves_of,
    place_of,
    rebuild,
    substitute,
    tensor_args,
)
from ...ops import (
    Terms,
    attribute_axes,
    axes_of,
    call_form,
    carried,
    is_packed_call,
    registration_of,
    rule_of,
    sums,
    within,
    without,
)
from ...ops.local import (
    LocalCall,
    Operand,
    Shard,
    expected_mismatch,
    folded,
    is_foldable,
    local_form,
    shard,
    stays_zero,
)
from ...redistribution import terms_of
from .collectives import collective, reduced_terms
from .packed import packed_call
from .values import Values

REPLICA_TO_SHARD = "relax.dist.redistribute_replica_to_shard"


class Bindings:
    """Lowers bindings one by one.

    Parameters
    ----------
    values : Values
        Of the function that they stand in.
    """

    def __init__(self, values: Values) -> None:
        self.values = values
        self.forms = values.context.forms

    def _here(self, var: Any, value: Any) -> bool:
        values = self.values
        where = values.context.meshes_of(var.ty)
        fields = self._fields(value) if len(where) > 1 else None
        if fields is not None:
            values.tuples[var] = fields
            if values.writer.dataflow and not isinstance(var, relax.DataflowVar):
                self._let_out(fields)
            values.note(
                var,
                [values.terms_of(e, n) for e, n, _ in leaves_of(relax.Tuple(fields))],
                False,
            )
            return False
        if type(value) is relax.TupleGetItem and value.tuple_value in values.tuples:
            item = values.tuples[value.tuple_value][int(value.index)]
            if values.number in where:
                terms = [values.terms_of(e, n) for e, n, _ in leaves_of(item)]
                values.bind(var, values.local(item), terms, False)
            return False
        if not where:
            return not is_tensors(var.ty) or not isinstance(value, ir.Call)
        return values.number in where

    def _fields(self, value: Any) -> list[Any] | None:
        """Fields of what is a tuple over several meshes; None for other values."""
        values = self.values
        if isinstance(value, relax.Tuple):
            return list(value.fields)
        if type(value) is relax.TupleGetItem and value.tuple_value in values.tuples:
            return self._fields(values.tuples[value.tuple_value][int(value.index)])
        return values.tuples.get(value) if isinstance(value, ir.Var) else None

    def _let_out(self, fields: Iterable[Any]) -> None:
        """What a tuple that spans meshes takes out of its dataflow block leaves it one by one."""
        values = self.values
        for field in fields:
            if isinstance(field, relax.Tuple):
                self._let_out(field.fields)
            elif isinstance(field, ir.Var) and field in values.tuples:
                self._let_out(values.tuples[field])
            elif isinstance(field, relax.DataflowVar):
                if values.number not in values.context.meshes_of(field.ty):
                    continue
                value = values.local(field)
                if isinstance(value, relax.DataflowVar):
                    values.env[field] = relax.Var(str(field.name), value.ty)
                    values.writer.bind(values.env[field], value)

    def visit(self, var: Any, value: Any, like: int = -1) -> None:
        """Write the local form of a binding, if it belongs to this mesh."""
        if not self._here(var, value):
            return
        kind = dist_op_name(value)
        is_call = type(value) is ir.Call
        op: Any = value.op if is_call else None
        name = str(op.name) if type(op) is ir.Op else ""
        if name in ("relax.dist.redistribute", "relax.dist.annotate_sharding"):
            raise self.values.level_fault("the module is not legalized yet", var, value)
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
        elif type(op) is ir.GlobalVar:
            self._function_call(var, value)
        elif is_packed_call(value):
            local = self.values.builder.normalize(packed_call(self.values, var, value))
            self.values.bind(var, local, [], False)
        elif type(op) is ir.Op:
            self._op_call(var, value, like)
        elif is_call:
            raise self.values.fault(
                "DIST0506",
                "what it does on shards is not known",
                var,
                value,
                "Call a Relax op or a PrimFunc instead.",
            )
        elif type(value) is relax.TupleGetItem:
            fields = value.tuple_value.ty.fields[: int(value.index)]
            first = sum(len(flat_types(f)) for f in fields)
            count = len(flat_types(var.ty))
            terms = [self.values.terms_of(value.tuple_value, first + i) for i in range(count)]
            zero = all(self.values.zero_of(value.tuple_value, first + i) for i in range(count))
            local = relax.TupleGetItem(self.values.local(value.tuple_value), int(value.index))
            self.values.bind(var, self.values.builder.normalize(local), terms, zero)
        else:
            leaves = list(leaves_of(value)) if is_tensors(var.ty) else []
            terms = [self.values.terms_of(e, n) for e, n, _ in leaves]
            local = self.values.local(value)
            for i, (e, n, _) in enumerate(leaves):
                if self.values.zero_of(e, n):
                    self.values.zero[(var, i)] = True
            self.values.bind(var, local, terms, False)

    def _transfer(self, var: Any, value: ir.Call, kind: str) -> None:
        values = self.values
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
            values.bind(var, values.builder.normalize(call), [()], False)
            return
        source = value.args[0]
        if values.terms_of(source, 0):
            raise values.level_fault("it sends an unfinished reduction", var, value)
        call = rebuild(value, value.op, [values.local(source)])
        values.bind(var, values.builder.normalize(call), [()], values.zero_of(source, 0))

    def _collective(self, var: Any, value: ir.Call, kind: str) -> None:
        if kind == "axis_index":
            raise self.values.level_fault("axis_index belongs to level 5", var, value)
        self._move(var, value, kind, value.attrs)

    def _move(self, var: Any, value: ir.Call, kind: str, attrs: Any) -> None:
        values = self.values
        source = value.args[0]
        terms = values.terms_of(source, 0)
        if kind in REDUCTIONS:
            axes = list(call_axes(value))
            known = dict(terms)
            if any(known.get(a) != str(attrs["op"]) for a in axes):
                raise values.fault(
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
                raise values.level_fault("it wraps a value that is unfinished already", var, value)
            terms = tuple(sorted((*terms, *((a, str(attrs["op"])) for a in axes))))
        want = values.shard_of(var.ty, place_of(values.name, var, value))
        local, name = values.local(source), str(var.name)
        move = terms_of(value)
        if move is None:
            local = collective(values.writer, kind, attrs, local, want.local, name)
        else:
            local = reduced_terms(values.writer, move, attrs, local, name)
        local = values.builder.normalize(local)
        self._check(local.ty, [want], var, value)
        values.bind(var, local, [terms], values.zero_of(source, 0) and _sum_like(kind, attrs))

    def _function_call(self, var: Any, value: ir.Call) -> None:
        values = self.values
        callee = values.context.mod[value.op]
        params, results = attribute_axes(callee, "params"), attribute_axes(callee, "results")
        at = 0
        for arg in value.args:
            for expr, number, _ in leaves_of(arg) if is_tensors(arg.ty) else ():
                if axes_of(values.terms_of(expr, number)) != params.get(at, ()):
                    raise values.level_fault(
                        f"argument {at} is partial along "
                        f"{list(axes_of(values.terms_of(expr, number)))}, the callee expects "
                        f"{list(params.get(at, ()))}",
                        var,
                        value,
                    )
                at += 1
        args = [values.local(a) for a in value.args]
        call = values.builder.normalize(rebuild(value, values.context.callees[value.op], args))
        terms = [sums(results.get(i, ())) for i in range(len(flat_types(var.ty)))]
        values.bind(var, call, terms, False)

    def _op_call(self, var: Any, value: ir.Call, like: int) -> None:
        values = self.values
        if not is_tensors(var.ty):
            values.bind(var, substitute(value, values.env), [], False)
            return
        place = place_of(values.name, var, value)
        folds = False
        if is_foldable(value):
            values.foldable[var] = value
        elif values.foldable and len(value.args) and type(value.args[0]) in VARIABLES:
            source = values.foldable.get(value.args[0])
            if source is not None:
                folds = True
                value = folded(value, source, values.context.mod, values.name, var)
        outs = flat_types(var.ty)
        form = None if folds else self.forms.get(like)
        if form is None:
            form = call_form(value, outs, values.context.mod, values.name, var)
            if like >= 0 and not folds:
                self.forms[like] = form
        operands = [leaf for arg in tensor_args(value) for leaf in leaves_of(arg)]
        handed = self._handed(var, value, form, operands)
        ins = []
        for (expr, number, ty), labels in zip(operands, form.ins):
            if type(expr) is ir.GenericConst:
                shape = static_shape(ty) or ()
                plain: Any = tensor_type(ty)
                own = shard(shape, labels, values.sizes, str(plain.dtype))
                ins.append(Operand(values.constant(expr, labels), None, own, True))
                continue
            if (
                type(ty) is DTensorType
                and values.context.mesh_number(ty.device_mesh) != values.number
            ):
                raise values.fault(
                    "DIST0503",
                    "an operand lies on another mesh than the result",
                    var,
                    value,
                    "Redistribute it to the mesh of the result.",
                )
            at = number if type(expr.ty) is relax.TupleType else None
            own = values.shard_of(ty, place)
            ins.append(Operand(values.local(expr), at, own, values.zero_of(expr, number)))
        wanted = [values.shard_of(t, place) for t in outs]
        cx = LocalCall(
            value,
            form,
            value.args,
            ins,
            wanted,
            values.mesh,
            values.writer,
            values.name,
            var,
            values.memo,
        )
        said = registration_of(str(value.op.name))
        local = local_form(cx, said, values.context.mod, values.context.prim_funcs)
        local = self._normalized(local, var, value)
        self._check(local.ty, wanted, var, value)
        zero = not any(o.padded_dims for o in wanted) or stays_zero(cx, said)
        terms = tuple(sorted((*form.terms, *handed)))
        values.bind(var, local, [terms] * len(outs), zero)

    def _normalized(self, local: Any, var: Any, value: Any) -> Any:
        values = self.values
        if type(local) in VARIABLES:
            return local
        try:
            return values.builder.normalize(local)
        except (LoweringError, PropagationError):
            raise
        except Exception as error:
            lines = [x for x in str(error).strip().splitlines() if x.strip()]
            raise values.fault(
                "DIST0505",
                f"the op refuses shards: {lines[-1].strip() if lines else type(error).__name__}",
                var,
                value,
                "Replicate its operands, or register its rule with a local form.",
            ) from error

    def _handed(self, var: Any, value: ir.Call, form: Any, operands: Sequence[Any]) -> Terms:
        """Terms that the call carries; everything unfinished must be carried."""
        values = self.values
        have = [values.terms_of(e, n) for e, n, _ in operands]
        if not any(have):
            return ()
        rule = form.rule or rule_of(value, values.context.mod)
        constants = [i for i, (e, _, _) in enumerate(operands) if isinstance(e, ir.GenericConst)]
        handed, needed = carried(rule, have, constants, form)
        if needed or any(without(t, axes_of(handed)) for t in have):
            raise values.level_fault("it reads an unfinished reduction", var, value)
        return handed

    def _check(self, ty: Any, wanted: Sequence[Shard], var: Any, value: Any) -> None:
        wrong = expected_mismatch(ty, wanted)
        if wrong:
            raise self.values.fault(
                "DIST0505",
                wrong,
                var,
                value,
                "Replicate its operands, or register its rule with a local form.",
            )


def _sum_like(kind: str, attrs: Any) -> bool:
    """Whether zeros in the padding stay zeros through a collective."""
    return kind not in ("all_reduce", "reduce_scatter", "partial") or str(attrs["op"]) == "sum"
