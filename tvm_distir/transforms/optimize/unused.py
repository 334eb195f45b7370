# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Remove unread bindings, and unread parameters and results of private functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import branch_of, handle, is_private
from tvm_distir.core.ir.attributes import COMPLETE_ATTR
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting import make_binding, retyped, with_body, with_functions
from tvm_distir.core.rewriting.native import (
    FUNCTION_CALL,
    ITEM,
    TUPLE,
    FunctionView,
    Member,
    Readings,
    is_pure,
    read_module,
)

from .narrowed_functions import ChangedCalls, KeptParts, narrowed, result_value


@module_pass("legalized")
def RemoveUnused() -> Rewrite:
    """Remove unread values, through private functions too.

    Pure bindings, collectives among them, and the parameters and the fields of the result of
    private functions that no function or caller reads; those of all branches of an ``If`` alike.
    Functions that are to run whole (``dist.whole``) keep their results. No number changes.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return removed


def removed(mod: ir.IRModule, readings: Readings | None = None) -> ir.IRModule:
    """Apply :func:`RemoveUnused` with the ``readings`` of its functions that are available."""
    readings = Readings() if readings is None else readings
    while True:
        members = [without_dead(m, readings) for m in read_module(mod, readings=readings)]
        reads = _unite_branches([(m.gv, m.fn) for m in members], _fields_read(members))
        narrowed_parts: dict[str, KeptParts] = {}
        renamed: dict[ir.GlobalVar, ir.GlobalVar] = {}
        bodies: dict[str, relax.Function] = {}
        for member in members:
            name, fn = member.name, member.fn
            new = fn
            if any(callee in renamed for callee in member.reading.callees):
                new = ChangedCalls(fn, name, narrowed_parts, renamed).run()
            if name in reads:
                parts = None if new is not fn else _all_kept(member, reads[name])
                if parts is None:
                    new, narrowed_parts[name] = narrowed(new, reads[name])
                else:
                    narrowed_parts[name] = parts
            if _size(new) != _size(fn):
                renamed[member.gv] = retyped(member.gv, new.ty)
            bodies[name] = new
        if all(mod[member.gv].same_as(bodies[member.name]) for member in members):
            return mod
        functions = {
            renamed.get(gv, gv): bodies.get(str(gv.name_hint), fn)
            for gv, fn in mod.functions.items()
        }
        mod = with_functions(mod, functions)
        if not renamed:
            return mod


def _all_kept(member: Member, read: set[int] | None) -> KeptParts | None:
    """Return the positions of a function that is retained completely, else None."""
    fn, reading = member.fn, member.reading
    fields = len(fn.ret_ty.fields) if isinstance(fn.ret_ty, relax.TupleType) else 0
    if read is not None and fields and len(read) < fields:
        return None
    if not {*reading.reads, *reading.result}.issuperset(range(reading.params)):
        return None
    return KeptParts(tuple(range(reading.params)), tuple(range(fields)))


def _size(fn: relax.Function) -> tuple[int, int]:
    """Return the number of parameters and of result fields."""
    fields = len(fn.ret_ty.fields) if isinstance(fn.ret_ty, relax.TupleType) else 1
    return len(fn.params), fields


def _fields_read(members: Sequence[Member]) -> dict[str, set[int] | None]:
    """Return the result fields of private functions that callers read (None: all of them)."""
    fields_read: dict[str, set[int] | None] = {
        m.name: None if COMPLETE_ATTR in (m.fn.attrs or {}) else set()
        for m in members
        if is_private(m.fn)
    }
    for member in members:
        reading = member.reading
        calls: dict[int, str] = {}
        for number, (kind, used) in enumerate(zip(reading.kinds, reading.uses, strict=True)):
            if kind == ITEM and reading.like[number] >= 0 and used[0] in calls:
                fields = fields_read[calls[used[0]]]
                if fields is not None:
                    fields.add(int(reading.values[number].index))
                continue
            for n in used:
                if n in calls:
                    fields_read[calls[n]] = None
            if kind == FUNCTION_CALL:
                callee = str(reading.values[number].op.name_hint)
                if callee in fields_read:
                    calls[reading.params + number] = callee
        for n in reading.result:
            if n in calls:
                fields_read[calls[n]] = None
    return fields_read


def _unite_branches(
    order: Sequence[tuple[Any, relax.Function]], reads: dict[str, set[int] | None]
) -> dict[str, set[int] | None]:
    """Make all branches of an ``If`` return the union of the fields that are read."""
    groups: dict[str, list[tuple[str, relax.Function]]] = {}
    for gv, fn in order:
        branch = branch_of(fn)
        if branch is not None:
            groups.setdefault(branch[0], []).append((str(gv.name_hint), fn))
    for members in groups.values():
        read: set[int] | None = set()
        for name, fn in members:
            fields = reads[name]
            known = isinstance(result_value(fn), relax.Tuple)
            read = read | fields if known and read is not None and fields is not None else None
        reads.update({name: read for name, _ in members})
    return reads


def without_dead(member: Member, readings: Readings) -> Member:
    """Return a function without its unread bindings, which may read fields of results."""
    fn, reading = member.fn, member.reading
    fields_read = _fields_taken(reading)
    live, pure = set(reading.result), dict[int, bool]()
    live_numbers, first, uses = list[int](), reading.params, reading.uses
    for number in range(len(reading.bindings) - 1, -1, -1):
        if first + number not in live:
            like = reading.like[number]
            if like < 0 or like not in pure:
                pure[like] = is_pure(reading.values[number])
            if pure[like]:
                continue
        live_numbers.append(number)
        live.update((fields_read[number],) if number in fields_read else uses[number])
    if len(live_numbers) == len(reading.bindings):
        return member
    stays, blocks, number = set(live_numbers), [], -1
    for block in fn.body.blocks:
        bindings = []
        for _ in range(len(block.bindings)):
            number += 1
            if number in fields_read and number in stays:
                var = reading.variables[reading.params + number]
                bindings.append(make_binding(var, reading.variables[fields_read[number]]))
            elif number in stays:
                bindings.append(reading.bindings[number])
        if bindings:
            blocks.append(type(block)(bindings))
    new = with_body(fn, fn.params, blocks, fn.body.body, bool(fn.is_pure))
    return Member(member.gv, new, readings.of([new])[0])


def _fields_taken(reading: FunctionView) -> dict[int, int]:
    """Map bindings that take a field of a tuple literal to the variable of that field.

    Only of variables that no block hides.
    """
    numbers: dict[Any, int] = {}
    result: dict[int, int] = {}
    uses, params = reading.uses, reading.params
    for number, (kind, like) in enumerate(zip(reading.kinds, reading.like)):
        if kind != ITEM or like < 0:
            continue
        source = uses[number][0] - params
        if source < 0 or reading.kinds[source] != TUPLE:
            continue
        item = reading.values[source].fields[int(reading.values[number].index)]
        if type(item) is ir.Var:
            if not numbers:
                numbers = {handle(var): n for n, var in enumerate(reading.variables)}
            result[number] = numbers[handle(item)]
    return result
