# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Replace shapes that a module computes at run time by the shapes that types state.

Before::

    def main(x: R.Tensor((8, 4))):
        lv: R.Shape([8, 4]) = R.shape_of(x)
        lv1: R.Tensor((2,), "int64") = R.shape_to_tensor(lv)

After::

    def main(x: R.Tensor((8, 4))):
        lv: R.Shape([8, 4]) = R.shape([8, 4])
        lv1: R.Tensor((2,), "int64") = R.const([8, 4], "int64")

A device that holds a part of ``x`` would otherwise see the shape of its part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.types import relax_functions, static_shape
from tvm_distir.support import GenericConst

from .calls import called_name
from .scopes import all_bindings

_OPS = ("relax.shape_of", "relax.shape_to_tensor", "relax.tensor_to_shape")
_HANDLES = frozenset(handle(ir.Op.get(name)) for name in _OPS)


def fold_shapes(mod: ir.IRModule) -> ir.IRModule:
    """Return the module with shapes as constants where types state them; it is not changed.

    The rows of constant tensors that become shapes (``R.tensor_to_shape``) are read too, and the
    types of what is computed from such shapes are inferred again. A ``match_cast`` that only names
    sizes which its operand states is removed.
    """
    changed = {gv: fn for gv, fn in relax_functions(mod) if _computes_shapes(fn)}
    if not changed:
        return mod
    result = ir.IRModule(dict(mod.functions), attrs=mod.attrs, global_infos=mod.global_infos)
    for gv, fn in changed.items():
        result[gv] = _ShapeFolder(result).visit_expr(fn)
    casts = {gv: result[gv] for gv in changed if any(map(_is_cast, all_bindings(result[gv].body)))}
    result.update(relax.transform.CanonicalizeBindings()(ir.IRModule(casts)))
    return result


def _computes_shapes(fn: relax.Function) -> bool:
    return any(
        _is_cast(b) or (type(b.value) is ir.Call and handle(b.value.op) in _HANDLES)
        for b in all_bindings(fn.body)
    )


def _is_cast(binding: relax.Binding) -> bool:
    return type(binding) is relax.MatchCast


@mutator
class _ShapeFolder(PyExprMutator):  # type: ignore[misc,unused-ignore]
    """Replaces calls of the ops on shapes."""

    def visit_call_(self, call: ir.Call) -> ir.Expr:
        call = super().visit_call_(call)
        name = called_name(call)
        if name == "relax.shape_of":
            shape = static_shape(call.args[0].ty)
            return call if shape is None else relax.ShapeExpr(list(shape))
        if name == "relax.shape_to_tensor":
            sizes = _sizes(self._bound(call.args[0]))
            return call if sizes is None else relax.const(np.asarray(sizes), "int64")
        if name == "relax.tensor_to_shape":
            value = self._bound(call.args[0])
            if isinstance(value, GenericConst):
                return relax.ShapeExpr([int(n) for n in value.value.numpy()])
        return call

    def _bound(self, expr: ir.Expr) -> Any:
        """Return the value that a variable is bound to, through other variables."""
        while isinstance(expr, relax.Var):
            value = self.lookup_binding(expr)
            if value is None:
                return expr
            expr = value
        return expr


def _sizes(shape: Any) -> list[int] | None:
    """Return the dims of a shape that are all static, else None."""
    if not isinstance(shape, relax.ShapeExpr):
        return None
    sizes = list(shape.values)
    return [int(n) for n in sizes] if all(isinstance(n, tirx.IntImm) for n in sizes) else None
