# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Replace the calls of some ops in all functions of a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_distir.core.ir.types import relax_functions

from .functions import with_functions

Replacements = Mapping[str, Callable[[relax.BlockBuilder, ir.Call], Any]]
"""Functions that return what replaces the call of an op, or None, by the op's name; they may add
functions to the module of the builder."""


@mutator
class _CallReplacer(PyExprMutator):  # type: ignore[misc,unused-ignore]
    """Replaces calls of the ops that a table names, unless its function returns None."""

    def __init__(self, mod: ir.IRModule, table: Replacements) -> None:
        super().__init__(mod)
        self._table = table

    def visit_call_(self, call: ir.Call) -> ir.Expr:
        call = super().visit_call_(call)
        replace = self._table.get(str(call.op.name)) if isinstance(call.op, ir.Op) else None
        if replace is None:
            return call
        typed = self.builder_.normalize(call)
        replaced = replace(self.builder_, typed)
        return typed if replaced is None else replaced


def replaced_calls(mod: ir.IRModule, table: Replacements) -> ir.IRModule:
    """Return the module with the calls of its Relax functions replaced; it is not changed."""
    result = mod
    for gv, fn in relax_functions(mod):
        replacer = _CallReplacer(result, table)
        replacer.builder_.update_func(gv, replacer.visit_expr(fn))
        result = replacer.builder_.get()
    return with_functions(mod, dict(result.functions))
