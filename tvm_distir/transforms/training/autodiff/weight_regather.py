# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Let the backward pass of a step read parameters again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from tvm import ir, relax

from tvm_distir.core.rewriting import substitute, variables

from .saved_values import view_source

AGAIN_SUFFIX = "_again"
"""Ends the names of the values that are parameters, or views of them, read anew."""


class WeightRegather:
    """Rewriter of arguments of the backward pass that are parameters or views of them.

    Parameters
    ----------
    builder : BlockBuilder
    params : sequence of Var
    bindings : sequence of Binding
        The bindings of the forward pass.

    Attributes
    ----------
    marks : dict of Var to Var
        The variable under which the backward pass reads each parameter again.
    """

    def __init__(
        self, builder: relax.BlockBuilder, params: Sequence[Any], bindings: Sequence[Any]
    ) -> None:
        self.builder, self.params = builder, set(params)
        self.marks: dict[Any, Any] = {}
        self._again: dict[Any, Any] = {}
        self._views = self._views_of(bindings)

    def _views_of(self, bindings: Sequence[Any]) -> dict[Any, ir.Call]:
        """Return the values that are reordered or cast parameters, by variable."""
        views: dict[Any, ir.Call] = {}
        for binding in bindings:
            source = view_source(binding.value)
            if source is not None and (source in self.params or source in views):
                views[binding.var] = binding.value
        return views

    def _variable(self, var: Any) -> Any:
        if var not in self.params and var not in self._views:
            return var
        if var not in self._again:
            if var in self.params:
                value: Any = relax.op.reshape(var, var.ty.shape)
            else:
                view = self._views[var]
                args = [self._variable(view.args[0]), *list(view.args)[1:]]
                value = ir.Call(view.op, args, view.attrs, list(view.ty_args))
            self._again[var] = self.builder.emit(value, f"{var.name}{AGAIN_SUFFIX}")
            if var in self.params:
                self.marks[var] = self._again[var]
        return self._again[var]

    def argument(self, arg: Any) -> Any:
        """Return an argument; parameters and views of them are read again."""
        return substitute(arg, {v: self._variable(v) for v in variables(arg)})

    def __call__(self, call: ir.Call) -> ir.Call:
        """Return the call with its parameters, and views of them, computed again."""
        if not any(v in self.params or v in self._views for v in variables(call)):
            return call
        env = {v: self._variable(v) for v in variables(call)}
        return cast(ir.Call, substitute(call, env))
