# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Open the functions that TVM's passes have partitioned for a library.

Before, as ``partition_for_cublas`` or ``FuseOpsByPattern(annotate_codegen=True)`` writes it::

    def fused_relax_matmul_cublas(x, w):            # Codegen: cublas, public
        def local_func(a, b):                       # Composite: cublas.matmul
            return R.matmul(a, b)
        return local_func(x, w)

After::

    def fused_relax_matmul_cublas(x, w):            # Codegen: cublas, private
        return cls.fused_relax_matmul_cublas_local_func(x, w)
    def fused_relax_matmul_cublas_local_func(a, b): # Composite: cublas.matmul, private
        return R.matmul(a, b)

Both are then private functions as others are, with sharding rules, costs and bodies that run.
:mod:`tvm_distir.core.passes.lower.partitions` restores the form of the library at level 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.attributes.keys import CODEGEN_ATTR, COMPOSITE_ATTR, COMPOSITE_OPS_ATTR
from tvm_distir.core.ir.operators.names import new_name
from tvm_distir.core.ir.types import relax_functions

from .calls import called_name, typed
from .functions import map_functions, with_functions
from .scopes import all_bindings
from .substitute import substitute
from .writer import with_body


def open_partitions(mod: ir.IRModule) -> ir.IRModule:
    """Return the module with the local functions of library functions as private functions.

    The module is not changed, and returned where it has no function with ``Codegen``.
    """
    libraries = [(gv, fn) for gv, fn in relax_functions(mod) if has_attr(fn, CODEGEN_ATTR)]
    bindings = (b for _, fn in libraries for b in all_bindings(fn.body))
    if not any(type(b.value) is relax.Function for b in bindings):
        return mod
    functions = dict(mod.functions)
    names = {str(gv.name_hint) for gv in functions}
    for gv, fn in libraries:
        env: dict[Any, Any] = {}
        blocks = []
        for block in fn.body.blocks:
            rest = []
            for binding in block.bindings:
                value = binding.value
                if type(value) is relax.Function:
                    name = new_name(f"{gv.name_hint}_{binding.var.name}", names)
                    env[binding.var] = typed(ir.GlobalVar(name), value.ty)
                    functions[env[binding.var]] = value
                else:
                    rest.append(type(binding)(binding.var, substitute(value, env)))
            blocks.append(type(block)(rest))
        opened = with_body(fn, fn.params, blocks, substitute(fn.body.body, env), bool(fn.is_pure))
        functions[gv] = opened.without_attr("global_symbol")
    return with_functions(mod, functions)


def with_composite_ops(mod: ir.IRModule) -> ir.IRModule:
    """Return the module whose ``Composite`` functions have the names of their ops.

    These tell at level 5 whether a function still computes what the library's pattern matched.
    """
    composites = [(gv, fn) for gv, fn in relax_functions(mod) if has_attr(fn, COMPOSITE_ATTR)]
    stale = {
        gv: fn.with_attr(COMPOSITE_OPS_ATTR, list(map(called_name, calls_in(fn))))
        for gv, fn in composites
        if not has_attr(fn, COMPOSITE_OPS_ATTR)
    }
    return with_functions(mod, {**mod.functions, **stale}) if stale else mod


def has_attr(fn: ir.BaseFunc | None, key: str) -> bool:
    """Return whether a function of a module has an attribute."""
    return fn is not None and fn.attrs is not None and key in fn.attrs


def unpartitioned(mod: ir.IRModule) -> ir.IRModule:
    """Return the module with functions of libraries as private functions like others."""
    attributes = CODEGEN_ATTR, COMPOSITE_ATTR, "Primitive"
    return map_functions(open_partitions(mod), lambda fn: without(fn, *attributes))


def without(fn: relax.Function, *keys: str) -> relax.Function:
    """Return a function without some attributes, or itself where it has none of them."""
    for key in keys:
        fn = fn.without_attr(key) if has_attr(fn, key) else fn
    return fn


def calls_in(fn: ir.BaseFunc) -> Iterator[ir.Call]:
    """Return the calls that a Relax function binds, in order; none of a kernel."""
    bindings = all_bindings(fn.body) if isinstance(fn, relax.Function) else ()
    return (b.value for b in bindings if type(b.value) is ir.Call)
