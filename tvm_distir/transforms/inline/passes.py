# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define InlinePrivateFunctions, which replaces calls of private functions by their bodies.

Before::

    def layer(x, w):            # private
        lv = R.matmul(x, w)
        gv = R.nn.relu(lv)
        return gv
    def main(x, a, b):
        y = cls.layer(x, a)
        z = cls.layer(y, b)

After::

    def main(x, a, b):
        lv = R.matmul(x, a)
        y = R.nn.relu(lv)
        lv_1 = R.matmul(y, b)
        z = R.nn.relu(lv_1)

Valid at the levels 1, 2 and 5: between, a function's boundary means more than its body (partial
sums, placements that must match), so DTensors are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from tvm import ir, relax

from tvm_distir.core.analysis import refuse_dtensors
from tvm_distir.core.ir import branch_of, is_private, relax_functions
from tvm_distir.core.ir.attributes import CODEGEN_ATTR
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting import all_bindings, callee_of, has_attr, with_functions
from tvm_distir.support import PlanError, PropagationError, nearest, reachable

from .inliner import Inliner


@module_pass(("global", "annotated", "local"))
def InlinePrivateFunctions(names: Sequence[str] | None = None) -> Rewrite:
    """Inline calls of private functions, and remove the functions that become unused.

    Variables keep their names; where a name is taken a number follows. The variable a call was
    bound to is bound to the body's result. Functions that are also used other than by calls
    (as an operand) stay, and so do those of one that is not inlined, branches of an ``If``, and
    functions that a library compiles.

    Parameters
    ----------
    names : sequence of str, optional
        Names of the private functions to inline. None: all of them.

    Returns
    -------
    Pass
        A module pass. It raises PlanError DIST0225 when ``names`` holds what is no private
        function of the module, PropagationError DIST0408 when functions to inline call each
        other in a circle, LevelError DIST0451 when one of them holds DTensors.
    """
    return lambda mod: inline_module(mod, names)


def inline_module(mod: ir.IRModule, names: Sequence[str] | None = None) -> ir.IRModule:
    """Apply the pass to a copy of the module."""
    functions = {str(gv.name_hint): fn for gv, fn in relax_functions(mod)}
    chosen = _choose(functions, names)
    for name in _callees_first(functions, chosen):
        inliner = Inliner({callee: functions[callee] for callee in chosen})
        functions[name] = inliner.run(functions[name])
    remaining = _still_used(functions, chosen)
    out = {
        gv: functions.get(str(gv.name_hint), fn)
        for gv, fn in mod.functions.items()
        if str(gv.name_hint) in remaining or not isinstance(fn, relax.Function)
    }
    return with_functions(mod, out)


def _choose(functions: dict[str, relax.Function], names: Sequence[str] | None) -> list[str]:
    """Return the names of the functions to inline, in alphabetical order."""
    private = sorted(
        name
        for name, fn in functions.items()
        if is_private(fn) and branch_of(fn) is None and not has_attr(fn, CODEGEN_ATTR)
    )
    for name in names or ():
        if name not in private:
            problem = "is public" if name in functions else "does not exist"
            if branch_of(functions.get(name)) is not None:
                problem = "is a branch of an If"
            if has_attr(functions.get(name), CODEGEN_ATTR):
                problem = "is compiled by a library"
            problem = f'the function "{name}" to inline {problem}'
            raise PlanError("DIST0225", problem, location="module", remedy=nearest(name, private))
    chosen = private if names is None else [name for name in private if name in names]
    for name in chosen:
        problem = "the function contains DTensors, and its boundary may reduce partial sums"
        remedy = "Inline before propagation, or after lowering."
        refuse_dtensors(name, functions[name], problem, remedy)
    return chosen


def _called(fn: relax.Function) -> list[str]:
    """Return the names of the functions that a function calls directly, without duplicates."""
    callees = (callee_of(binding.value) for binding in all_bindings(fn.body))
    return list(dict.fromkeys(str(c.name_hint) for c in callees if c is not None))


def _callees_first(functions: dict[str, relax.Function], chosen: list[str]) -> list[str]:
    """Order the functions so that callees precede their callers (DIST0408 on a cycle)."""
    called = {name: [c for c in _called(fn) if c in chosen] for name, fn in functions.items()}
    try:
        return list(TopologicalSorter(called).static_order())
    except CycleError as error:
        circle = error.args[1][::-1]
        problem = f"functions call each other recursively: {' -> '.join(circle)}"
        remedy = "Unroll the recursion."
        raise PropagationError("DIST0408", problem, location=circle[0], remedy=remedy) from error


def _still_used(functions: dict[str, relax.Function], chosen: list[str]) -> set[str]:
    """Return the names of the functions that stay: those not inlined and those they reference."""

    def referenced(name: str) -> list[str]:
        variables = relax.analysis.all_global_vars(functions[name])
        return [str(gv.name_hint) for gv in variables if str(gv.name_hint) in functions]

    return set(reachable((name for name in functions if name not in chosen), referenced))
