# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Replace calls of closures by calls of private functions.

Before (or what ``relax.transform.LambdaLift`` makes of it, ``make_closure`` and
``invoke_pure_closure``)::

    @R.function
    def inner(a):
        return R.matmul(a, w)
    y = inner(x)

After, with the private function ``main_inner(a, w)``::

    y = cls.main_inner(x, w)
"""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.types import relax_functions
from tvm_distir.support import PropagationError

from .calls import called_name, field_of
from .functions import LOCAL, calls_op, with_functions
from .replacing import replaced_calls
from .scopes import all_bindings

MAKE_CLOSURE = "relax.make_closure"
_INVOKE = ("relax.invoke_closure", "relax.invoke_pure_closure")


def without_closures(mod: ir.IRModule) -> ir.IRModule:
    """Return the module with each call of a closure as a call of a private function.

    What a closure captures becomes further arguments of its calls. The module is not changed, and
    returned where it holds no closure.

    Raises
    ------
    PropagationError
        DIST0412 naming a closure that is read other than by calls, or calls itself.
    """
    if not calls_op(mod, (MAKE_CLOSURE, LOCAL)):
        return mod
    if any(_is_local(b) for _, fn in relax_functions(mod) for b in all_bindings(fn.body)):
        for gv, fn in relax_functions(mod):
            _refuse_recursion(str(gv.name_hint), fn)
        mod = relax.transform.LambdaLift()(mod)
    replaced = dict(replaced_calls(mod, dict.fromkeys(_INVOKE, _called)).functions)
    for gv, fn in relax_functions(mod):
        if any(_makes(b.value) for b in all_bindings(fn.body)):
            replaced[gv] = relax.analysis.remove_all_unused(replaced[gv])
            _refuse_escapes(str(gv.name_hint), replaced[gv])
    return with_functions(mod, replaced)


def _is_local(binding: relax.Binding) -> bool:
    return type(binding.value) is relax.Function


def _makes(value: ir.Expr) -> bool:
    return type(value) is ir.Call and called_name(value) == MAKE_CLOSURE


def _fault(problem: str, location: str, remedy: str) -> PropagationError:
    return PropagationError("DIST0412", problem, location=location, remedy=remedy)


def _refuse_recursion(name: str, fn: relax.Function) -> None:
    """Refuse a local function that calls itself, which ``LambdaLift`` cannot lift."""
    for binding in filter(_is_local, all_bindings(fn.body)):
        if any(used.same_as(binding.var) for used in relax.analysis.free_vars(binding.value)):
            problem = "a function inside of a function calls itself"
            raise _fault(problem, f"{name}/{binding.var.name}", "Unroll the recursion.")
        _refuse_recursion(f"{name}/{binding.var.name}", binding.value)


def _refuse_escapes(name: str, fn: relax.Function) -> None:
    """Refuse closures that are still made, since something reads them as values."""
    for binding in (b for b in all_bindings(fn.body) if _makes(b.value)):
        raise _fault(
            "a closure is read as a value (returned, stored in a tuple, or passed on), so that "
            "what its readers call is not known",
            f"{name}/{binding.var.name}",
            "Call it where it is defined, or make it a private function of the module that takes "
            "what it captures as arguments.",
        )


def _called(builder: relax.BlockBuilder, call: ir.Call) -> ir.Call | None:
    """Return the call of the function of a closure that the same function makes."""
    maker: Any = call.args[0]
    while isinstance(maker, ir.Var):
        maker = builder.lookup_binding(maker)
    if not _makes(maker):
        return None
    target, captures = maker.args
    return ir.Call(target, [*_fields(call.args[1]), *_fields(captures)])


def _fields(value: ir.Expr) -> list[ir.Expr]:
    if isinstance(value, relax.Tuple):
        return list(value.fields)
    return [field_of(value, number) for number in range(len(value.ty.fields))]
