# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Wait for the reductions of a function's results in its callers (level 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import is_private
from tvm_distir.core.ir.attributes import IN_FLIGHT_ATTR, PHASE_ATTR
from tvm_distir.core.ir.operators import REDUCTIONS, collective_done, is_done, started_op
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting import (
    callees_first,
    make_binding,
    make_call,
    make_var,
    retyped,
    substitute,
    typed,
    variables,
    with_body,
)
from tvm_distir.core.rewriting.native import pruned

from .call_sites import CallSites, all_known, axes_of, callee_of, laid_out, type_of
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
    deferred: dict[Any, DeferredResults] = {}
    for gv, fn in callees_first(mod, calls.callees):
        if any(callee in deferred for callee in map(callee_of, _values(fn))):
            fn = functions[gv] = _waiting(fn, deferred)
        phase = fn.attrs is not None and PHASE_ATTR in fn.attrs
        if phase or not is_private(fn) or gv in calls.barred or not _read_by_fields(calls, gv):
            continue
        deferrable = _deferrable(gv, fn, {f.gv: f for f in deferred.values()})
        if deferrable is not None:
            deferred[gv] = deferrable
    if not deferred:
        return mod
    for gv, deferrable in deferred.items():
        del functions[gv]
        functions[deferrable.gv] = deferrable.fn
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _values(fn: relax.Function) -> list[Any]:
    return [b.value for block in fn.body.blocks for b in block.bindings[:]]


def _read_by_fields(calls: CallSites, gv: Any) -> bool:
    """Return whether callers read the fields of a function's result, and nothing else of it."""
    callers = {caller for caller, _ in calls.of[gv]}
    for caller in callers:
        fn = calls.functions[caller]
        bound = {
            b.var
            for block in fn.body.blocks
            for b in block.bindings[:]
            if callee_of(b.value) is not None and callee_of(b.value).same_as(gv)
        }
        if bound.intersection(variables(fn.body.body)):
            return False
        for value in _values(fn):
            if type(value) is relax.TupleGetItem and value.tuple_value in bound:
                continue
            if bound.intersection(variables(value)):
                return False
    return bool(callers)


@dataclass(frozen=True)
class DeferredResults:
    """Function whose callers wait for some of its results.

    Attributes
    ----------
    gv : GlobalVar
        The function under its new type.
    fn : Function
        The function; what is in flight follows its other results.
    kept : dict of int to int
        The new place of each result that it still returns.
    started : tuple of Var
        What is in flight, in the order of the results.
    layout : tuple of Binding
        Waits for it, and layout changes of what is reduced.
    fields : dict of int to Var
        The variable of these bindings that each other result is.
    """

    gv: Any
    fn: relax.Function
    kept: Mapping[int, int]
    started: tuple[Any, ...]
    layout: tuple[Any, ...]
    fields: Mapping[int, Any]


def _deferrable(
    gv: Any, fn: relax.Function, known: Mapping[Any, DeferredResults]
) -> DeferredResults | None:
    """Return a function with its last reductions left in flight, or None if there are none."""
    result = fn.body.body
    noted = fn.attrs[IN_FLIGHT_ATTR] if fn.attrs and IN_FLIGHT_ATTR in fn.attrs else {}
    if type(result) is not relax.Tuple or "results" in noted:
        return None
    bindings = [b for block in fn.body.blocks for b in block.bindings]
    if len(axes_of(b.value for b in bindings)) > 1:
        return None
    flying = _flying(bindings, known)
    groups: list[tuple[Any, list[Any]]] = []
    for binding in bindings:
        if is_done(binding.value) and binding.value.args[0] in flying:
            moved = _layout_after(binding, bindings)
            if moved is not None:
                groups.append((binding.value.args[0], moved))
    moved_vars = {b.var for _, moved in groups for b in moved}
    fields = {n: field for n, field in enumerate(result.fields) if field in moved_vars}
    if not fields:
        return None
    kept_places = [n for n in range(len(result.fields)) if n not in fields]
    outputs = {start: _output(start) for start, _ in groups}
    results = [*(result.fields[n] for n in kept_places), *outputs.values()]
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
    whole = typed(relax.Tuple(results), relax.TupleType([r.ty for r in results]))
    blocks, _ = pruned(rest, whole)
    new = with_body(fn, fn.params, blocks, whole, bool(fn.is_pure), fn.attrs)
    new = in_flight(new, {"results": range(len(kept_places), len(results))})
    return DeferredResults(
        retyped(gv, type_of(new)),
        new,
        {old: place for place, old in enumerate(kept_places)},
        tuple(outputs),
        tuple(b for b in bindings if b.var in moved_vars),
        fields,
    )


def _output(var: Any) -> Any:
    """Return a variable that a function may return in place of one of its dataflow block."""
    return make_var(str(var.name), var.ty) if type(var) is relax.DataflowVar else var


def _flying(bindings: Sequence[Any], known: Mapping[Any, DeferredResults]) -> set[Any]:
    """Return the started reductions, and those that callees have left in flight."""
    flying: set[Any] = set()
    calls: dict[Any, int] = {}
    for binding in bindings:
        value = binding.value
        results = known.get(callee_of(value))
        if started_op(value) in REDUCTIONS:
            flying.add(binding.var)
        elif results is not None:
            calls[binding.var] = len(results.kept)
        elif type(value) is relax.TupleGetItem and value.tuple_value in calls:
            if int(value.index) >= calls[value.tuple_value]:
                flying.add(binding.var)
    return flying


def _layout_after(done: Any, bindings: Sequence[Any]) -> list[Any] | None:
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


@dataclass(eq=False)
class _Pending:
    """Reductions of a call that its caller has not waited for yet.

    Attributes
    ----------
    found : DeferredResults
    call : Var
        The result of the call.
    items : dict of int to list of Var
        The variables of the caller that are fields of the old result.
    unseen : set of Var
        Those of them whose bindings are still to come.
    """

    found: DeferredResults
    call: Any
    items: Mapping[int, list[Any]]
    unseen: set[Any]


def _waiting(fn: relax.Function, deferred: Mapping[Any, DeferredResults]) -> relax.Function:
    """Return a caller that waits for what its callees leave in flight."""
    blocks = _Caller(fn, deferred).run()
    return with_body(fn, fn.params, blocks, fn.body.body, bool(fn.is_pure), fn.attrs)


class _Caller:
    """Writer of the blocks of a caller.

    Parameters
    ----------
    fn : Function
        The caller.
    deferred : mapping of GlobalVar to DeferredResults
    """

    def __init__(self, fn: relax.Function, deferred: Mapping[Any, DeferredResults]) -> None:
        self.blocks, self.deferred = fn.body.blocks, deferred
        self.hidden = False
        self.written: list[Any] = []
        self.pending: list[_Pending] = []
        self.calls: dict[Any, _Pending] = {}
        self.items: dict[Any, dict[int, list[Any]]] = {}
        for block in fn.body.blocks:
            for binding in block.bindings:
                value = binding.value
                if type(value) is relax.TupleGetItem:
                    fields = self.items.setdefault(value.tuple_value, {})
                    fields.setdefault(int(value.index), []).append(binding.var)

    def run(self) -> list[Any]:
        """Return the blocks."""
        blocks = []
        for number, block in enumerate(self.blocks, 1):
            self.hidden, self.written = isinstance(block, relax.DataflowBlock), []
            for binding in block.bindings:
                self._binding(binding)
            self._wait_for([p for p in self.pending if not p.unseen or number == len(self.blocks)])
            blocks.append(type(block)(self.written))
        return blocks

    def _binding(self, binding: Any) -> None:
        var, value = binding.var, binding.value
        results = self.deferred.get(callee_of(value))
        if results is not None:
            self._wait_before(value)
            call = make_call(results.gv, value.args, value.attrs, [], results.fn.ret_ty)
            new = make_var(str(var.name), results.fn.ret_ty, type(var) is relax.DataflowVar)
            self.written.append(make_binding(new, call))
            self._wait_for([pending for pending in self.pending if not pending.unseen])
            items = self.items.get(var, {})
            unseen = {item for n in results.fields for item in items.get(n, ())}
            self.calls[var] = _Pending(results, new, items, unseen)
            self.pending.append(self.calls[var])
        elif type(value) is relax.TupleGetItem and value.tuple_value in self.calls:
            pending, field = self.calls[value.tuple_value], int(value.index)
            pending.unseen.discard(var)
            if field in pending.found.kept:
                item = relax.TupleGetItem(pending.call, pending.found.kept[field])
                self.written.append(make_binding(var, typed(item, var.ty)))
        else:
            self._wait_before(value)
            self.written.append(binding)

    def _wait_before(self, value: Any) -> None:
        """Wait for reductions whose results a value reads."""
        read = set(variables(value))
        self._wait_for(
            [
                pending
                for pending in self.pending
                if any(not read.isdisjoint(pending.items.get(n, ())) for n in pending.found.fields)
            ]
        )

    def _wait_for(self, some: Sequence[_Pending]) -> None:
        for pending in some:
            self.pending.remove(pending)
            self._wait(pending)

    def _wait(self, pending: _Pending) -> None:
        """Write the waits for the reductions of a call, and the layout of their results."""
        results, env = pending.found, dict[Any, Any]()
        for place, started in enumerate(results.started, len(results.kept)):
            env[started] = make_var(str(started.name), started.ty, self.hidden)
            item = relax.TupleGetItem(pending.call, place)
            self.written.append(make_binding(env[started], typed(item, started.ty)))
        named: dict[Any, list[Any]] = {}
        for place, var in results.fields.items():
            named.setdefault(var, []).extend(pending.items.get(place, ()))
        for binding in results.layout:
            names = named.get(binding.var, [])
            fresh = [] if names else [make_var(str(binding.var.name), binding.var.ty, self.hidden)]
            env[binding.var], *others = names or fresh
            value = substitute(binding.value, env)
            if is_done(binding.value):
                value = collective_done(env[binding.value.args[0]])
            self.written.append(make_binding(env[binding.var], typed(value, binding.var.ty)))
            self.written += [make_binding(name, env[binding.var]) for name in others]
