# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the callers of functions that leave reductions in flight, and wait for these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.relax import Binding, BindingBlock, Expr, Var

from tvm_distir.core.ir.operators import collective_done, is_done
from tvm_distir.core.rewriting import (
    callee_of,
    make_binding,
    make_call,
    make_var,
    substitute,
    typed,
    variables,
    with_body,
)


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

    gv: ir.GlobalVar
    fn: relax.Function
    kept: Mapping[int, int]
    started: tuple[Var, ...]
    layout: tuple[Binding, ...]
    fields: Mapping[int, Var]


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
    call: Var
    items: Mapping[int, list[Var]]
    unseen: set[Var]


def with_waits(
    fn: relax.Function, deferred: Mapping[ir.GlobalVar, DeferredResults]
) -> relax.Function:
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

    def __init__(
        self, fn: relax.Function, deferred: Mapping[ir.GlobalVar, DeferredResults]
    ) -> None:
        self.blocks, self.deferred = fn.body.blocks, deferred
        self.hidden = False
        self.written: list[Binding] = []
        self.pending: list[_Pending] = []
        self.calls: dict[Var, _Pending] = {}
        self.items: dict[Var, dict[int, list[Var]]] = {}
        for block in fn.body.blocks:
            for binding in block.bindings:
                value = binding.value
                if type(value) is relax.TupleGetItem:
                    fields = self.items.setdefault(value.tuple_value, {})
                    fields.setdefault(int(value.index), []).append(binding.var)

    def run(self) -> list[BindingBlock]:
        """Return the blocks."""
        blocks = []
        for number, block in enumerate(self.blocks, 1):
            self.hidden, self.written = isinstance(block, relax.DataflowBlock), []
            for binding in block.bindings:
                self._binding(binding)
            self._wait_for([p for p in self.pending if not p.unseen or number == len(self.blocks)])
            blocks.append(type(block)(self.written))
        return blocks

    def _binding(self, binding: Binding) -> None:
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

    def _wait_before(self, value: Expr) -> None:
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
        for position, started in enumerate(results.started, len(results.kept)):
            env[started] = make_var(str(started.name), started.ty, self.hidden)
            item = relax.TupleGetItem(pending.call, position)
            self.written.append(make_binding(env[started], typed(item, started.ty)))
        named: dict[Var, list[Var]] = {}
        for position, var in results.fields.items():
            named.setdefault(var, []).extend(pending.items.get(position, ()))
        for binding in results.layout:
            names = named.get(binding.var, [])
            fresh = [] if names else [make_var(str(binding.var.name), binding.var.ty, self.hidden)]
            env[binding.var], *others = names or fresh
            value = substitute(binding.value, env)
            if is_done(binding.value):
                value = collective_done(env[binding.value.args[0]])
            self.written.append(make_binding(env[binding.var], typed(value, binding.var.ty)))
            self.written += [make_binding(name, env[binding.var]) for name in others]
