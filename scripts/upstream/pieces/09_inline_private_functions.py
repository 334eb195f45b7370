# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``PropagateSharding`` through calls of private functions, which it writes out first.

The change is in Python, in ``python/tvm/relax/distributed/transform/transform.py``: the pass is
preceded by :func:`inline_private_callees`, and the native pass stays as it is. Only functions that
are annotated, or that call what is annotated, are changed; what a compiler of a library takes as a
whole (``Codegen``, ``Composite``, ``Primitive``) is no callee. ``relax.transform.
InlinePrivateFunctions`` would inline those as well, in every function of the module.

A function that is used with two placements is thereby written twice, as it has to be.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import ir, relax
from tvm.relax.distributed import transform
from tvm.relax.distributed.transform import _ffi_api

WHOLE = ("Codegen", "Composite", "Primitive")


def _calls(function: relax.Function) -> Iterator[ir.Call]:
    """Yield all calls of a function."""
    matches: list[ir.Call] = []

    def collect(node: relax.Expr) -> None:
        if isinstance(node, ir.Call):
            matches.append(node)

    relax.analysis.post_order_visit(function.body, collect)
    yield from matches


def _is_annotated(function: relax.Function) -> bool:
    ops = (call.op for call in _calls(function))
    return any(isinstance(op, ir.Op) and op.name == "relax.dist.annotate_sharding" for op in ops)


def _reached(
    function: relax.Function, private: dict[str, relax.Function]
) -> dict[str, relax.Function]:
    """Return by name the private functions that a function calls, also indirectly."""
    matches: dict[str, relax.Function] = {}
    pending = [function]
    while pending:
        for call in _calls(pending.pop()):
            callee = call.op.name_hint if isinstance(call.op, ir.GlobalVar) else None
            if callee in private and callee not in matches:
                matches[callee] = private[callee]
                pending.append(private[callee])
    return matches


def _refuse_recursion(functions: dict[str, relax.Function]) -> None:
    """Raise ValueError for a function that calls itself, also indirectly."""
    for name, function in functions.items():
        if name in _reached(function, functions):
            raise ValueError(f"{name} calls itself, and a call of it has no placements")


@tvm.transform.module_pass(opt_level=0, name="InlinePrivateCallees")
def inline_private_callees(mod: ir.IRModule, _context: tvm.transform.PassContext) -> ir.IRModule:
    """Write out the private functions that annotated functions call, and drop unused ones."""
    functions = {n: f for n, f in mod.functions_items() if isinstance(f, relax.Function)}
    attributes = {name: dict(fn.attrs or {}) for name, fn in functions.items()}
    private = {
        name.name_hint: function
        for name, function in functions.items()
        if "global_symbol" not in attributes[name] and not attributes[name].keys() & {*WHOLE}
    }
    output, inlined = dict(mod.functions_items()), set[str]()
    for name, function in functions.items():
        if name.name_hint in private:
            continue
        reached = _reached(function, private)
        if any(map(_is_annotated, [function, *reached.values()])):
            _refuse_recursion({name.name_hint: function, **reached})
            output[name] = function.inline_functions(reached)
            inlined |= reached.keys()
    if not inlined:
        return mod
    remaining = [output[name] for name in functions if name.name_hint not in inlined]
    used = {callee for function in remaining for callee in _reached(function, private)}
    for name in functions:
        if name.name_hint in inlined - used:
            del output[name]
    return ir.IRModule(output, attrs=mod.attrs, global_infos=dict(mod.global_infos))


def PropagateSharding() -> tvm.transform.Pass:
    """Propagate shardings, through calls of private functions as well."""
    passes = [inline_private_callees, _ffi_api.PropagateSharding()]
    return tvm.transform.Sequential(passes, name="PropagateSharding")


def install() -> None:
    """Put the pass in place of that which calls the native one only."""
    transform.PropagateSharding = PropagateSharding
