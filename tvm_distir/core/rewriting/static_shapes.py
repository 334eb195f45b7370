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

from tvm_distir.core.ir.handles import handle
from tvm_distir.core.ir.types import relax_functions, static_shape
from tvm_distir.support import GenericConst

from .functions import with_functions
from .replacing import Replacements, replaced_calls
from .scopes import all_bindings


def fold_shapes(mod: ir.IRModule) -> ir.IRModule:
    """Return the module with shapes as constants where types state them; it is not changed.

    The rows of constant tensors that become shapes (``R.tensor_to_shape``) are read too, and the
    types of what is computed from such shapes are inferred again. A ``match_cast`` that only names
    sizes which its operand states is removed.
    """
    changed = [gv for gv, fn in relax_functions(mod) if _computes_shapes(fn)]
    if not changed:
        return mod
    folded = replaced_calls(mod, _FOLDED)
    casts = {gv: folded[gv] for gv in changed if any(map(_is_cast, all_bindings(folded[gv].body)))}
    cast_free = relax.transform.CanonicalizeBindings()(ir.IRModule(casts))
    return with_functions(mod, {**folded.functions, **cast_free.functions})


def _computes_shapes(fn: relax.Function) -> bool:
    return any(
        _is_cast(b) or (type(b.value) is ir.Call and handle(b.value.op) in _HANDLES)
        for b in all_bindings(fn.body)
    )


def _is_cast(binding: relax.Binding) -> bool:
    return type(binding) is relax.MatchCast


def _bound(builder: relax.BlockBuilder, expr: ir.Expr) -> Any:
    """Return the value that a variable is bound to, through other variables."""
    while isinstance(expr, relax.Var) and (value := builder.lookup_binding(expr)) is not None:
        expr = value
    return expr


def _shape(_: relax.BlockBuilder, call: ir.Call) -> ir.Expr | None:
    shape = static_shape(call.args[0].ty)
    return None if shape is None else relax.ShapeExpr(list(shape))


def _tensor(builder: relax.BlockBuilder, call: ir.Call) -> ir.Expr | None:
    sizes = _sizes(_bound(builder, call.args[0]))
    return None if sizes is None else relax.const(np.asarray(sizes), "int64")


def _shape_of_rows(builder: relax.BlockBuilder, call: ir.Call) -> ir.Expr | None:
    value = _bound(builder, call.args[0])
    known = isinstance(value, GenericConst)
    return relax.ShapeExpr([int(n) for n in value.value.numpy()]) if known else None


def _sizes(shape: Any) -> list[int] | None:
    """Return the dims of a shape that are all static, else None."""
    if not isinstance(shape, relax.ShapeExpr):
        return None
    sizes = list(shape.values)
    return [int(n) for n in sizes] if all(isinstance(n, tirx.IntImm) for n in sizes) else None


_FOLDED: Replacements = {
    "relax.shape_of": _shape,
    "relax.shape_to_tensor": _tensor,
    "relax.tensor_to_shape": _shape_of_rows,
}
_HANDLES = frozenset(handle(ir.Op.get(name)) for name in _FOLDED)
