# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``call_tir`` on shards: the PrimFunc is cut to local shapes."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from .calls import LocalCall


def call_tir(cx: LocalCall, mod: ir.IRModule, made: dict[Any, Any]) -> ir.Call:
    """Write the local form of a ``call_tir``.

    Parameters
    ----------
    cx : LocalCall
    mod : IRModule
        Holds the PrimFunc.
    made : dict
        PrimFuncs cut so far: (name, local shapes) to (GlobalVar, PrimFunc). Extended.
    """
    target = cx.call.args[0]
    if any(own.shard.counts != (1,) * len(own.shard.counts) for own in cx.ins) or any(
        out.counts != (1,) * len(out.counts) for out in cx.outs
    ):
        raise cx.fault(
            "DIST0508",
            "a PrimFunc with static shapes cannot be cut yet",
            "Distribute before LegalizeOps, or replicate its operands.",
        )
    types = [relax.TensorType(list(out.local), out.dtype) for out in cx.outs]
    args = cx.arguments()
    return relax.op.call_tir(target, args[1], types if len(types) > 1 else types[0])
