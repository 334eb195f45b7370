# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Looks up rules, hand-written or derived from TIR, and caches them."""

from __future__ import annotations

from typing import Any, NamedTuple

import tvm_ffi
from tvm import ir, relax, tirx

from tvm_distir.core.ops.derive.derivation import derive_call
from tvm_distir.core.ops.derive.primfunc import derive_primfunc
from tvm_distir.core.rewriting.calls import TIR_CALLS, called_name
from tvm_distir.support import GenericConst, PropagationError

from .dims import same
from .draft import CallShape
from .factor import Rule, Work
from .registry import generation, load_entry_points, registration_of
from .signature import call_shape
from .sound import with_local_forms
from .unruled import why_none

_CACHE_LIMIT = 1 << 16


class _Entry(NamedTuple):
    shape: CallShape
    func: tirx.PrimFunc
    rule: Rule


class _Seen(NamedTuple):
    """Description that distinguishes calls of equal hash, since TVM's hashes may collide."""

    parts: tuple[Any, ...]
    rule: Rule


_by_call: dict[Any, list[_Seen]] = {}
_by_shape: dict[Any, list[_Entry]] = {}
_seen_generation = 0


def _forget_outdated() -> None:
    """Drop rules that were looked up before the last rule was registered."""
    global _seen_generation
    load_entry_points()
    if _seen_generation != generation():
        _by_call.clear()
        _by_shape.clear()
        _seen_generation = generation()


def _hash(node: Any, free: bool) -> int:
    return int(tvm_ffi.structural_hash(node, map_free_vars=free, skip_tensor_content=True))


def _equal(a: Any, b: Any) -> bool:
    """Return whether two values, nodes or None, are the same; contents of tensors do not count."""
    if isinstance(a, tvm_ffi.Object) and isinstance(b, tvm_ffi.Object):
        return bool(
            a.same_as(b)
            or tvm_ffi.structural_equal(a, b, map_free_vars=True, skip_tensor_content=True)
        )
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and bool(a == b)


def _part(arg: ir.Expr) -> Any:
    """Return the part of an argument that its rule depends on: of tensors only the type."""
    if isinstance(arg, relax.Tuple):
        return tuple(_part(field) for field in arg.fields)
    return arg.ty if isinstance(arg, ir.Var | GenericConst) else arg


def _prim_func(call: ir.Call, name: str, mod: ir.IRModule | None) -> tirx.PrimFunc:
    target = call.args[0]
    func = None
    if mod is not None and isinstance(target, ir.GlobalVar):
        try:
            func = mod[mod.get_global_var(target.name_hint)]
        except ValueError:  # no function of that name: reported below
            func = None
    if not isinstance(func, tirx.PrimFunc):
        raise PropagationError(
            "DIST0401",
            "its PrimFunc is not in the module",
            location=f"{name} of {getattr(target, 'name_hint', target)}",
            remedy="Pass the module that contains it.",
        )
    return func


def _shape_key(shape: CallShape) -> Any:
    attrs = 0 if shape.attrs is None else _hash(shape.attrs, False)
    parts = (_plain(part) for part in (shape.ins, shape.outs, shape.args))
    return (shape.op, attrs, shape.in_dtypes, shape.out_dtypes, *parts)


def _plain(value: Any) -> Any:
    """Return nested tuples with hashes in place of TVM's objects."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return _hash(value, False) if isinstance(value, tvm_ffi.Object) else (value,)


def _symbolic(shape: CallShape) -> bool:
    return any(not isinstance(n, int) for s in (*shape.ins, *shape.outs) for n in s)


def _same_dims(a: CallShape, b: CallShape) -> bool:
    pairs = zip((*a.ins, *a.outs), (*b.ins, *b.outs))
    return all(len(x) == len(y) and all(map(same, x, y)) for x, y in pairs)


def _same_call(a: CallShape, b: CallShape) -> bool:
    """Return whether two descriptions of equal hash are equal up to the names of symbols."""
    return _same_dims(a, b) and _equal(a.attrs, b.attrs) and _equal(a.args, b.args)


def _write(call: ir.Call, shape: CallShape, func: Any) -> Rule:
    if func is not None:
        return derive_primfunc(func, shape)
    if shape.op.startswith("relax.ccl."):
        problem = "it is a collective: the program is already distributed"
        remedy = "Give the module of a single device: td.distribute writes its collectives."
        raise PropagationError("DIST0401", problem, location=shape.op, remedy=remedy)
    registration = registration_of(shape.op)
    if registration is not None:
        return with_local_forms(call, shape, registration.write(shape).rule(), registration)
    if call.op.get_attr("FLegalize") is None:
        remedy = "Register a rule with register_sharding_rule."
        raise _without_rule(shape.op, "it has no legalization to derive a rule from", remedy)
    return derive_call(call, shape)


def _without_rule(op: str, why: str, remedy: str) -> PropagationError:
    return PropagationError(
        "DIST0401", f"the op has no sharding rule: {why}", location=op, remedy=remedy
    )


def rule_of(call: ir.Call, mod: ir.IRModule | None = None, out_type: ir.Type | None = None) -> Rule:
    """Return the sharding rule of an op call, hand-written or derived from its TIR.

    Operand types may be ``R.Tensor`` or ``R.DTensor`` (of a DTensor, the full shape counts).

    Parameters
    ----------
    call : ir.Call
        The call of a Relax op, or a ``call_tir``.
    mod : IRModule, optional
        Holds the PrimFunc of a ``call_tir``.
    out_type : Type, optional
        The result type, when the call does not carry it.

    Raises
    ------
    PropagationError
        DIST0401 when there is no rule for what is called, DIST0402 when a shape is unknown.
    """
    name = called_name(call)
    if not isinstance(call.op, ir.Op):
        problem = "the callee is a function, not an op"
        remedy = "Look up the rules of the calls inside it."
        raise PropagationError("DIST0401", problem, location=name, remedy=remedy)
    _forget_outdated()
    none = why_none(name)
    if none is not None and registration_of(name) is None:
        raise _without_rule(name, *none)
    func = _prim_func(call, name, mod) if name in TIR_CALLS else None
    key = (
        _hash(call, True),
        0 if func is None else _hash(func, False),
        0 if out_type is None else _hash(out_type, True),
    )
    parts = (call.attrs, func, out_type, tuple(map(_part, call.args[:])))
    for seen in _by_call.get(key, ()):
        if _equal(seen.parts, parts):
            return seen.rule
    shape = call_shape(call, out_type)
    deep = (_shape_key(shape), key[1])
    entries = _by_shape.setdefault(deep, [])
    candidates = (e for e in entries if _same_call(e.shape, shape) and _equal(e.func, func))
    rule = next((e.rule for e in candidates), None)
    if rule is None:
        if len(_by_call) + len(_by_shape) > _CACHE_LIMIT:
            _by_call.clear()
            _by_shape.clear()
            _by_shape[deep] = entries
        rule = _write(call, shape, func)
        entries.append(_Entry(shape, func, rule))
    if not _symbolic(shape):  # symbols differ between calls of equal hash
        _by_call.setdefault(key, []).append(_Seen(parts, rule))
    return rule


def work_of(call: ir.Call, mod: ir.IRModule | None = None, out_type: ir.Type | None = None) -> Work:
    """Return FLOPs, bytes and kernel class of a call as typed, for global and local calls.

    Raises
    ------
    PropagationError
        As :func:`rule_of`.
    """
    return rule_of(call, mod, out_type).work
