# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Wait for the reductions of a function's results in its callers (level 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax import Binding, Var

from tvm_distir.core.ir import is_private
from tvm_distir.core.ir.attributes import IN_FLIGHT_ATTR, PHASE_ATTR
from tvm_distir.core.ir.operators import REDUCTIONS, is_done, started_ops
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting import (
    VARIABLES,
    callee_of,
    callees_first,
    make_binding,
    make_var,
    retyped,
    substitute,
    tuple_of,
    variables,
    with_body,
    with_functions,
)
from tvm_distir.core.rewriting.native import pruned

from .call_sites import CallSites, all_known, axes_of, laid_out
from .deferred_calls import DeferredResults, with_waits
from .lifting import in_flight

_SPLIT = ir.Op.get("relax.split")


@module_pass("local")
def DeferReductions() -> Rewrite:
    """Let the callers of a function wait for the reductions of its results.

    A function of a backward pass reduces the gradients of its weights at its end, where nothing is
    left to overlap with. The started reductions become results that are in flight (the attribute
    ``dist.in_flight``). A caller waits for them after its next call of such a function, or before
    their first use, so that they travel while the next layer computes. What only changes the
    layout of the reduced values moves with them. The values are the same.

    Collectives have to be split. Functions with collectives along other axes stay as they are,
    since these would queue behind the reductions; so do functions that are called in branches, and
    modules whose entries share a mesh.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return _defer


def _defer(mod: ir.IRModule) -> ir.IRModule:
    calls = CallSites(mod)
    if calls.share_a_mesh:
        return mod
    functions = dict(mod.functions.items())
    deferred: dict[ir.GlobalVar, DeferredResults] = {}
    read = {gv: _read_besides_fields(fn) for gv, fn in calls.functions.items()}
    for gv, fn in callees_first(mod, calls.callees):
        values = (b.value for block in fn.body.blocks for b in block.bindings[:])
        if deferred and any(callee in deferred for callee in map(callee_of, values)):
            fn = functions[gv] = with_waits(fn, deferred)
        phase = fn.attrs is not None and PHASE_ATTR in fn.attrs
        if phase or not is_private(fn) or gv in calls.barred or not calls.of[gv]:
            continue
        if any(call.var in read[caller] for caller, call in calls.of[gv]):
            continue
        deferrable = _deferrable(gv, fn, {f.gv: f for f in deferred.values()})
        if deferrable is not None:
            deferred[gv] = deferrable
    for gv, deferrable in deferred.items():
        del functions[gv]
        functions[deferrable.gv] = deferrable.fn
    return with_functions(mod, functions)


def _read_besides_fields(fn: relax.Function) -> set[Any]:
    """Return the variables that a function reads otherwise than as tuples, by field."""
    values = [b.value for block in fn.body.blocks for b in block.bindings[:]]
    rest = [v for v in values if type(getattr(v, "tuple_value", None)) not in VARIABLES]
    return {var for value in (fn.body.body, *rest) for var in variables(value)}


def _deferrable(
    gv: ir.GlobalVar, fn: relax.Function, known: Mapping[Any, DeferredResults]
) -> DeferredResults | None:
    """Return a function with its last reductions left in flight, or None if there are none."""
    result = fn.body.body
    noted = fn.attrs[IN_FLIGHT_ATTR] if fn.attrs and IN_FLIGHT_ATTR in fn.attrs else {}
    if type(result) is not relax.Tuple or "results" in noted:
        return None
    bindings = [b for block in fn.body.blocks for b in block.bindings]
    if len(axes_of([b.value for b in bindings])) > 1:
        return None
    flying = _flying(bindings, known)
    groups: list[tuple[Var, list[Binding]]] = []
    for binding in bindings if flying else ():
        if is_done(binding.value) and binding.value.args[0] in flying:
            moved = _layout_after(binding, bindings)
            if moved is not None:
                groups.append((binding.value.args[0], moved))
    moved_vars = {b.var for _, moved in groups for b in moved}
    fields = {n: field for n, field in enumerate(result.fields) if field in moved_vars}
    if not fields:
        return None
    kept_positions = [n for n in range(len(result.fields)) if n not in fields]
    outputs = {start: _output(start) for start, _ in groups}
    results = [*(result.fields[n] for n in kept_positions), *outputs.values()]
    rest = [
        type(block)(
            [
                make_binding(outputs.get(b.var, b.var), substitute(b.value, outputs))
                for b in block.bindings
                if b.var not in moved_vars
            ]
        )
        for block in fn.body.blocks
    ]
    result_tuple = tuple_of(results)
    blocks, _ = pruned(rest, result_tuple)
    new = with_body(fn, fn.params, blocks, result_tuple, bool(fn.is_pure), fn.attrs)
    new = in_flight(new, {"results": range(len(kept_positions), len(results))})
    return DeferredResults(
        retyped(gv, new.ty),
        new,
        {old: position for position, old in enumerate(kept_positions)},
        tuple(outputs),
        tuple(b for b in bindings if b.var in moved_vars),
        fields,
    )


def _output(var: Var) -> Var:
    """Return a variable that a function may return in place of one of its dataflow block."""
    return make_var(str(var.name), var.ty) if type(var) is relax.DataflowVar else var


def _flying(bindings: Sequence[Binding], known: Mapping[Any, DeferredResults]) -> set[Var]:
    """Return the started reductions, and those that callees have left in flight."""
    flying: set[Var] = set()
    calls: dict[Var, int] = {}
    started = started_ops(bindings)
    for binding in bindings:
        value = binding.value
        results = known.get(callee_of(value)) if known else None
        if started.get(binding.var) in REDUCTIONS:
            flying.add(binding.var)
        elif results is not None:
            calls[binding.var] = len(results.kept)
        elif type(value) is relax.TupleGetItem and value.tuple_value in calls:
            if int(value.index) >= calls[value.tuple_value]:
                flying.add(binding.var)
    return flying


def _layout_after(done: Binding, bindings: Sequence[Binding]) -> list[Any] | None:
    """Return a wait and the layout changes of its value, or None if anything else reads it."""
    moved, known = [done], {done.var}
    for binding in bindings:
        if binding is not done and known.intersection(variables(binding.value)):
            value = binding.value
            splits = type(value) is ir.Call and value.op.same_as(_SPLIT)
            parts = type(value) is relax.TupleGetItem or (splits and all_known(value, known))
            if not (parts or laid_out(value, known)):
                return None
            moved.append(binding)
            known.add(binding.var)
    return moved
