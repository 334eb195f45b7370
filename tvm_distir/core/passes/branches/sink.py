# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Sink conversions that a single branch needs into the function of that branch (level 3).

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
collective of a branch with something outside. At level 4 :func:`sink_collectives` does the same
with the collectives that passes have moved to a branch.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, relax

from tvm_distir.core.analysis.partial import PartialState
from tvm_distir.core.ir.branches import branch_calls, branch_of
from tvm_distir.core.ir.operators.names import free_name
from tvm_distir.core.ir.types import relax_functions
from tvm_distir.core.rewriting.calls import typed
from tvm_distir.core.rewriting.entries import names_reached
from tvm_distir.core.rewriting.functions import retyped
from tvm_distir.core.rewriting.substitute import substitute
from tvm_distir.core.rewriting.writer import merged_blocks
from tvm_distir.support import Steps, unrolled

from .choice_mesh import choose_beside_branches
from .def_use import DefUse
from .extend import Sunk, extended


def sink_conversions(mod: ir.IRModule) -> ir.IRModule:
    """Move conversions into the branches that alone need them; see the module's docstring.

    Before that every choice moves to the mesh of its branches (:mod:`.choice_mesh`).

    Parameters
    ----------
    mod : IRModule
        The module, at level 3, made from a module whose ``If`` were lifted; it is not changed (and
        returned when it has no lifted branch).
    """
    if not any(branch_of(fn) for fn in mod.functions.values()):
        return mod
    return _Sinker(choose_beside_branches(mod), legalized=False).run()


def sink_collectives(mod: ir.IRModule) -> ir.IRModule:
    """Move collectives into the branches that alone need them.

    Parameters
    ----------
    mod : IRModule
        The module, at level 4; it is not changed (and returned when nothing moves).
    """
    if not any(branch_of(fn) for fn in mod.functions.values()):
        return mod
    sinker = _Sinker(mod, legalized=True)
    return sinker.run() if sinker.finds() else mod


class _Sinker:
    """A rewriter of a module, which handles inner branches before outer branches.

    Attributes
    ----------
    settled : dict of str to Function
        Functions in which the calls of branches are rewritten.
    variants : dict of str to list
        The functions that take the place of each branch: (global variable, function).
    """

    def __init__(self, mod: ir.IRModule, *, legalized: bool) -> None:
        self.mod, self.legalized = mod, legalized
        self.settled: dict[str, Any] = {}
        self.variants: dict[str, list[tuple[Any, Any]]] = {}
        self.used_names = {str(gv.name_hint) for gv in mod.functions}
        self.builder = relax.BlockBuilder()

    def run(self) -> ir.IRModule:
        """Return the rewritten module; branches that no call needs any more are left out."""
        for gv, fn in relax_functions(self.mod):
            unrolled(self._settle(str(gv.name_hint), fn))
        functions_by_name = {
            str(gv.name_hint): (gv, self.settled.get(str(gv.name_hint), fn))
            for gv, fn in self.mod.functions.items()
            if branch_of(fn) is None
        }
        for variants in self.variants.values():
            functions_by_name.update({str(gv.name_hint): (gv, fn) for gv, fn in variants})
        known = {name: fn for name, (_, fn) in functions_by_name.items()}
        needed = names_reached(known, [n for n, fn in known.items() if branch_of(fn) is None])
        functions = dict(functions_by_name[name] for name in sorted(needed))
        return ir.IRModule(functions, attrs=self.mod.attrs, global_infos=self.mod.global_infos)

    def finds(self) -> bool:
        """Return whether anything is to be moved."""
        return any(
            sunk.removed for _, fn in relax_functions(self.mod) for sunk in self._plans(fn).values()
        )

    # callers ---------------------------------------------------------------------------

    def _settle(self, name: str, fn: relax.Function) -> Steps[None]:
        """Rewrite a function once, after the branches it calls."""
        if name in self.settled:
            return
        inner = [b.value.op for b, _, _ in branch_calls(self.mod, fn)]
        for callee in inner:
            yield self._settle(str(callee.name_hint), self.mod[callee])
        self.settled[name] = self._caller(name, fn) if inner else fn

    def _caller(self, name: str, fn: relax.Function) -> relax.Function:
        state = PartialState(self.mod, name, fn, legalized=self.legalized)
        state.check()
        plans = self._plans(fn)
        removed = {var for sunk in plans.values() for var in sunk.removed}
        env: dict[ir.Expr, ir.Expr] = {}
        blocks = []
        for block in fn.body.blocks:
            bindings = []
            for b in block.bindings:
                if b.var in removed:
                    continue
                if b.var in plans:
                    bindings.append(self._call(b, plans[b.var], state, env))
                else:
                    bindings.append(self._binding(b, env))
                for sunk in plans.values():
                    env.update(
                        {last: env[leaf] for last, leaf in sunk.finals.items() if leaf in env}
                    )
            blocks.append(type(block)(bindings))
        result = substitute(fn.body.body, env)
        body = typed(relax.SeqExpr(merged_blocks(blocks), result), result.ty)
        return relax.Function(fn.params, body, fn.ret_ty, fn.is_pure, fn.attrs)

    def _binding(self, b: Any, env: dict[ir.Expr, ir.Expr]) -> Any:
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

    def _call(self, b: Any, sunk: Sunk, state: PartialState, env: dict[ir.Expr, ir.Expr]) -> Any:
        args = [substitute(sunk.sources.get(i, a), env) for i, a in enumerate(b.value.args)]
        callee = str(b.value.op.name_hint)
        fn = self.settled[callee]
        if sunk.args or sunk.results:
            fn = extended(fn, sunk, state)
        call = self.builder.normalize(ir.Call(self._variant(callee, fn), args))
        var = type(b.var)(b.var.name, call.ty)
        env[b.var] = var
        return relax.VarBinding(var, call)

    def _variant(self, name: str, fn: relax.Function) -> Any:
        """Return the global variable of the replacement of a branch; equal functions are shared."""
        variants = self.variants.setdefault(name, [])
        for gv, other in variants:
            if tvm_ffi.structural_equal(other, fn):
                return gv
        new = free_name(name, self.used_names) if variants else name
        self.used_names.add(new)
        gv = retyped(ir.GlobalVar(new), fn.ty)
        variants.append((gv, fn))
        return gv

    # planning --------------------------------------------------------------------------

    def _plans(self, fn: relax.Function) -> dict[Any, Sunk]:
        """Return the conversions that each call of a branch moves in, by its variable."""
        calls = [b for b, _, _ in branch_calls(self.mod, fn)]
        plans: dict[Any, Sunk] = {}
        if calls:
            def_use, moved = DefUse(fn, legalized=self.legalized), set[Any]()
            for b in calls:
                plans[b.var] = self._plan(def_use, b, moved)
                moved |= plans[b.var].removed
        return plans

    @staticmethod
    def _plan(def_use: DefUse, b: Any, moved: set[Any]) -> Sunk:
        """Return the conversions that a call moves in, unless another call does."""
        sunk = Sunk()
        for i, arg in enumerate(b.value.args):
            source, steps = def_use.before(arg)
            if steps and not moved & {var for var, _ in steps}:
                sunk.sources[i], sunk.args[i] = source, [call for _, call in steps]
                sunk.removed.update(var for var, _ in steps)
        for path, leaf in def_use.leaves(b.var, ()):
            steps = def_use.after(leaf)
            if steps:
                sunk.results[path] = [call for _, call in steps]
                sunk.removed.update(var for var, _ in steps)
                sunk.finals[steps[-1][0]] = leaf
                sunk.lasts[path] = steps[-1][0]
        return sunk
