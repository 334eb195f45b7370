# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Specialize private functions for calls with interleaved arguments.

A call that passes a value with interleaved segments calls a version of the function that takes its
parameter in this order. Calls with equal orders share a version. Where no call needs the function
itself any more, the first version takes its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir, relax
from tvm.relax.utils import copy_with_new_vars

from tvm_distir.core.ir.operators.names import new_name
from tvm_distir.core.ir.segments import Segments
from tvm_distir.core.ir.types import relax_functions
from tvm_distir.core.plan.matching import FunctionTargets
from tvm_distir.core.rewriting.calls import typed
from tvm_distir.core.rewriting.entries import public_functions, reached_from
from tvm_distir.core.rewriting.scopes import all_bindings, with_values
from tvm_distir.core.rewriting.substitute import substitute

from .interleaving import SUFFIX, interleave

Orders = tuple[tuple[int, Segments], ...]
"""The positions of interleaved arguments, in order, with their segments."""


class InterleavedFunctions:
    """The functions of a module that take interleaved values.

    Parameters
    ----------
    mod : IRModule
        At level 1.
    targets : mapping of str to FunctionTargets
        The rules of each function.

    Attributes
    ----------
    targets : dict of str to FunctionTargets
        The rules of each function, those of versions included.
    """

    def __init__(self, mod: ir.IRModule, targets: Mapping[str, FunctionTargets]) -> None:
        self.mod, self.targets = mod, dict(targets)
        self.functions: dict[Any, Any] = dict(mod.functions.items())
        self._sources = {str(gv.name_hint): fn for gv, fn in relax_functions(mod)}
        self._versions: dict[tuple[Any, Orders], Any] = {}
        self._names = {str(gv.name_hint) for gv in self.functions}

    def interleave_entry(self, gv: ir.GlobalVar, segments_of: Mapping[int, Segments]) -> None:
        """Rewrite an entry for parameters that are interleaved, and what it calls."""
        name = str(gv.name_hint)
        new = interleave(
            self._sources[name], self.mod, segments_of, self._named(name), self._version
        )
        self.functions[gv] = new

    def module(self) -> ir.IRModule:
        """Return the module of all functions that an entry reaches, or reached before."""
        mod = ir.IRModule(self.functions)
        reached = reached_from(mod, public_functions(mod))
        superseded = {gv for gv, _ in self._versions} - reached.keys()
        env: dict[ir.Expr, ir.Expr] = {}
        for (gv, _), version in self._versions.items():
            if gv in superseded and gv not in env.values():
                env[version] = gv
        functions: dict[Any, Any] = {}
        for gv, fn in self.functions.items():
            if gv not in superseded:
                functions[env.get(gv, gv)] = _renamed_calls(fn, env)
        for version, gv in env.items():
            old = self.targets.pop(str(version.name_hint), None)
            if old is not None:
                self.targets[str(gv.name_hint)] = old
        return ir.IRModule(functions, attrs=self.mod.attrs, global_infos=self.mod.global_infos)

    def _version(self, gv: ir.GlobalVar, orders: Orders) -> Any:
        """Return the version of a function for some orders, None for what is no Relax function."""
        name = str(gv.name_hint)
        if name not in self._sources:
            return None
        if (gv, orders) not in self._versions:
            unique = new_name(f"{name}{SUFFIX}", self._names)
            version = self._versions[gv, orders] = typed(ir.GlobalVar(unique), gv.ty)
            fn, copied = self._sources[name], copy_with_new_vars(self._sources[name])
            self._copy_targets(name, str(version.name_hint), fn, copied)
            named = self._named(str(version.name_hint))
            new = interleave(copied, self.mod, dict(orders), named, self._version)
            self.functions[version] = new
        return self._versions[gv, orders]

    def _named(self, name: str) -> set[Any]:
        """Return the variables of a function that rules name."""
        target = self.targets.get(name)
        return set() if target is None else {*target.values, *target.args}

    def _copy_targets(self, name: str, new: str, fn: relax.Function, copied: Any) -> None:
        """Let the rules of a function apply to its copy."""
        target = self.targets.get(name)
        if target is None:
            return
        pairs = zip(all_bindings(fn.body), all_bindings(copied.body), strict=True)
        env = {old.var: binding.var for old, binding in pairs}
        self.targets[new] = FunctionTargets(
            params=dict(target.params),
            values={env[var]: rule for var, rule in target.values.items()},
            args={env[var]: rules for var, rules in target.args.items()},
            caches={env[var]: rule for var, rule in target.caches.items()},
        )


def _renamed_calls(fn: relax.Function, env: Mapping[Any, Any]) -> Any:
    """Return a function that calls other functions."""
    if not env or not isinstance(fn, relax.Function):
        return fn
    if env.keys().isdisjoint(relax.analysis.all_global_vars(fn)):
        return fn
    return with_values(fn, lambda _, value: substitute(value, env))
