# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What nobody reads: bindings, and parameters and results of private functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax

from ...ir import (
    PARAM_NAMES_ATTR,
    PARTIAL_ATTR,
    branch_of,
    flat_types,
    is_private,
)
from ...ir.rewrite import (
    let_out,
    pruned,
    rebuild,
    retyped,
    substitute,
    typed,
    variables,
    with_body,
)
from ...native import FUNCTION_CALL, ITEM, Member, Readings, read_module
from ..declaration import Rewrite, module_pass
from .dead import without_dead


@module_pass("legalized")
def RemoveUnused() -> Rewrite:
    """Remove what nobody reads, through private functions too.

    Pure bindings, collectives among them, and the parameters and the fields of the result of
    private functions that no function or caller reads; those of all branches of an ``If`` alike.
    No number changes.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return removed


@dataclass(frozen=True)
class KeptParts:
    """Positions of the parameters of a function, and of the fields of its result, that stay."""

    params: tuple[int, ...]
    fields: tuple[int, ...]


def removed(mod: ir.IRModule, readings: Readings | None = None) -> ir.IRModule:
    """Apply :func:`RemoveUnused`; ``readings`` are those of its functions, as far as there are."""
    readings = Readings() if readings is None else readings
    while True:
        members = [without_dead(m, readings) for m in read_module(mod, readings=readings)]
        order = [(m.gv, m.fn) for m in members]
        reads = _alike(order, _fields_read(members))
        kept: dict[str, KeptParts] = {}
        renamed: dict[Any, Any] = {}
        bodies: dict[str, relax.Function] = {}
        for member in members:
            name, fn = member.name, member.fn
            new = fn
            if any(callee in renamed for callee in member.reading.callees):
                new = _Calls(fn, name, kept, renamed).run()
            if name in reads:
                whole = None if new is not fn else _all_kept(member, reads[name])
                if whole is None:
                    new, kept[name] = _narrowed(new, reads[name])
                else:
                    kept[name] = whole
            if _size(new) != _size(fn):
                params = [p.ty for p in new.params]
                renamed[member.gv] = retyped(
                    member.gv, relax.FuncType(params, new.ret_ty, bool(new.is_pure))
                )
            bodies[name] = new
        if all(mod[member.gv].same_as(bodies[member.name]) for member in members):
            return mod
        functions = {
            renamed.get(gv, gv): bodies.get(str(gv.name_hint), fn)
            for gv, fn in mod.functions.items()
        }
        mod = ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        if not renamed:
            return mod


def _all_kept(member: Member, read: set[int] | None) -> KeptParts | None:
    """What stays of a function of which everything does, else None."""
    fn, reading = member.fn, member.reading
    fields = len(fn.ret_ty.fields) if isinstance(fn.ret_ty, relax.TupleType) else 0
    if read is not None and fields and len(read) < fields:
        return None
    used = {*reading.reads, *reading.result}
    if not used.issuperset(range(reading.params)):
        return None
    return KeptParts(tuple(range(reading.params)), tuple(range(fields)))


def _size(fn: relax.Function) -> tuple[int, int]:
    """Numbers of parameters and of fields of the result."""
    fields = len(fn.ret_ty.fields) if isinstance(fn.ret_ty, relax.TupleType) else 1
    return len(fn.params), fields


def _fields_read(members: Sequence[Member]) -> dict[str, set[int] | None]:
    """Fields of the results of private functions that callers read; None: all of them."""
    found: dict[str, set[int] | None] = {m.name: set() for m in members if is_private(m.fn)}
    for member in members:
        reading = member.reading
        calls: dict[int, str] = {}
        for number, kind in enumerate(reading.kinds):
            used = reading.used(number)
            if kind == ITEM and reading.like[number] >= 0 and used[0] in calls:
                fields = found[calls[used[0]]]
                if fields is not None:
                    fields.add(int(reading.values[number].index))
                continue
            for n in used:
                if n in calls:
                    found[calls[n]] = None
            if kind == FUNCTION_CALL:
                callee = str(reading.values[number].op.name_hint)
                if callee in found:
                    calls[reading.params + number] = callee
        for n in reading.result:
            if n in calls:
                found[calls[n]] = None
    return found


def _alike(
    order: Sequence[tuple[Any, relax.Function]], reads: dict[str, set[int] | None]
) -> dict[str, set[int] | None]:
    """Let all branches of an ``If`` keep the same fields: those that anybody reads of any."""
    groups: dict[str, list[tuple[str, relax.Function]]] = {}
    for gv, fn in order:
        found = branch_of(fn)
        if found is not None:
            groups.setdefault(found[0], []).append((str(gv.name_hint), fn))
    for members in groups.values():
        read: set[int] | None = set()
        for name, fn in members:
            fields = reads[name]
            known = isinstance(_result_value(fn), relax.Tuple)
            read = read | fields if known and read is not None and fields is not None else None
        reads.update({name: read for name, _ in members})
    return reads


def _narrowed(fn: relax.Function, read: set[int] | None) -> tuple[relax.Function, KeptParts]:
    """Drop the parameters of a private function, and fields of its result, that nobody reads."""
    result, fields = _narrow_result(fn, read)
    blocks, result = let_out(fn.body.blocks, result)
    blocks, _ = pruned(blocks, result)
    used = set(variables(result))
    for block in blocks:
        for binding in block.bindings:
            used.update(variables(binding.value))
    params = tuple(i for i, p in enumerate(fn.params) if p in used)
    attrs = _attributes(fn, params, fields)
    new = with_body(fn, [fn.params[i] for i in params], blocks, result, bool(fn.is_pure), attrs)
    return new, KeptParts(params, fields)


def _narrow_result(fn: relax.Function, read: set[int] | None) -> tuple[Any, tuple[int, ...]]:
    result = fn.body.body
    if not isinstance(fn.ret_ty, relax.TupleType):
        return result, ()
    count = len(fn.ret_ty.fields)
    every = tuple(range(count))
    whole = _result_value(fn)
    if read is None or len(read) == count or not isinstance(whole, relax.Tuple):
        return result, every
    fields = tuple(sorted(read)) or (0,)
    if fields == every:
        return result, every
    items = [whole.fields[i] for i in fields]
    return typed(relax.Tuple(items), relax.TupleType([x.ty for x in items])), fields


def _result_value(fn: relax.Function) -> Any:
    """What a function returns, looked up where it is a variable."""
    result = fn.body.body
    values = {b.var: b.value for block in fn.body.blocks for b in block.bindings}
    return values.get(result, result) if isinstance(result, ir.Var) else result


def _attributes(fn: relax.Function, params: Sequence[int], fields: Sequence[int]) -> Any:
    """Attributes of a function of fewer parameters and results."""
    attrs = dict(fn.attrs.items()) if fn.attrs else {}
    if PARAM_NAMES_ATTR in attrs:
        names = list(attrs[PARAM_NAMES_ATTR])
        attrs[PARAM_NAMES_ATTR] = [names[i] for i in params]
    if PARTIAL_ATTR in attrs:
        leaves = [len(flat_types(p.ty)) for p in fn.params]
        results = (
            [len(flat_types(f)) for f in fn.ret_ty.fields]
            if isinstance(fn.ret_ty, relax.TupleType)
            else [1]
        )
        attrs[PARTIAL_ATTR] = {
            side: _renumbered(attrs[PARTIAL_ATTR][side], sizes, chosen)
            for side, sizes, chosen in (
                ("params", leaves, params),
                ("results", results, fields or [0]),
            )
            if side in attrs[PARTIAL_ATTR]
        }
    return ir.make_node("ir.DictAttrs", **attrs) if attrs else None


def _renumbered(table: Any, sizes: Sequence[int], chosen: Sequence[int]) -> dict[str, Any]:
    """Entries of flattened tensors, by their numbers among those that stay."""
    new: dict[str, Any] = {}
    at = 0
    for i in chosen:
        first = sum(sizes[:i])
        for leaf in range(sizes[i]):
            if str(first + leaf) in table:
                new[str(at + leaf)] = table[str(first + leaf)]
        at += sizes[i]
    return new


class _Calls:
    """Rewrites the calls of functions that have changed; drops what nobody reads."""

    def __init__(
        self,
        fn: relax.Function,
        name: str,
        kept: Mapping[str, KeptParts],
        renamed: Mapping[Any, Any],
    ) -> None:
        self.fn, self.name, self.kept = fn, name, kept
        self.env: dict[Any, Any] = dict(renamed)
        self.fields: dict[Any, tuple[int, ...]] = {}

    def run(self) -> relax.Function:
        """Return the function."""
        fn, blocks = self.fn, []
        for block in fn.body.blocks:
            dataflow = isinstance(block, relax.DataflowBlock)
            bindings = [self._binding(b.var, b.value) for b in block.bindings]
            blocks.append((relax.DataflowBlock if dataflow else relax.BindingBlock)(bindings))
        result = substitute(fn.body.body, self.env)
        blocks, _ = pruned(blocks, result)
        return with_body(fn, fn.params, blocks, result, bool(fn.is_pure))

    def _binding(self, var: Any, value: Any) -> Any:
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.fields:
            index = self.fields[value.tuple_value].index(int(value.index))
            whole = self.env[value.tuple_value]
            return relax.VarBinding(var, typed(relax.TupleGetItem(whole, index), var.ty))
        changed = (
            isinstance(value, ir.Call)
            and isinstance(value.op, ir.GlobalVar)
            and value.op in self.env
        )
        if not changed:
            return relax.VarBinding(var, substitute(value, self.env))
        kept = self.kept[str(value.op.name_hint)]
        args = [substitute(value.args[i], self.env) for i in kept.params]
        callee = self.env[value.op]
        ty = callee.ty.ret
        call = rebuild(value, callee, args, ty)
        new = type(var)(var.name, ty)
        if kept.fields:
            self.fields[var] = kept.fields
        self.env[var] = new
        return relax.VarBinding(new, call)
