# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Remove parameters and results of private functions, and adapt their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.relax import Binding, Expr, Var

from tvm_distir.core.ir import flat_types, handle
from tvm_distir.core.ir.attributes import PARAM_NAMES_ATTR, PARTIAL_ATTR
from tvm_distir.core.rewriting import (
    let_out,
    make_binding,
    rebound,
    rebuild,
    substitute,
    tuple_of,
    typed,
    variables,
    with_body,
)
from tvm_distir.core.rewriting.native import pruned


@dataclass(frozen=True)
class KeptParts:
    """Positions of a function's parameters and result fields that are retained."""

    params: tuple[int, ...]
    fields: tuple[int, ...]


def narrowed(fn: relax.Function, read: set[int] | None) -> tuple[relax.Function, KeptParts]:
    """Drop the unread parameters and result fields of a private function."""
    result, fields = _narrow_result(fn, read)
    blocks, result = let_out(fn.body.blocks[:], result)
    blocks, _ = pruned(blocks, result)
    used = set(map(handle, variables(result)))
    for block in blocks:
        for binding in block.bindings[:]:
            used.update(map(handle, variables(binding.value)))
    old = fn.params[:]
    params = tuple(i for i, p in enumerate(old) if handle(p) in used)
    attrs = _attributes(fn, params, fields)
    new = with_body(fn, [old[i] for i in params], blocks, result, bool(fn.is_pure), attrs)
    return new, KeptParts(params, fields)


def _narrow_result(fn: relax.Function, read: set[int] | None) -> tuple[Expr, tuple[int, ...]]:
    result = fn.body.body
    if not isinstance(fn.ret_ty, relax.TupleType):
        return result, ()
    count = len(fn.ret_ty.fields)
    every = tuple(range(count))
    full = result_value(fn)
    if read is None or len(read) == count or not isinstance(full, relax.Tuple):
        return result, every
    fields = tuple(sorted(read)) or (0,)
    if fields == every:
        return result, every
    return tuple_of([full.fields[i] for i in fields]), fields


def result_value(fn: relax.Function) -> Expr:
    """Return the result of a function, looked up if it is a variable."""
    result = fn.body.body
    if not isinstance(result, ir.Var):
        return result
    bound = (b for block in fn.body.blocks[:] for b in block.bindings[:])
    return next((b.value for b in bound if b.var.same_as(result)), result)


def _attributes(fn: relax.Function, params: Sequence[int], fields: Sequence[int]) -> Any:
    """Return the attributes of a function with fewer parameters and results."""
    attrs = dict(fn.attrs.items()) if fn.attrs else {}
    if PARAM_NAMES_ATTR in attrs:
        names = list(attrs[PARAM_NAMES_ATTR])
        attrs[PARAM_NAMES_ATTR] = [names[i] for i in params]
    if PARTIAL_ATTR in attrs:
        leaves = [len(flat_types(p.ty)) for p in fn.params]
        types = fn.ret_ty.fields if isinstance(fn.ret_ty, relax.TupleType) else [fn.ret_ty]
        results = [len(flat_types(ty)) for ty in types]
        sides = ("params", leaves, params), ("results", results, fields or [0])
        attrs[PARTIAL_ATTR] = {
            side: _renumbered(attrs[PARTIAL_ATTR][side], sizes, chosen)
            for side, sizes, chosen in sides
            if side in attrs[PARTIAL_ATTR]
        }
    return ir.make_node("ir.DictAttrs", **attrs) if attrs else None


def _renumbered(table: Any, sizes: Sequence[int], chosen: Sequence[int]) -> dict[str, Any]:
    """Renumber the entries of flattened tensors after removals."""
    new: dict[str, Any] = {}
    at = 0
    for i in chosen:
        first = sum(sizes[:i])
        for leaf in range(sizes[i]):
            if str(first + leaf) in table:
                new[str(at + leaf)] = table[str(first + leaf)]
        at += sizes[i]
    return new


class ChangedCalls:
    """Rewriter of the calls of changed functions, which drops unread bindings."""

    def __init__(
        self,
        fn: relax.Function,
        name: str,
        parts: Mapping[str, KeptParts],
        renamed: Mapping[ir.GlobalVar, ir.GlobalVar],
    ) -> None:
        self.fn, self.name, self.kept = fn, name, parts
        self.env: dict[Expr, Expr] = dict(renamed)
        self.fields: dict[Var, tuple[int, ...]] = {}

    def run(self) -> relax.Function:
        """Return the rewritten function."""
        fn, blocks = self.fn, []
        for block in fn.body.blocks[:]:
            blocks.append(type(block)([self._binding(b) for b in block.bindings[:]]))
        result = substitute(fn.body.body, self.env)
        blocks, _ = pruned(blocks, result)
        return with_body(fn, fn.params, blocks, result, bool(fn.is_pure))

    def _binding(self, binding: Binding) -> Binding:
        var, value = binding.var, binding.value
        if type(value) is relax.TupleGetItem:
            source = value.tuple_value
            fields = self.fields.get(source)
            if fields is not None:
                item = relax.TupleGetItem(self.env[source], fields.index(int(value.index)))
                return make_binding(var, typed(item, var.ty))
        elif type(value) is ir.Call:
            op = value.op
            if type(op) is ir.GlobalVar and op in self.env:
                return self._call(var, value)
        return rebound(binding, substitute(value, self.env))

    def _call(self, var: Var, value: ir.Call) -> Binding:
        """Rewrite a call of a changed function."""
        parts, callee = self.kept[str(value.op.name_hint)], self.env[value.op]
        # The type of the callee has its own symbolic dims; that of the variable those of the call.
        ty = relax.TupleType([var.ty.fields[i] for i in parts.fields]) if parts.fields else var.ty
        old = value.args[:]
        call = rebuild(value, callee, [substitute(old[i], self.env) for i in parts.params], ty)
        new = type(var)(var.name, ty)
        if parts.fields:
            self.fields[var] = parts.fields
        self.env[var] = new
        return make_binding(new, call)
