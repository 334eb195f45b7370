# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Report tuples that are nested more deeply than Python's stack can follow."""

from __future__ import annotations

from tvm import ir, relax

from tvm_distir.core.ir.types import relax_functions
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.support import LoweringError


def too_deep(mod: ir.IRModule) -> LoweringError:
    """Return the error DIST0513, which names the variable of the most deeply nested type."""
    depth, location = 0, "module"
    for gv, fn in relax_functions(mod):
        for var in (*fn.params, *(binding.var for binding in all_bindings(fn.body))):
            levels = _levels(var.ty)
            if levels > depth:
                depth, location = levels, f"{gv.name_hint}/{var.name}"
    problem = f"tuples are nested in {depth} levels, more than Python's stack holds"
    remedy = "Bind inner tuples to fields of one tuple, or raise sys.setrecursionlimit."
    return LoweringError("DIST0513", problem, location=location, remedy=remedy)


def _levels(ty: ir.Type) -> int:
    count, level = 0, [ty]
    while level := [field for ty in level if type(ty) is relax.TupleType for field in ty.fields]:
        count += 1
    return count
