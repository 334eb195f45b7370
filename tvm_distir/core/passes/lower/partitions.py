# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Restore functions of libraries at level 5, where a device still computes their patterns.

A function with ``Composite`` is intact where its ops are those that the pattern matched, and where
the pattern, if TVM knows it by its name, matches them on local shapes too. Collectives before and
after them move to the callers. What is not intact is inlined, with a warning: the library cannot
compute it, and TVM's own kernels do. See :mod:`tvm_distir.core.rewriting.partitions`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from tvm import ir, relax
from tvm.relax.backend import get_pattern

from tvm_distir.core.ir.attributes.keys import CODEGEN_ATTR, COMPOSITE_ATTR, COMPOSITE_OPS_ATTR
from tvm_distir.core.ir.operators.names import new_name
from tvm_distir.core.ir.types import relax_functions
from tvm_distir.core.rewriting.calls import called_name, typed
from tvm_distir.core.rewriting.functions import callee_of, callees_first
from tvm_distir.core.rewriting.partitions import calls_in, has_attr, without
from tvm_distir.core.rewriting.scopes import all_bindings, with_values
from tvm_distir.core.rewriting.substitute import substitute, variables
from tvm_distir.core.rewriting.writer import with_body
from tvm_distir.support import warn

from .inlining import inline_functions

_LIBRARIES = {
    "cublas": "cuda.cublas",
    "cudnn": "cuda.cudnn",
    "cutlass": "cuda.cutlass",
    "hipblas": "rocm.hipblas",
    "clml": "adreno.clml",
    "nnapi": "contrib.nnapi",
    "coreml": "metal.coreml",
}
"""Modules of ``tvm.relax.backend`` by the first part of the names of their patterns."""


def restore_partitions(mod: ir.IRModule) -> ir.IRModule:
    """Return a module at level 5 with functions of libraries as TVM's passes write them."""
    composites = [gv for gv, fn in relax_functions(mod) if has_attr(fn, COMPOSITE_OPS_ATTR)]
    return _Restorer(mod, composites).run() if composites else mod


class _Restorer:
    """A writer of the functions of libraries into a module.

    Parameters
    ----------
    mod : IRModule
        A module at level 5.
    composites : sequence of GlobalVar
        Its functions with ``Composite``.
    """

    def __init__(self, mod: ir.IRModule, composites: Sequence[ir.GlobalVar]) -> None:
        self.mod, self.composites = mod, composites
        self.functions = dict(mod.functions)
        self.names = {str(gv.name_hint) for gv in mod.functions}
        self.inner: list[str] = []  # functions to inline
        self.intact: dict[str, relax.Function] = {}

    def run(self) -> ir.IRModule:
        """Split the composites, inline what lies around them, and nest the rest."""
        for gv in self.composites:
            self._split(gv, self.functions[gv])
        self._inline()
        for gv, fn in list(self.functions.items()):
            if has_attr(fn, CODEGEN_ATTR) and not self._is_library(fn):
                self._dissolve(gv, fn)
        self._inline()
        for gv, fn in list(self.functions.items()):
            if has_attr(fn, CODEGEN_ATTR):
                self.functions[gv] = self._nested(str(gv.name_hint), fn)
        called = [callee_of(c) for fn in self.functions.values() for c in calls_in(fn)]
        used = {str(callee.name_hint) for callee in called if callee is not None}
        remaining = {
            gv: fn
            for gv, fn in self.functions.items()
            if str(gv.name_hint) not in self.intact or str(gv.name_hint) in used
        }
        return ir.IRModule(remaining, attrs=self.mod.attrs, global_infos=self.mod.global_infos)

    def _inline(self) -> None:
        """Inline the functions that are to be."""
        if not self.inner:
            return
        mod = ir.IRModule(self.functions, attrs=self.mod.attrs, global_infos=self.mod.global_infos)
        self.functions = dict(inline_functions(mod, callees_first(mod), self.inner).functions)
        self.inner = []

    def _split(self, gv: ir.GlobalVar, fn: relax.Function) -> None:
        """Reduce a composite to its pattern, in a wrapper that holds what is around it."""
        name, pattern = str(gv.name_hint), str(fn.attrs[COMPOSITE_ATTR])
        bindings = all_bindings(fn.body)
        first, end = _span(bindings, [str(op) for op in fn.attrs[COMPOSITE_OPS_ATTR]])
        core = fn if end - first == len(bindings) else _core(fn, bindings, first, end)
        plain = without(fn, COMPOSITE_ATTR, "Primitive", COMPOSITE_OPS_ATTR)
        if core is None or not _matches(pattern, core):
            warn(
                f'{name}: the pattern "{pattern}" does not match what a device computes, so that '
                "TVM's kernels compute it in place of the library's",
                stacklevel=2,
            )
            self.functions[gv] = plain
            self.inner.append(name)
        elif core is fn:
            self.functions[gv] = self.intact[name] = fn.without_attr(COMPOSITE_OPS_ATTR)
        else:
            target = typed(ir.GlobalVar(new_name(f"{name}_core", self.names)), core.ty)
            self.functions[target] = self.intact[str(target.name_hint)] = _copied(core)
            call = typed(ir.Call(target, list(core.params)), core.ret_ty)
            result = relax.VarBinding(core.body.body, call)
            block = relax.BindingBlock([*bindings[:first], result, *bindings[end:]])
            body = plain.body.body
            self.functions[gv] = with_body(plain, fn.params, [block], body, bool(fn.is_pure))
            self.inner.append(name)

    def _is_library(self, fn: relax.Function) -> bool:
        """Return whether a function only calls intact composites."""
        callees = [callee_of(call) for call in calls_in(fn)]
        return all(c is not None and str(c.name_hint) in self.intact for c in callees)

    def _dissolve(self, gv: ir.GlobalVar, fn: relax.Function) -> None:
        """Make a library function of each composite that is called among other things."""
        env: dict[ir.Expr, ir.Expr] = {}
        for callee in map(callee_of, calls_in(fn)):
            name = "" if callee is None else str(callee.name_hint)
            if name in self.intact and callee not in env:
                single = new_name(f"{gv.name_hint}_pattern", self.names)
                new = _calling(callee, self.intact[name], fn.attrs[CODEGEN_ATTR])
                env[callee] = typed(ir.GlobalVar(single), new.ty)
                self.functions[env[callee]] = new
        plain = without(fn, CODEGEN_ATTR)
        self.functions[gv] = with_values(plain, lambda _, value: substitute(value, env))
        self.inner.append(str(gv.name_hint))

    def _nested(self, name: str, fn: relax.Function) -> relax.Function:
        """Return a library function with its composites as local functions."""
        fn = _copied(fn)
        bindings: list[relax.Binding] = []
        env: dict[ir.Expr, ir.Expr] = {}
        for binding in all_bindings(fn.body):
            callee = callee_of(binding.value)
            if callee is not None and callee not in env:
                local = _copied(without(self.intact[str(callee.name_hint)], "Primitive"))
                env[callee] = relax.Var("local_func", local.ty)
                bindings.append(relax.VarBinding(env[callee], local))
            bindings.append(relax.VarBinding(binding.var, substitute(binding.value, env)))
        block = relax.BindingBlock(bindings)
        nested = with_body(fn, fn.params, [block], fn.body.body, bool(fn.is_pure))
        return nested.with_attr("global_symbol", name)


def _span(bindings: Sequence[relax.Binding], ops: Sequence[str]) -> tuple[int, int]:
    """Return the first binding that calls the ops in order, and the end; (0, 0) where none do."""
    calls = [i for i, b in enumerate(bindings) if type(b.value) is ir.Call]
    names = [called_name(bindings[i].value) for i in calls]
    for k in range(len(names) - len(ops) + 1):
        if names[k : k + len(ops)] == list(ops):
            return calls[k], calls[k + len(ops) - 1] + 1
    return 0, 0


def _core(
    fn: relax.Function, bindings: Sequence[relax.Binding], first: int, end: int
) -> relax.Function | None:
    """Return the composite of the bindings of a pattern; its parameters are what these read.

    None where there are no such bindings, or several of their values are read later.
    """
    read = [v for b in bindings[end:] for v in variables(b.value)] + variables(fn.body.body)
    inside = bindings[first:end]
    results = [b.var for b in inside if any(b.var.same_as(v) for v in read)]
    if len(results) != 1:
        return None
    (result,) = results
    body = typed(relax.SeqExpr([relax.BindingBlock(inside)], result), result.ty)
    core = relax.Function(list(relax.analysis.free_vars(body)), body, result.ty, True, fn.attrs)
    return core.without_attr(COMPOSITE_OPS_ATTR)


def _calling(callee: ir.GlobalVar, composite: relax.Function, library: str) -> relax.Function:
    """Return a library function that calls a composite."""
    params = [relax.Var(str(p.name), p.ty) for p in composite.params]
    ty, attrs = composite.ret_ty, ir.make_node("ir.DictAttrs", **{CODEGEN_ATTR: library})
    output = relax.Var("output", ty)
    block = relax.BindingBlock([relax.VarBinding(output, typed(ir.Call(callee, params), ty))])
    return relax.Function(params, typed(relax.SeqExpr([block], output), ty), ty, True, attrs)


def _copied(fn: relax.Function) -> relax.Function:
    """Return a function of a single plain block, with new variables."""
    env: dict[ir.Expr, ir.Expr] = {p: relax.Var(str(p.name), p.ty) for p in fn.params}
    bindings = []
    for binding in all_bindings(fn.body):
        value = substitute(binding.value, env)
        env[binding.var] = relax.Var(str(binding.var.name), binding.var.ty)
        bindings.append(relax.VarBinding(env[binding.var], value))
    params, result = [env[p] for p in fn.params], substitute(fn.body.body, env)
    return with_body(fn, params, [relax.BindingBlock(bindings)], result, bool(fn.is_pure))


def _matches(name: str, core: relax.Function) -> bool:
    """Return whether a pattern that TVM knows by its name matches a function; others do."""
    library = _LIBRARIES.get(name.partition(".")[0])
    if library is not None:  # its module registers the patterns
        importlib.import_module(f"tvm.relax.backend.{library}")
    pattern = get_pattern(name)
    if pattern is None:
        return True
    plain = without(_copied(core), COMPOSITE_ATTR, "Primitive", COMPOSITE_OPS_ATTR)
    plain = plain.with_attr("global_symbol", "main")
    mod = relax.transform.ConvertToDataflow(1)(ir.IRModule({"main": plain}))
    fused = relax.transform.FuseOpsByPattern([pattern])(mod)["main"]
    calls = list(calls_in(fused))
    return len(calls) == 1 and callee_of(calls[0]) is not None
