# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Legalize level-5 ops to calls of ``tvm_distir.ccl.*`` inside ``tvm.compile``."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, relax
from tvm.relax.transform.legalize_ops.common import register_legalize

from tvm_distir.core.collectives import packed_arguments, packed_transfer_arguments
from tvm_distir.core.ir.operators import (
    COLLECTIVES,
    DONE,
    KV_APPEND_OP,
    PACKED_ARGS,
    PACKED_PREFIX,
    PREFIX,
    start_name,
)
from tvm_distir.transforms import GROUPED_KERNELS, WRITTEN_OPS, appended

Legalize = Callable[[relax.BlockBuilder, ir.Call], relax.Expr]


def _collective(name: str) -> Legalize:
    def legalize(_: relax.BlockBuilder, call: ir.Call) -> ir.Call:
        return relax.op.call_dps_packed(
            PACKED_PREFIX + name, packed_arguments(call), out_ty=call.ty
        )

    return legalize


def _send(_: relax.BlockBuilder, call: ir.Call) -> ir.Call:
    args = [call.args[0], *packed_transfer_arguments(call)]
    return ir.Call(relax.ExternFunc(PACKED_PREFIX + "send"), args, ty_args=[call.args[0].ty])


def _recv(_: relax.BlockBuilder, call: ir.Call) -> ir.Call:
    return relax.op.call_dps_packed(
        PACKED_PREFIX + "recv", packed_transfer_arguments(call), out_ty=call.ty
    )


def register_legalization() -> None:
    """Register the legalization of every op of this package; ops of TVM stay untouched."""
    table: dict[str, Legalize] = {name: _collective(name) for name in (*PACKED_ARGS, "exchange")}
    table.update(send=_send, recv=_recv)
    table.update({start_name(name): table[name] for name in COLLECTIVES})
    table[DONE] = lambda _, call: call.args[0]  # the start has done it
    named = {PREFIX + name: function for name, function in table.items()}
    written = {**WRITTEN_OPS, KV_APPEND_OP: appended}
    for name, function in {**named, **written, **GROUPED_KERNELS}.items():
        if ir.Op.get(name).get_attr("FLegalize") is None:
            register_legalize(name, function)
