# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Query the functions of a module: callers, callees, order and types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax import Expr

from tvm_distir.core.ir.arrays import unpack
from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.types import is_private, relax_functions
from tvm_distir.support import LoweringError, lists_by_key, reachable

from .calls import typed
from .scopes import all_bindings, branches_of

EFFECTS = "_initialize_effect"
"""The function that `relax.nn` exports beside the methods of a module."""


LOCAL = "a local function"
"""What :func:`ops_called` calls a function that a function binds."""


def callee_of(value: Expr) -> ir.GlobalVar | None:
    """Return the function of the module that a value calls, or None."""
    calls = type(value) is ir.Call and type(value.op) is ir.GlobalVar
    return value.op if calls else None


def module_calls(fn: relax.Function) -> list[tuple[relax.Binding, ir.GlobalVar]]:
    """Return the bindings of a function that call one of the module, with it, in order."""
    called = ((binding, callee_of(binding.value)) for binding in all_bindings(fn.body))
    return [(binding, callee) for binding, callee in called if callee is not None]


def callees_of(fn: relax.Function) -> list[ir.GlobalVar]:
    """Return the functions of the module that a function calls, in order, with repeats."""
    return [callee for _, callee in module_calls(fn)]


def with_functions(mod: ir.IRModule, functions: Mapping[ir.GlobalVar, ir.BaseFunc]) -> ir.IRModule:
    """Return a module of other functions, or the module itself where all are its own."""
    old = mod.functions
    if len(functions) == len(old) and all(
        gv in functions and functions[gv].same_as(fn) for gv, fn in old.items()
    ):
        return mod
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def map_functions(
    mod: ir.IRModule, change: Callable[[Any], ir.BaseFunc], kind: type = relax.Function
) -> ir.IRModule:
    """Return a module with each function of a kind changed, or the module itself."""
    items = mod.functions.items()
    return with_functions(mod, {gv: change(f) if isinstance(f, kind) else f for gv, f in items})


def callers_closure(mod: ir.IRModule, first: set[str]) -> set[str]:
    """Return the names of functions that are in ``first`` or call such a function."""
    if not first:
        return set()
    callers = lists_by_key(
        (str(callee.name_hint), str(gv.name_hint))
        for gv, fn in relax_functions(mod)
        for callee in callees_of(fn)
    )
    return set(reachable(first, lambda name: callers.get(name, ())))


def calls_op(mod: ir.IRModule, names: Collection[str]) -> bool:
    """Return whether a function of a module calls an op of one of the full names."""
    return bool(ops_called(mod, names))


def ops_called(mod: ir.IRModule, names: Collection[str]) -> set[str]:
    """Return which ops of some full names the functions of a module call.

    :data:`LOCAL` stands for the binding of a function.
    """
    ops = {handle(ir.Op.get(name)): name for name in names if name != LOCAL}
    op_handles, called = set[int](), set[str]()
    bodies = [fn.body for _, fn in relax_functions(mod) if isinstance(fn.body, relax.SeqExpr)]
    while bodies:
        for block in bodies.pop().blocks[:]:
            for value in [binding.value for binding in unpack(block.bindings)]:
                kind = type(value)
                if kind is ir.Call:
                    op_handles.add(handle(value.op))
                elif kind is relax.If:
                    bodies += branches_of(value)
                elif kind is relax.Function and LOCAL in names:
                    called.add(LOCAL)
    return called | {name for op, name in ops.items() if op in op_handles}


def inner_made_private(mod: ir.IRModule) -> ir.IRModule:
    """Make public functions private that other functions of the module call.

    A function is an entry, which is cut up for each device, or it is called and has its callers'
    placements: a function that is both counts as called. The function that `relax.nn` exports to
    make effects, objects that its methods pass through, is no entry, and is left out.
    """
    mod = _without_effects(mod)
    functions = {str(gv.name_hint): fn for gv, fn in relax_functions(mod)}
    public = {name for name, fn in functions.items() if not is_private(fn)}
    if not any(_mentions(fn, public - {name}) for name, fn in functions.items()):
        return mod
    called = {
        str(callee.name_hint)
        for name, fn in functions.items()
        for callee in callees_of(fn)
        if str(callee.name_hint) != name
    }
    inner = called & public
    if not inner:
        return mod
    result = {
        gv: fn.without_attr("global_symbol") if str(gv.name_hint) in inner else fn
        for gv, fn in mod.functions.items()
    }
    return with_functions(mod, result)


def _without_effects(mod: ir.IRModule) -> ir.IRModule:
    """Return the module without the function that makes the effects of a `relax.nn` module."""
    if not any(str(gv.name_hint) == EFFECTS for gv in mod.functions):
        return mod
    functions = {gv: fn for gv, fn in mod.functions.items() if str(gv.name_hint) != EFFECTS}
    return with_functions(mod, functions)


def _mentions(fn: relax.Function, names: set[str]) -> bool:
    """Return whether a function mentions any of some functions in any way."""
    return bool(names) and not names.isdisjoint(
        [str(gv.name_hint) for gv in relax.analysis.all_global_vars(fn)]
    )


def retyped(gv: ir.GlobalVar, ty: ir.Type) -> ir.GlobalVar:
    """Make a global variable of the same name and another type."""
    return typed(ir.GlobalVar(gv.name_hint), ty)


def callees_first(
    mod: ir.IRModule, called: Mapping[str, Sequence[Any]] | None = None
) -> list[tuple[Any, relax.Function]]:
    """Return the Relax functions, every callee before its callers.

    Parameters
    ----------
    mod : IRModule
    called : mapping of str to sequence of GlobalVar, optional
        The callees of each function, where they are known already.

    Raises
    ------
    LoweringError
        DIST0504 when functions call each other recursively.
    """
    functions = {str(gv.name_hint): (gv, fn) for gv, fn in relax_functions(mod)}
    if called is None:
        called = {name: callees_of(fn) for name, (_, fn) in functions.items()}
    calls = {
        name: sorted({str(c.name_hint) for c in called[name]} & set(functions))
        for name in functions
    }
    order: list[str] = []
    state: dict[str, int] = {}
    for root in functions:
        stack = [(root, iter(calls[root]))] if root not in state else []
        state.setdefault(root, 1)
        while stack:
            name, rest = stack[-1]
            callee = next((c for c in rest if state.get(c) != 2), None)
            if callee is None:
                stack.pop()
                if state[name] != 2:
                    state[name] = 2
                    order.append(name)
            elif state.get(callee) == 1:
                problem = f'"{name}" and "{callee}" call each other recursively'
                raise LoweringError(
                    "DIST0504", problem, location=name, remedy="Remove the recursion."
                )
            else:
                state[callee] = 1
                stack.append((callee, iter(calls[callee])))
    return [functions[name] for name in order]
