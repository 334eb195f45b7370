# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Extend the function of a branch with conversions before and after its body."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax

from tvm_distir.core.analysis.partial import PartialState
from tvm_distir.core.ir.attributes.keys import PARTIAL_ATTR
from tvm_distir.core.ir.types import value_types
from tvm_distir.core.rewriting.calls import rebuild, tuple_of, typed
from tvm_distir.core.rewriting.writer import merged_blocks

from .def_use import Path


@dataclass
class Sunk:
    """The conversions that a call of a branch moves into its function.

    Attributes
    ----------
    args : dict of int to list of Call
        The conversions of each argument, in order.
    sources : dict of int to Var
        The variable of each argument that is converted.
    results : dict of tuple to list of Call
        The conversions of each result leaf.
    removed : set of Var
        Variables whose bindings move.
    finals : dict of Var to Var
        The last converted variable of a leaf, and the leaf.
    lasts : dict of tuple to Var
        The last converted variable of each result leaf.
    """

    args: dict[int, list[Any]] = field(default_factory=dict)
    sources: dict[int, Any] = field(default_factory=dict)
    results: dict[Path, list[Any]] = field(default_factory=dict)
    removed: set[Any] = field(default_factory=set)
    finals: dict[Any, Any] = field(default_factory=dict)
    lasts: dict[Path, Any] = field(default_factory=dict)


def extended(fn: relax.Function, sunk: Sunk, state: PartialState) -> relax.Function:
    """Copy a branch with conversions before and after its body."""
    fresh = relax.utils.copy_with_new_vars(fn)
    params, front = list(fresh.params), []
    for i, calls in sorted(sunk.args.items()):
        inner, params[i] = params[i], relax.Var(params[i].name, sunk.sources[i].ty)
        front += _chain(params[i], calls, inner)
    back: list[Any] = []
    result = _converted(fresh.body.body, (), sunk.results, back)
    blocks = [relax.BindingBlock(front), *fresh.body.blocks, relax.BindingBlock(back)]
    body = typed(relax.SeqExpr(merged_blocks(blocks), result), result.ty)
    attrs = dict((fn.attrs or {}).items())
    sources = {i: sorted(state.of(var)[0]) for i, var in sunk.sources.items()}
    lasts = {path: sorted(state.of(var)[0]) for path, var in sunk.lasts.items()}
    leaves = {path: number for number, path in enumerate(_paths(fn.ret_ty, ()))}
    attrs[PARTIAL_ATTR] = {
        "params": _boundary(fn, "params", _first_leaves(fn), sources),
        "results": _boundary(fn, "results", leaves, lasts),
    }
    if not any(attrs[PARTIAL_ATTR].values()):
        del attrs[PARTIAL_ATTR]
    attributes = ir.make_node("ir.DictAttrs", **attrs) if attrs else None
    return relax.Function(params, body, result.ty, fn.is_pure, attributes)


def _chain(start: ir.Expr, calls: Sequence[Any], last: Any) -> list[Any]:
    """Return the bindings that convert ``start`` step by step; the last binds ``last``."""
    bindings, here = [], start
    for number, call in enumerate(calls):
        new = rebuild(call, call.op, [here], call.ty)
        final = number == len(calls) - 1 and last is not None
        here = last if final else relax.Var(start.name, call.ty)
        bindings.append(relax.VarBinding(here, new))
    return bindings


def _converted(expr: ir.Expr, path: Path, results: dict[Path, list[Any]], out: list[Any]) -> Any:
    """Return the result with its leaves converted; bindings are added to ``out``."""
    if path in results:
        if not isinstance(expr, ir.Var):
            new_var = relax.Var("result", expr.ty)
            out.append(relax.VarBinding(new_var, expr))
            expr = new_var
        out.extend(_chain(expr, results[path], None))
        return out[-1].var
    if not isinstance(expr.ty, relax.TupleType) or not any(p[: len(path)] == path for p in results):
        return expr
    fields = []
    for i in range(len(expr.ty.fields)):
        item = expr.fields[i] if isinstance(expr, relax.Tuple) else relax.TupleGetItem(expr, i)
        if isinstance(item, relax.TupleGetItem):
            new_var = relax.Var("item", expr.ty.fields[i])
            out.append(relax.VarBinding(new_var, item))
            item = new_var
        fields.append(_converted(item, (*path, i), results, out))
    return tuple_of(fields)


def _first_leaves(fn: relax.Function) -> dict[int, int]:
    """Return the flat number of each parameter's first leaf."""
    counts = [len(value_types(param.ty)) for param in fn.params[:-1]]
    return dict(enumerate(itertools.accumulate(counts, initial=0)))


def _paths(ty: ir.Type, path: Path) -> Iterator[Path]:
    if not isinstance(ty, relax.TupleType):
        yield path
        return
    for i, item in enumerate(ty.fields):
        yield from _paths(item, (*path, i))


def _boundary(
    fn: relax.Function, side: str, numbers: dict[Any, int], changed: dict[Any, list[int]]
) -> dict[str, list[int]]:
    """Return the partial parameters or results after the change, by flat number."""
    result: dict[str, list[int]] = {}
    if fn.attrs and PARTIAL_ATTR in fn.attrs:
        for key, axes in fn.attrs[PARTIAL_ATTR][side].items():
            result[str(key)] = [int(a) for a in axes]
    for where, axes in changed.items():
        result.pop(str(numbers[where]), None)
        if axes:
            result[str(numbers[where])] = axes
    return dict(sorted(result.items()))
