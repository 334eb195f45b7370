# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Writes the local form of a call: its computation on the shards of a device."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from tvm_distir.core.ops.derive.compute_blocks import NotUnderstood
from tvm_distir.core.ops.derive.cut import cut_prim_func
from tvm_distir.core.ops.padding import NO_PADDING
from tvm_distir.core.ops.registration import SAME_OP, Registration
from tvm_distir.core.rewriting.calls import TIR_CALLS
from tvm_distir.core.rewriting.functions import retyped

from .call import LocalCall
from .masking import padding_stays_zero, protect


def local_form(
    cx: LocalCall, registration: Registration | None, mod: ir.IRModule, prim_funcs: dict[Any, Any]
) -> ir.Expr:
    """Write the computation of a call on the shards of a device.

    Parameters
    ----------
    cx : LocalCall
        Padding that the call would read is masked in it first.
    registration : Registration or None
        The registration of the op; None where its rule is derived: its TIR has shown that the op
        computes on shards what it computes on full tensors.
    mod : IRModule
        Holds the PrimFunc of a ``call_tir``.
    prim_funcs : dict
        PrimFuncs cut so far: (name, counts) to (GlobalVar, PrimFunc). Extended.

    Raises
    ------
    LoweringError
        DIST0507 when the call reads padding that no value makes harmless, DIST0508 when a
        PrimFunc cannot be sharded.
    """
    protect(cx, NO_PADDING if registration is None else registration.padding)
    if str(cx.call.op.name) in TIR_CALLS:
        return _call_tir(cx, mod, prim_funcs)
    if (
        registration is None
        or registration.local is None
        or registration.local is SAME_OP
        or not cx.sharding.sharded
    ):
        return cx.same()
    return registration.local(cx)


def stays_zero(cx: LocalCall, registration: Registration | None) -> bool:
    """Return whether the padding of the results surely holds zeros."""
    return padding_stays_zero(cx, NO_PADDING if registration is None else registration.padding)


def _call_tir(cx: LocalCall, mod: ir.IRModule, kernels: dict[Any, Any]) -> ir.Call:
    """Write the local form of a ``call_tir``: the PrimFunc is shrunk to local shapes."""
    target = cx.call.args[0]
    shards = [*(operand.shard for operand in cx.ins), *cx.outs]
    counts = {
        (i, d): n for i, shard in enumerate(shards) for d, n in enumerate(shard.counts) if n > 1
    }
    if counts:
        target = _cut(cx, mod, kernels, counts)
    types = [relax.TensorType(list(out.local), out.dtype) for out in cx.outs]
    return relax.op.call_tir(target, cx.arguments()[1], types if len(types) > 1 else types[0])


def _cut(
    cx: LocalCall, mod: ir.IRModule, kernels: dict[Any, Any], counts: dict[Any, int]
) -> ir.GlobalVar:
    target = cx.call.args[0]
    key = (str(target.name_hint), tuple(sorted(counts.items())))
    if key not in kernels:
        try:
            func = cut_prim_func(mod[target], counts)
        except NotUnderstood as error:
            problem = f"the PrimFunc cannot be specialized to a shard: {error}"
            remedy = "Distribute before LegalizeOps, or replicate its operands."
            raise cx.fault("DIST0508", problem, remedy) from error
        used_names = {str(gv.name_hint) for gv in mod.functions}
        used_names |= {str(gv.name_hint) for gv, _ in kernels.values()}
        number = 1
        while f"{target.name_hint}_shard{number}" in used_names:
            number += 1
        kernels[key] = (retyped(ir.GlobalVar(f"{target.name_hint}_shard{number}"), func.ty), func)
    return kernels[key][0]
