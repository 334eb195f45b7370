# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Let the backward pass of a step read parameters again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax import Binding, BlockBuilder, Var

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
        self, builder: BlockBuilder, params: Sequence[Var], bindings: Sequence[Binding]
    ) -> None:
        self.builder, self.params = builder, set(params)
        self.marks: dict[Var, Var] = {}
        self._again: dict[Var, Var] = {}
        self._views: dict[Var, ir.Call] = {}
        """The values that are reordered or cast parameters, by variable."""
        for binding in bindings:
            source = view_source(binding.value)
            if source is not None and (source in self.params or source in self._views):
                self._views[binding.var] = binding.value

    def _variable(self, var: Var) -> Any:
        if var not in self.params and var not in self._views:
            return var
        if var not in self._again:
            value: Any = self._views.get(var)
            if value is None:
                value = relax.op.reshape(var, var.ty.shape)
            else:
                args = [self._variable(value.args[0]), *list(value.args)[1:]]
                value = ir.Call(value.op, args, value.attrs, list(value.ty_args))
            self._again[var] = self.builder.emit(value, f"{var.name}{AGAIN_SUFFIX}")
            if var in self.params:
                self.marks[var] = self._again[var]
        return self._again[var]

    def again(self, value: Any) -> Any:
        """Return a call or an argument; parameters and views of them are read again."""
        return substitute(value, {v: self._variable(v) for v in variables(value)})
