# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find and substitute the variables that a value reads."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from tvm import ir, relax

from .calls import rebuild, tuple_of, typed

VARIABLES = (ir.Var, relax.DataflowVar)
"""The types of a variable: to ask for a type costs a tenth of ``isinstance``."""
_is = operator.is_


def substitute(expr: ir.Expr, env: Mapping[ir.Expr, ir.Expr]) -> ir.Expr:
    """Replace variables and functions in a value of normal form; types stay."""
    kind = type(expr)
    if kind is ir.Var or kind is relax.DataflowVar or kind is ir.GlobalVar:
        return env.get(expr, expr)
    if kind is ir.Call:
        op, old = expr.op, expr.args[:]
        new_op = op if type(op) is ir.Op else substitute(op, env)
        args = [substitute(a, env) for a in old]
        if new_op is op and all(map(_is, args, old)):
            return expr
        return rebuild(expr, new_op, args, expr.ty)
    if kind is relax.Tuple:
        old = expr.fields[:]
        fields = [substitute(f, env) for f in old]
        if all(map(_is, fields, old)):
            return expr
        return tuple_of(fields)
    if kind is relax.TupleGetItem:
        source = expr.tuple_value
        value = substitute(source, env)
        if value is source:
            return expr
        return typed(relax.TupleGetItem(value, expr.index), expr.ty)
    return _substituted_if(expr, env) if kind is relax.If else expr


def _substituted_if(value: relax.If, env: Mapping[Any, Any]) -> relax.If:
    """Replace variables in a condition and, where they are free, in the branches."""
    if not any(used in env for used in variables(value)):
        return value
    branches = []
    for branch in (value.true_branch, value.false_branch):
        blocks = [
            type(block)([rebound(b, substitute(b.value, env)) for b in block.bindings])
            for block in branch.blocks
        ]
        branches.append(typed(relax.SeqExpr(blocks, substitute(branch.body, env)), branch.ty))
    return typed(relax.If(substitute(value.cond, env), *branches), value.ty)


def rebound(binding: relax.Binding, value: ir.Expr) -> Any:
    """Return a binding of its variable to another value, a cast as before; itself for its own."""
    if value.same_as(binding.value):
        return binding
    if isinstance(binding, relax.MatchCast):
        return relax.MatchCast(binding.var, value, binding.ty)
    return relax.VarBinding(binding.var, value)


def variables(expr: ir.Expr) -> list[ir.Expr]:
    """Return the variables that a value reads, in order, with repeats except for an ``If``."""
    kind = type(expr)
    if kind is ir.Var or kind is relax.DataflowVar:
        return [expr]
    if kind is ir.Call or kind is relax.Tuple:
        result: list[ir.Expr] = []
        for part in (expr.args if kind is ir.Call else expr.fields)[:]:
            if type(part) in VARIABLES:
                result.append(part)
            else:
                result += variables(part)
        return result
    if kind is relax.TupleGetItem:
        return variables(expr.tuple_value)
    return list(relax.analysis.free_vars(expr)) if kind is relax.If else []
