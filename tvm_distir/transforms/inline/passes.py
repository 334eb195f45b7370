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
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir import branch_of, is_private
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting import all_bindings
from tvm_distir.support import LevelError, PlanError, PropagationError, nearest

from .inliner import Inliner


@module_pass(("global", "annotated", "local"))
def InlinePrivateFunctions(names: Sequence[str] | None = None) -> Rewrite:
    """Inline calls of private functions, and remove the functions that become unused.

    Variables keep their names; where a name is taken a number follows. The variable a call was
    bound to is bound to the body's result. Functions that are also used other than by calls
    (as an operand) stay, and so do those of one that is not inlined, and branches of an ``If``.

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
    functions = {
        str(gv.name_hint): fn for gv, fn in mod.functions.items() if isinstance(fn, relax.Function)
    }
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
    return ir.IRModule(out, attrs=mod.attrs, global_infos=mod.global_infos)


def _choose(functions: dict[str, Any], names: Sequence[str] | None) -> list[str]:
    """Return the names of the functions to inline, in alphabetical order."""
    private = sorted(
        name for name, fn in functions.items() if is_private(fn) and branch_of(fn) is None
    )
    for name in names or ():
        if name not in private:
            problem = "is public" if name in functions else "does not exist"
            if branch_of(functions.get(name)) is not None:
                problem = "is a branch of an If"
            raise PlanError(
                "DIST0225",
                f'the function "{name}" to inline {problem}',
                place="module",
                remedy=nearest(name, private),
            )
    chosen = private if names is None else [name for name in private if name in names]
    for name in chosen:
        _refuse_dtensors(name, functions[name])
    return chosen


def _refuse_dtensors(name: str, fn: relax.Function) -> None:
    for var in [*fn.params, *(binding.var for binding in all_bindings(fn.body))]:
        if isinstance(var.ty, DTensorType):
            raise LevelError(
                "DIST0451",
                "the function contains DTensors, and its boundary may reduce partial sums",
                place=f"{name}/{var.name}",
                remedy="Inline before propagation, or after lowering.",
            )


def _called(fn: relax.Function) -> list[str]:
    """Return the names of the functions that a function calls directly, without duplicates."""
    values = (getattr(binding, "value", None) for binding in all_bindings(fn.body))
    calls = (v for v in values if isinstance(v, ir.Call) and isinstance(v.op, ir.GlobalVar))
    return list(dict.fromkeys(str(call.op.name_hint) for call in calls))


def _callees_first(functions: dict[str, Any], chosen: list[str]) -> list[str]:
    """Order the functions so that callees precede their callers (DIST0408 on a cycle)."""
    done: dict[str, None] = {}
    for start in sorted(functions):
        path = [start]
        waiting = [iter([c for c in _called(functions[start]) if c in chosen])]
        while path:
            callee = next(waiting[-1], None)
            if callee is None:
                done[path.pop()] = None
                waiting.pop()
            elif callee in path:
                circle = " -> ".join([*path[path.index(callee) :], callee])
                raise PropagationError(
                    "DIST0408",
                    f"functions call each other recursively: {circle}",
                    place=callee,
                    remedy="Unroll the recursion.",
                )
            elif callee not in done:
                path.append(callee)
                waiting.append(iter([c for c in _called(functions[callee]) if c in chosen]))
    return list(done)


def _still_used(functions: dict[str, Any], chosen: list[str]) -> set[str]:
    """Return the names of the functions that stay: those not inlined and those they reference."""
    remaining = {name for name in functions if name not in chosen}
    waiting = sorted(remaining)
    while waiting:
        for name in _mentioned(functions[waiting.pop()]):
            if name in functions and name not in remaining:
                remaining.add(name)
                waiting.append(name)
    return remaining


def _mentioned(fn: relax.Function) -> list[str]:
    result: dict[str, None] = {}

    def visit(node: Any) -> None:
        if isinstance(node, ir.GlobalVar):
            result[str(node.name_hint)] = None

    relax.analysis.post_order_visit(fn.body, visit)
    return list(result)
