# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Writing binding blocks, and reading calls: what the passes of this stage share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm import ir, relax

from ...errors import LoweringError
from ...ir import flat_types, tensor_type
from ..blocks import merged_blocks

#: Calls whose operands stand in a tuple after the PrimFunc.
TIR_CALLS = ("relax.call_tir", "relax.dist.call_tir_local_view")


def op_name(value: Any) -> str:
    """What a bound value is, for messages: the op, the callee or the kind of expression."""
    if not isinstance(value, ir.Call):
        return type(value).__name__
    name = getattr(value.op, "name", None) or getattr(value.op, "name_hint", None)
    text = str(name or getattr(value.op, "global_symbol", None) or type(value.op).__name__)
    if text in TIR_CALLS and len(value.args) and isinstance(value.args[0], ir.GlobalVar):
        return f"call_tir {value.args[0].name_hint}"
    return text.removeprefix("relax.")


def place_of(function: str, var: Any, value: Any) -> str:
    """``function/binding (op)``, as every error of this stage names its place."""
    return f"{function}/{var.name} ({op_name(value)})"


def is_tensors(ty: Any) -> bool:
    """Whether a type is a tensor or a (nested) tuple of tensors."""
    leaves = flat_types(ty)
    return bool(leaves) and all(tensor_type(t) is not None for t in leaves)


def tensor_args(call: ir.Call) -> list[Any]:
    """Arguments of a call that hold tensors, in order (tuples not flattened)."""
    args = call.args[1:] if op_name(call).startswith("call_tir") else call.args
    return [a for a in args if is_tensors(a.ty)]


def leaves_of(expr: Any) -> Iterator[tuple[Any, int, Any]]:
    """Flattened tensors of an argument: (expression, position in it, type).

    A tuple expression is opened; a variable of tuple type stands for all its leaves.
    """
    if isinstance(expr, relax.Tuple):
        for item in expr.fields:
            yield from leaves_of(item)
        return
    for number, ty in enumerate(flat_types(expr.ty)):
        yield expr, number, ty


def rebuild(call: ir.Call, op: Any, args: Sequence[Any], ty: Any = None) -> ir.Call:
    """Copy a call with another op or other arguments; typed ``ty``, or untyped when None."""
    new = ir.Call(op, list(args), call.attrs, list(call.ty_args), call.span)
    if ty is not None:
        relax.expr._update_type(new, ty)
    return new


def substitute(expr: Any, env: Mapping[Any, Any]) -> Any:
    """Replace variables and functions in a value of normal form; types stay."""
    if isinstance(expr, ir.Var):
        return env.get(expr, expr)
    if isinstance(expr, ir.GlobalVar):
        return env.get(expr, expr)
    if isinstance(expr, relax.Tuple):
        fields = [substitute(f, env) for f in expr.fields]
        if all(a is b or a.same_as(b) for a, b in zip(fields, expr.fields)):
            return expr
        return typed(relax.Tuple(fields), relax.TupleType([f.ty for f in fields]))
    if isinstance(expr, relax.TupleGetItem):
        value = substitute(expr.tuple_value, env)
        if value.same_as(expr.tuple_value):
            return expr
        return typed(relax.TupleGetItem(value, expr.index), expr.ty)
    if isinstance(expr, ir.Call):
        op = substitute(expr.op, env)
        args = [substitute(a, env) for a in expr.args]
        if op.same_as(expr.op) and all(a.same_as(b) for a, b in zip(args, expr.args)):
            return expr
        return rebuild(expr, op, args, expr.ty)
    if isinstance(expr, relax.If):
        return _substituted_if(expr, env)
    return expr


def _substituted_if(value: relax.If, env: Mapping[Any, Any]) -> relax.If:
    """Replace variables in a condition and, where they are free, in the branches."""
    if not any(used in env for used in variables(value)):
        return value
    branches = []
    for branch in (value.true_branch, value.false_branch):
        blocks = [
            type(block)([_substituted_binding(b, env) for b in block.bindings])
            for block in branch.blocks
        ]
        branches.append(relax.SeqExpr(blocks, substitute(branch.body, env)))
        relax.expr._update_type(branches[-1], branch.ty)
    new = relax.If(substitute(value.cond, env), *branches)
    relax.expr._update_type(new, value.ty)
    return new


def _substituted_binding(binding: Any, env: Mapping[Any, Any]) -> Any:
    value = substitute(binding.value, env)
    if value.same_as(binding.value):
        return binding
    if isinstance(binding, relax.MatchCast):
        return relax.MatchCast(binding.var, value, binding.ty)
    return relax.VarBinding(binding.var, value)


def typed(expr: Any, ty: Any) -> Any:
    """Give a fresh expression its type, unless its constructor inferred one."""
    if type(expr.ty) is ir.Type:
        relax.expr._update_type(expr, ty)
    return expr


def variables(expr: Any) -> Iterator[Any]:
    """Variables a value of normal form reads, in order, with repeats; an ``If`` each once."""
    if isinstance(expr, ir.Var):
        yield expr
    elif isinstance(expr, relax.Tuple):
        for item in expr.fields:
            yield from variables(item)
    elif isinstance(expr, relax.TupleGetItem):
        yield from variables(expr.tuple_value)
    elif isinstance(expr, ir.Call):
        for arg in expr.args:
            yield from variables(arg)
    elif isinstance(expr, relax.If):
        yield from relax.analysis.free_vars(expr)


def bindings_of(fn: relax.Function, function: str) -> Iterator[tuple[Any, Any]]:
    """All (variable, value) of a function's body.

    Raises
    ------
    LoweringError
        DIST0504 for control flow and casts, which have no distributed form.
    """
    if not isinstance(fn.body, relax.SeqExpr):
        raise LoweringError(
            "DIST0504", "the body is not in normal form", place=function, remedy="Normalize it."
        )
    for block in fn.body.blocks:
        for binding in block.bindings:
            if not isinstance(binding, relax.VarBinding):
                raise LoweringError(
                    "DIST0504",
                    "a match_cast has no distributed form",
                    place=place_of(function, binding.var, binding.value),
                    remedy="Give the shapes as constants.",
                )
            if isinstance(binding.value, relax.If | relax.Function):
                raise LoweringError(
                    "DIST0504",
                    f"{type(binding.value).__name__} has no distributed form",
                    place=place_of(function, binding.var, binding.value),
                    remedy="Write it without control flow, or keep it outside the function.",
                )
            yield binding.var, binding.value


class BlockWriter:
    """Collects the bindings of one block; new values get their types by inference."""

    def __init__(self, builder: relax.BlockBuilder, dataflow: bool) -> None:
        self.builder = builder
        self.dataflow = dataflow
        self.bindings: list[Any] = []

    def variable(self, name: str, ty: Any) -> Any:
        """Make a variable that lives in this block."""
        return (relax.DataflowVar if self.dataflow else relax.Var)(name, ty)

    def emit(self, value: Any, name: str) -> Any:
        """Bind a new value to a new variable and return it."""
        value = self.builder.normalize(value)
        var = self.variable(name, value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def bind(self, var: Any, value: Any) -> None:
        """Bind a value that has its type to a given variable."""
        self.bindings.append(relax.VarBinding(var, value))

    def block(self) -> Any:
        """Return the finished block."""
        return (relax.DataflowBlock if self.dataflow else relax.BindingBlock)(self.bindings)


def with_body(
    fn: relax.Function,
    params: Sequence[Any],
    blocks: Sequence[Any],
    result: Any,
    is_pure: bool,
    attrs: Any = None,
) -> relax.Function:
    """Build a function of the given parts; attributes are those of ``fn`` unless given."""
    body = typed(relax.SeqExpr(merged_blocks(blocks), result), result.ty)
    return relax.Function(
        list(params), body, result.ty, is_pure, fn.attrs if attrs is None else attrs
    )
