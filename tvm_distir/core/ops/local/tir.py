# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Writes the local form of ``call_tir``: the PrimFunc is shrunk to local shapes."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from tvm_distir.core.ops.derive.compute_blocks import NotUnderstood
from tvm_distir.core.ops.derive.cut import cut_prim_func
from tvm_distir.core.rewriting.functions import retyped

from .call import LocalCall


def call_tir(cx: LocalCall, mod: ir.IRModule, kernels: dict[Any, Any]) -> ir.Call:
    """Write the local form of a ``call_tir``.

    Parameters
    ----------
    cx : LocalCall
    mod : IRModule
        Holds the PrimFunc.
    kernels : dict
        PrimFuncs cut so far: (name, counts) to (GlobalVar, PrimFunc). Extended.

    Raises
    ------
    LoweringError
        DIST0508 when the PrimFunc cannot be sharded.
    """
    target = cx.call.args[0]
    shards = [*(operand.shard for operand in cx.ins), *cx.outs]
    counts = {
        (i, d): n for i, shard in enumerate(shards) for d, n in enumerate(shard.counts) if n > 1
    }
    if counts:
        target = _cut(cx, mod, kernels, counts)
    types = [relax.TensorType(list(out.local), out.dtype) for out in cx.outs]
    operands = cx.arguments()[1]
    return relax.op.call_tir(target, operands, types if len(types) > 1 else types[0])


def _cut(cx: LocalCall, mod: ir.IRModule, kernels: dict[Any, Any], counts: dict[Any, int]) -> Any:
    target = cx.call.args[0]
    key = (str(target.name_hint), tuple(sorted(counts.items())))
    if key not in kernels:
        try:
            func = cut_prim_func(mod[target], counts)
        except NotUnderstood as error:
            raise cx.fault(
                "DIST0508",
                f"the PrimFunc cannot be specialized to a shard: {error}",
                "Distribute before LegalizeOps, or replicate its operands.",
            ) from error
        used_names = {str(gv.name_hint) for gv in mod.functions}
        used_names |= {str(gv.name_hint) for gv, _ in kernels.values()}
        number = 1
        while f"{target.name_hint}_shard{number}" in used_names:
            number += 1
        kernels[key] = (retyped(ir.GlobalVar(f"{target.name_hint}_shard{number}"), func.ty), func)
    return kernels[key][0]
