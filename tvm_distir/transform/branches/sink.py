# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Conversions that only one branch needs move into that branch's function, level 3 to level 3.

Before::

    x_1 = R.dist.redistribute(x, placement="R")      # nobody else reads it
    y_then = cls.main_y_then(x_1)
    y_then_1 = R.dist.redistribute(y_then, placement="S[0]")
    y = R.where(c, y_then_1, y_else)

After::

    def main_y_then(x):                               # private
        x_1 = R.dist.redistribute(x, placement="R")
        ...
        return R.dist.redistribute(gv, placement="S[0]")
    y_then = cls.main_y_then(x)
    y = R.where(c, y_then, y_else)

So a device that takes the other branch does none of it, and no later pass can share or join a
collective of one branch with something outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import ir, relax

from ...analysis import PartialState
from ...ir.attributes import PARTIAL_ATTR
from ...ir.branches import branch_calls, branch_of
from ...ir.ops import dist_op_name
from ...ir.types import relax_functions, value_types
from ..blocks import merged_blocks
from ..legalize.emit import substitute, typed
from ..legalize.passes import retyped
from .homes import choices_at_home
from .scene import Path, Scene


@dataclass
class Sunk:
    """What one call of a branch takes into the function.

    Attributes
    ----------
    args : dict of int to list of Call
        Per argument its conversions, first one first.
    sources : dict of int to Var
        Per argument what is converted.
    results : dict of tuple to list of Call
        Per result leaf its conversions.
    removed : set of Var
        Variables whose bindings move.
    finals : dict of Var to Var
        The last converted variable of a leaf, and the leaf.
    """

    args: dict[int, list[Any]] = field(default_factory=dict)
    sources: dict[int, Any] = field(default_factory=dict)
    results: dict[Path, list[Any]] = field(default_factory=dict)
    removed: set[Any] = field(default_factory=set)
    finals: dict[Any, Any] = field(default_factory=dict)


def sink_conversions(mod: ir.IRModule) -> ir.IRModule:
    """Move conversions into the branches that alone need them; see the module's docstring.

    Before that every choice moves to the mesh of its branches (:mod:`.homes`).

    Parameters
    ----------
    mod : IRModule
        At level 3, from a module whose ``If`` were lifted; it is not changed (and returned when
        it has no lifted branch).
    """
    if not any(branch_of(fn) for fn in mod.functions.values()):
        return mod
    return _Sinker(choices_at_home(mod)).run()


class _Sinker:
    """Rewrites a module, inner branches before outer ones.

    Attributes
    ----------
    settled : dict of str to Function
        Functions whose own calls of branches are rewritten.
    variants : dict of str to list
        Per branch, the functions that take its place: (global variable, function).
    """

    def __init__(self, mod: ir.IRModule) -> None:
        self.mod = mod
        self.settled: dict[str, Any] = {}
        self.variants: dict[str, list[tuple[Any, Any]]] = {}
        self.taken = {str(gv.name_hint) for gv in mod.functions}
        self.builder = relax.BlockBuilder()

    def run(self) -> ir.IRModule:
        """Return the rewritten module; branches that no call needs any more are left out."""
        for gv, fn in relax_functions(self.mod):
            self._settle(str(gv.name_hint), fn)
        kept = {
            str(gv.name_hint): (gv, self.settled.get(str(gv.name_hint), fn))
            for gv, fn in self.mod.functions.items()
            if branch_of(fn) is None
        }
        for made in self.variants.values():
            kept.update({str(gv.name_hint): (gv, fn) for gv, fn in made})
        functions = dict(kept[name] for name in sorted(self._reached(kept)))
        return ir.IRModule(functions, attrs=self.mod.attrs, global_infos=self.mod.global_infos)

    @staticmethod
    def _reached(kept: dict[str, tuple[Any, Any]]) -> set[str]:
        """All functions but branches that no call needs."""
        found = {name for name, (_, fn) in kept.items() if branch_of(fn) is None}
        waiting = sorted(found)
        while waiting:
            fn = kept[waiting.pop()][1]
            if not isinstance(fn, relax.Function):
                continue
            for block in fn.body.blocks:
                for b in block.bindings:
                    op = b.value.op if isinstance(b.value, ir.Call) else None
                    if isinstance(op, ir.GlobalVar) and str(op.name_hint) not in found:
                        found.add(str(op.name_hint))
                        waiting.append(str(op.name_hint))
        return found

    # callers ---------------------------------------------------------------------------

    def _settle(self, name: str, fn: relax.Function) -> None:
        """Rewrite a function once, after the branches it calls."""
        if name in self.settled:
            return
        inner = [b.value.op for b, _, _ in branch_calls(self.mod, fn)]
        for callee in inner:
            self._settle(str(callee.name_hint), self.mod[callee])
        self.settled[name] = self._caller(name, fn) if inner else fn

    def _caller(self, name: str, fn: relax.Function) -> relax.Function:
        scene = Scene(fn)
        state = PartialState(self.mod, name, fn, legalized=False)
        state.check()
        found = {b.var: self._plan(scene, b) for b, _, _ in branch_calls(self.mod, fn)}
        removed = {var for sunk in found.values() for var in sunk.removed}
        env: dict[Any, Any] = {}
        blocks = []
        for block in fn.body.blocks:
            bindings = []
            for b in block.bindings:
                if b.var in removed:
                    continue
                if b.var in found:
                    bindings.append(self._call(b, found[b.var], state, env))
                else:
                    bindings.append(self._binding(b, env))
                for sunk in found.values():
                    env.update(
                        {last: env[leaf] for last, leaf in sunk.finals.items() if leaf in env}
                    )
            blocks.append(type(block)(bindings))
        result = substitute(fn.body.body, env)
        body = relax.SeqExpr(merged_blocks(blocks), result)
        relax.expr._update_type(body, result.ty)
        return relax.Function(fn.params, body, fn.ret_ty, fn.is_pure, fn.attrs)

    def _binding(self, b: Any, env: dict[Any, Any]) -> Any:
        """Copy a binding; a field of a retyped tuple is retyped."""
        if not isinstance(b, relax.VarBinding):
            return b
        value = b.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in env:
            item = self.builder.normalize(
                relax.TupleGetItem(env[value.tuple_value], int(value.index))
            )
            env[b.var] = type(b.var)(b.var.name, item.ty)
            return relax.VarBinding(env[b.var], item)
        new = substitute(value, env)
        return b if new.same_as(value) else relax.VarBinding(b.var, new)

    def _call(self, b: Any, sunk: Sunk, state: PartialState, env: dict[Any, Any]) -> Any:
        args = [substitute(sunk.sources.get(i, a), env) for i, a in enumerate(b.value.args)]
        callee = str(b.value.op.name_hint)
        fn = self.settled[callee]
        if sunk.args or sunk.results:
            partial = {i: sorted(state.of(v)[0]) for i, v in sunk.sources.items()}
            fn = _extended(fn, sunk, partial)
        gv = self._variant(callee, fn)
        call = self.builder.normalize(ir.Call(gv, args))
        var = type(b.var)(b.var.name, call.ty)
        env[b.var] = var
        return relax.VarBinding(var, call)

    def _variant(self, name: str, fn: relax.Function) -> Any:
        """Global variable of a function that takes a branch's place; equal ones are one."""
        made = self.variants.setdefault(name, [])
        for gv, other in made:
            if tvm_ffi.structural_equal(other, fn):
                return gv
        new, number = name, 0
        while made and new in self.taken:
            number += 1
            new = f"{name}_{number}"
        self.taken.add(new)
        gv = retyped(ir.GlobalVar(new), fn.ty)
        made.append((gv, fn))
        return gv

    # planning --------------------------------------------------------------------------

    @staticmethod
    def _plan(scene: Scene, b: Any) -> Sunk:
        sunk = Sunk()
        for i, arg in enumerate(b.value.args):
            source, steps = scene.before(arg)
            if steps:
                sunk.sources[i], sunk.args[i] = source, [call for _, call in steps]
                sunk.removed.update(var for var, _ in steps)
        for path, leaf in scene.leaves(b.var, ()):
            steps = scene.after(leaf)
            if steps:
                sunk.results[path] = [call for _, call in steps]
                sunk.removed.update(var for var, _ in steps)
                sunk.finals[steps[-1][0]] = leaf
        return sunk


# functions -----------------------------------------------------------------------------


def _extended(fn: relax.Function, sunk: Sunk, partial: dict[int, list[int]]) -> relax.Function:
    """Copy a branch with conversions before and after its body."""
    fresh = relax.utils.copy_with_new_vars(fn)
    params, front = list(fresh.params), []
    for i, calls in sorted(sunk.args.items()):
        inner, params[i] = params[i], relax.Var(params[i].name, sunk.sources[i].ty)
        front += _chain(params[i], calls, inner)
    back: list[Any] = []
    result = _converted(fresh.body.body, (), sunk.results, back)
    blocks = [relax.BindingBlock(front), *fresh.body.blocks, relax.BindingBlock(back)]
    body = relax.SeqExpr(merged_blocks(blocks), result)
    relax.expr._update_type(body, result.ty)
    attrs = dict((fn.attrs or {}).items())
    attrs[PARTIAL_ATTR] = {
        "params": _boundary(fn, "params", _first_leaves(fn), partial),
        "results": _boundary(fn, "results", *_result_changes(fn, sunk)),
    }
    if not any(attrs[PARTIAL_ATTR].values()):
        del attrs[PARTIAL_ATTR]
    made = ir.make_node("ir.DictAttrs", **attrs) if attrs else None
    return relax.Function(params, body, result.ty, fn.is_pure, made)


def _chain(start: Any, calls: Sequence[Any], last: Any) -> list[Any]:
    """Bindings that convert ``start`` step by step; the last one binds ``last``."""
    bindings, here = [], start
    for number, call in enumerate(calls):
        new = ir.Call(call.op, [here], call.attrs, list(call.ty_args))
        relax.expr._update_type(new, call.ty)
        final = number == len(calls) - 1 and last is not None
        here = last if final else relax.Var(start.name, call.ty)
        bindings.append(relax.VarBinding(here, new))
    return bindings


def _converted(expr: Any, path: Path, results: dict[Path, list[Any]], out: list[Any]) -> Any:
    """The result with its leaves converted; bindings are added to ``out``."""
    if path in results:
        if not isinstance(expr, ir.Var):
            held = relax.Var("result", expr.ty)
            out.append(relax.VarBinding(held, expr))
            expr = held
        out.extend(_chain(expr, results[path], None))
        return out[-1].var
    if not isinstance(expr.ty, relax.TupleType) or not any(p[: len(path)] == path for p in results):
        return expr
    fields = []
    for i in range(len(expr.ty.fields)):
        item = expr.fields[i] if isinstance(expr, relax.Tuple) else relax.TupleGetItem(expr, i)
        if isinstance(item, relax.TupleGetItem):
            held = relax.Var("item", expr.ty.fields[i])
            out.append(relax.VarBinding(held, item))
            item = held
        fields.append(_converted(item, (*path, i), results, out))
    return typed(relax.Tuple(fields), relax.TupleType([f.ty for f in fields]))


def _first_leaves(fn: relax.Function) -> dict[int, int]:
    """Flat number of each parameter's first leaf."""
    found, at = {}, 0
    for i, param in enumerate(fn.params):
        found[i] = at
        at += len(value_types(param.ty))
    return found


def _result_changes(
    fn: relax.Function, sunk: Sunk
) -> tuple[dict[Path, int], dict[Path, list[int]]]:
    """Flat numbers of the converted results, and along which axes they are partial now."""
    numbers = {path: number for number, path in enumerate(_paths(fn.ret_ty, ()))}
    left: dict[Path, list[int]] = {}
    for path, calls in sunk.results.items():
        last = calls[-1]
        wraps = dist_op_name(last) == "partial"
        left[path] = sorted(int(a) for a in last.attrs["mesh_axes"]) if wraps else []
    return numbers, left


def _paths(ty: Any, path: Path) -> Iterator[Path]:
    if not isinstance(ty, relax.TupleType):
        yield path
        return
    for i, item in enumerate(ty.fields):
        yield from _paths(item, (*path, i))


def _boundary(
    fn: relax.Function, side: str, numbers: dict[Any, int], changed: dict[Any, list[int]]
) -> dict[str, list[int]]:
    """Partial parameters or results after the change, by flat number."""
    found: dict[str, list[int]] = {}
    if fn.attrs and PARTIAL_ATTR in fn.attrs:
        for key, axes in fn.attrs[PARTIAL_ATTR][side].items():
            found[str(key)] = [int(a) for a in axes]
    for where, axes in changed.items():
        found.pop(str(numbers[where]), None)
        if axes:
            found[str(numbers[where])] = axes
    return dict(sorted(found.items()))
