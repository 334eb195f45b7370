# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Prepare batch norms for training, with batch statistics and updated running statistics."""

from __future__ import annotations

from tvm import ir, relax
from tvm.relax import Expr, Var

from tvm_distir.core.ir import is_private, relax_functions
from tvm_distir.core.rewriting import all_bindings, callers_closure, op_name
from tvm_distir.transforms.inline.passes import InlinePrivateFunctions


def is_batch_norm(value: Expr) -> bool:
    """Return whether a value is a call of a batch norm."""
    return op_name(value) == "nn.batch_norm"


def running_statistics(fn: relax.Function) -> set[Var]:
    """Return the parameters that are the running mean or variance of a batch norm."""
    params = set(fn.params[:])
    norms = [b.value for b in all_bindings(fn.body) if is_batch_norm(b.value)]
    return params.intersection(arg for norm in norms for arg in norm.args[3:5])


def without_statistics(mod: ir.IRModule) -> ir.IRModule:
    """Inline functions with batch norms, so that running statistics are parameters of ``main``."""
    holders = {
        str(gv.name_hint)
        for gv, fn in relax_functions(mod)
        if any(is_batch_norm(binding.value) for binding in all_bindings(fn.body))
    }
    private = {str(gv.name_hint) for gv, fn in relax_functions(mod) if is_private(fn)}
    names = sorted(callers_closure(mod, holders) & private)
    return InlinePrivateFunctions(names)(mod) if names else mod


def in_training(call: ir.Call) -> ir.Call:
    """Return the batch norm that uses the statistics of the batch."""
    a = call.attrs
    return relax.op.nn.batch_norm(
        *call.args,
        axis=int(a.axis),
        epsilon=float(a.epsilon),
        center=bool(a.center),
        scale=bool(a.scale),
        momentum=float(a.momentum),
        training=True,
    )
