# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read calls and write binding blocks, for all passes of the distributed levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvm import ir, relax
from tvm.ir import Expr

from tvm_distir.core.ir.types import flat_types, tensor_type
from tvm_distir.support import LoweringError, update_type

from .nodes import make_call

_REDISTRIBUTE = ir.Op.get("relax.dist.redistribute")
#: Calls of a PrimFunc on whole tensors: their operands stand in a tuple after it.
TIR_CALLS = ("relax.call_tir", "relax.call_tir_with_grad")
#: TVM's call of a PrimFunc on shards.
TIR_ON_SHARDS = "relax.dist.call_tir_local_view"


def called_name(call: ir.Call) -> str:
    """Return the full name of the callee: op (``relax.add``), function or external function."""
    op = call.op
    name = getattr(op, "name", None) or getattr(op, "name_hint", None)
    return str(name or getattr(op, "global_symbol", None) or type(op).__name__)


def op_name(value: Expr) -> str:
    """Return a description of a bound value for messages: op, callee or kind of expression."""
    if type(value) is not ir.Call:
        return type(value).__name__
    text = called_name(value)
    if (
        text in (*TIR_CALLS, TIR_ON_SHARDS)
        and len(value.args)
        and type(value.args[0]) is ir.GlobalVar
    ):
        return f"call_tir {value.args[0].name_hint}"
    return text.removeprefix("relax.")


def location_of(function: str, var: relax.Var, value: Expr) -> str:
    """Return the place of an error as ``function/binding (op)``."""
    return f"{function}/{var.name} ({op_name(value)})"


def is_tensors(ty: ir.Type) -> bool:
    """Return whether a type is a tensor or a (nested) tuple of tensors."""
    if type(ty) is not relax.TupleType:
        return tensor_type(ty) is not None
    leaves = flat_types(ty)
    return bool(leaves) and all(tensor_type(t) is not None for t in leaves)


def tensor_args(call: ir.Call) -> list[Expr]:
    """Return the arguments of a call that hold tensors, in order (tuples not flattened)."""
    args = call.args[:]
    if args and type(args[0]) is ir.GlobalVar and op_name(call).startswith("call_tir"):
        del args[0]  # a function is no tensor, but has no separate type either
    return [a for a in args if is_tensors(a.ty)]


def untupled(value: Expr) -> Expr:
    """Return the field itself where a value takes it from a tuple that is written out."""
    if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Tuple):
        return value.tuple_value.fields[int(value.index)]
    return value


def leaves_of(expr: Expr) -> Iterator[tuple[Any, int, Any]]:
    """Return the flattened tensors of an argument: (expression, position in it, type).

    A tuple expression is opened; a variable of tuple type stands for all its leaves.
    """
    if type(expr) is relax.Tuple:
        for item in expr.fields[:]:
            yield from leaves_of(item)
        return
    for number, ty in enumerate(flat_types(expr.ty)):
        yield expr, number, ty


def permutation(call: ir.Call, ndim: int | None = None) -> list[int]:
    """Return, per dim of the result of a ``permute_dims``, the dim of its operand.

    The number of dims is that of the operand's type, unless it is given: a call that is not
    emitted yet may have an operand without a type.
    """
    rank, axes = len(call.args[0].ty.shape) if ndim is None else ndim, call.attrs.axes
    return [*range(rank)][::-1] if axes is None else [int(axis) % rank for axis in axes]


def rebuild(call: ir.Call, op: Expr, args: Sequence[Expr], ty: ir.Type | None = None) -> ir.Call:
    """Copy a call with another op or other arguments; typed ``ty``, or untyped when None."""
    return make_call(op, args, call.attrs, call.ty_args, ty, call.span)


def rebuilt(call: ir.Call, op: Expr, args: Sequence[Expr]) -> ir.Call:
    """Return a call of the same type with these parts: itself, where they are its own."""
    old = call.args[:]
    if op.same_as(call.op) and all(a.same_as(b) for a, b in zip(args, old, strict=True)):
        return call
    return rebuild(call, op, args, call.ty)


def typed(expr: Expr, ty: ir.Type) -> Expr:
    """Give a fresh expression its type, unless its constructor inferred a type."""
    if type(expr.ty) is ir.Type:
        update_type(expr, ty)
    return expr


def tuple_of(values: Sequence[relax.Expr]) -> relax.Tuple:
    """Return a tuple of typed values."""
    return typed(relax.Tuple(list(values)), relax.TupleType([value.ty for value in values]))


def field_of(value: relax.Expr, number: int) -> relax.TupleGetItem:
    """Return a field of a typed value that is a tuple."""
    return typed(relax.TupleGetItem(value, number), value.ty.fields[number])


def check_body(fn: relax.Function, function: str) -> None:
    """Refuse a function whose body is no sequence of bindings (DIST0504)."""
    if type(fn.body) is not relax.SeqExpr:
        raise LoweringError(
            "DIST0504", "the body is not in normal form", location=function, remedy="Normalize it."
        )


def bindings_of(fn: relax.Function, function: str) -> Iterator[tuple[Any, Any]]:
    """Return all (variable, value) of a function's body.

    Raises
    ------
    LoweringError
        DIST0504 for control flow and casts, which have no distributed form.
    """
    check_body(fn, function)
    for block in fn.body.blocks[:]:
        for binding in block.bindings[:]:
            value = binding.value
            if type(binding) is not relax.VarBinding:
                raise LoweringError(
                    "DIST0504",
                    "a match_cast checks at run time what is not known before",
                    location=location_of(function, binding.var, binding.value),
                    remedy="Give its operand the type of its result: td.bind_dims gives symbolic "
                    "dims their sizes.",
                )
            if type(value) in (relax.If, relax.Function):
                raise LoweringError(
                    "DIST0504",
                    f"{type(value).__name__} has no distributed form",
                    location=location_of(function, binding.var, binding.value),
                    remedy="Write it without control flow, or keep it outside the function.",
                )
            yield binding.var, value


def is_redistribute(value: Expr) -> bool:
    """Return whether a value is ``R.dist.redistribute(...)``."""
    return type(value) is ir.Call and bool(_REDISTRIBUTE.same_as(value.op))
