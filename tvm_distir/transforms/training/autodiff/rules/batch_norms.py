# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Prepare batch norms for training, with batch statistics and updated running statistics."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import is_private, relax_functions
from tvm_distir.core.rewriting import all_bindings, callers_closure
from tvm_distir.transforms.inline.passes import InlinePrivateFunctions

_BATCH_NORM = "relax.nn.batch_norm"


def is_batch_norm(value: Any) -> bool:
    """Return whether a value is a call of a batch norm."""
    return (
        isinstance(value, ir.Call)
        and isinstance(value.op, ir.Op)
        and str(value.op.name) == _BATCH_NORM
    )


def running_statistics(fn: relax.Function) -> set[Any]:
    """Return the parameters that are the running mean or variance of a batch norm."""
    params = set(fn.params[:])
    return {
        arg
        for block in fn.body.blocks
        for binding in block.bindings
        if is_batch_norm(binding.value)
        for arg in binding.value.args[3:5]
        if arg in params
    }


def without_statistics(mod: ir.IRModule) -> ir.IRModule:
    """Inline functions with batch norms, so that running statistics are parameters of ``main``."""
    holders = {
        str(gv.name_hint)
        for gv, fn in mod.functions.items()
        if isinstance(fn, relax.Function)
        and any(is_batch_norm(binding.value) for binding in all_bindings(fn.body))
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
