# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite branches of an ``If`` as separate scopes, and export variables from blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.arrays import unpack
from tvm_distir.core.ir.handles import handle

from .calls import typed
from .substitute import substitute, variables
from .writer import BlockWriter, with_body

Rewrite = Callable[[relax.Function], relax.Function]


def with_branches(fn: relax.Function, rewrite: Rewrite) -> relax.Function:
    """Rewrite the branches of a function, each by itself.

    Parameters
    ----------
    fn : Function
        The function, in normal form.
    rewrite : callable
        Gets each branch as a function: its parameters are the variables that it reads of the
        scopes around it, its attributes those of ``fn``. Returns that very object where nothing
        changes.

    Returns
    -------
    Function
        ``fn`` itself where no branch changes.
    """

    def branched(_: relax.Var, value: ir.Expr) -> ir.Expr:
        return _rewritten(fn, value, rewrite) if isinstance(value, relax.If) else value

    return with_values(fn, branched)


def with_values(
    fn: relax.Function, rewrite: Callable[[relax.Var, ir.Expr], ir.Expr]
) -> relax.Function:
    """Rewrite the values of a function's bindings; casts, and branches inside, stay.

    Parameters
    ----------
    fn : Function
    rewrite : callable
        Gets a variable and its value, and returns that very value where nothing changes.

    Returns
    -------
    Function
        ``fn`` itself where no value changes.
    """
    blocks, changed = [], False
    for block in fn.body.blocks:
        bindings = []
        for b in block.bindings:
            value = b.value
            new = value if isinstance(b, relax.MatchCast) else rewrite(b.var, value)
            if new is not value:
                changed, b = True, relax.VarBinding(b.var, new)
            bindings.append(b)
        blocks.append(type(block)(bindings))
    if not changed:
        return fn
    return with_body(fn, fn.params, blocks, fn.body.body, bool(fn.is_pure))


def _rewritten(fn: relax.Function, value: relax.If, rewrite: Rewrite) -> relax.If:
    branches, changed = [], False
    for seq in branches_of(value):
        free = list(relax.analysis.free_vars(seq))
        scope = relax.Function(free, seq, seq.body.ty, bool(fn.is_pure), fn.attrs)
        new = rewrite(scope)
        changed = changed or new is not scope
        branches.append(new.body)
    return value if not changed else typed(relax.If(value.cond, *branches), value.ty)


def branches_of(value: relax.If) -> tuple[relax.SeqExpr, relax.SeqExpr]:
    """Return the bodies of both branches."""
    return value.true_branch, value.false_branch


def bindings_in(seq: relax.SeqExpr) -> Iterator[tuple[Any, Any]]:
    """Return (variable, value) of a body, those of branches inside it not among them."""
    for block in seq.blocks:
        for b in block.bindings:
            yield b.var, b.value


def all_bindings(expr: ir.Expr) -> list[relax.Binding]:
    """Return all bindings of a function body in program order, those of branches included."""
    result: list[relax.Binding] = []
    # From the last to the first: the branches of an ``If`` are before its own binding.
    pending = [expr] if isinstance(expr, relax.SeqExpr) else []
    while pending:
        last = pending.pop()
        if type(last) is relax.SeqExpr:
            for block in last.blocks[:]:
                pending += unpack(block.bindings)
            continue
        result.append(last)
        if type(last.value) is relax.If:
            pending += branches_of(last.value)
    return result[::-1]


def let_out(blocks: Iterable[relax.BindingBlock], result: ir.Expr) -> tuple[list[Any], Any]:
    """Make dataflow variables that are read outside of their block plain variables."""
    blocks = list(blocks)
    rows = [block.bindings[:] for block in blocks]
    local_keys = [{handle(b.var) for b in row if type(b.var) is relax.DataflowVar} for row in rows]
    hidden = set().union(*local_keys)
    seen: dict[Any, Any] = {}

    def look(expr: ir.Expr, here: set[int]) -> None:
        for used in variables(expr):
            key = handle(used)
            if key in hidden and key not in here and used not in seen:
                seen[used] = relax.Var(str(used.name), used.ty)

    for row, here in zip(rows, local_keys):
        if len(here) < len(hidden):  # else no other block hides anything
            for binding in row:
                look(binding.value, here)
    look(result, set())
    if not seen:
        return blocks, result

    def write(writer: BlockWriter, binding: relax.Binding) -> None:
        writer.bind(seen.get(binding.var, binding.var), substitute(binding.value, seen))

    return BlockWriter.rewritten(relax.BlockBuilder(), blocks, write), substitute(result, seen)
