# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Legalize level-5 ops to calls of ``tvm_distir.ccl.*`` inside ``tvm.compile``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, relax, tirx
from tvm.relax.transform.legalize_ops.common import register_legalize

from tvm_distir.core.collectives import decode_collective, decode_transfer
from tvm_distir.core.ir.operators import (
    COLLECTIVES,
    DONE,
    KV_APPEND_OP,
    PREFIX,
    REDUCE_OPS,
    start_name,
)
from tvm_distir.transforms import GROUPED_KERNELS, WRITTEN_OPS, appended

from .ccl import ARGS
from .ccl import PREFIX as CCL_PREFIX

Legalize = Callable[[relax.BlockBuilder, ir.Call], relax.Expr]


def _int(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)


def _shape(values: Sequence[int]) -> relax.ShapeExpr:
    return relax.ShapeExpr([_int(v) for v in values])


def _arguments(call: ir.Call) -> list[relax.Expr]:
    """Return the arguments of the packed call of a collective, or of its start, but the result."""
    decoded = decode_collective(call)
    arguments: dict[str, Any] = dict(decoded.args)
    groups = _shape([r for group in decoded.groups for r in group])
    first = [*call.args, groups, _int(len(decoded.groups[0]))]
    if decoded.name == "exchange":
        (mesh, _, before), (_, _, after) = arguments["src"], arguments["dst"]
        return [*first, *(_shape(part) for part in (arguments["shape"], mesh, before, after))]
    arguments.setdefault("wrap", 0)
    names = ARGS[decoded.name]
    values = [REDUCE_OPS.index(arguments[k]) if k == "op" else arguments[k] for k in names]
    return [*first, *map(_int, values)]


def _collective(name: str) -> Legalize:
    def legalize(_: relax.BlockBuilder, call: ir.Call) -> ir.Call:
        return relax.op.call_dps_packed(CCL_PREFIX + name, _arguments(call), out_ty=call.ty)

    return legalize


def _transfer_args(call: ir.Call) -> list[relax.Expr]:
    transfer = decode_transfer(call)
    parts = [_shape(part) for side in (transfer.src, transfer.dst) for part in side]
    return [_int(transfer.tag), _shape(transfer.shape), *parts]


def _send(_: relax.BlockBuilder, call: ir.Call) -> ir.Call:
    args = [call.args[0], *_transfer_args(call)]
    return ir.Call(relax.ExternFunc(CCL_PREFIX + "send"), args, ty_args=[call.args[0].ty])


def _recv(_: relax.BlockBuilder, call: ir.Call) -> ir.Call:
    return relax.op.call_dps_packed(CCL_PREFIX + "recv", _transfer_args(call), out_ty=call.ty)


def register_legalization() -> None:
    """Register the legalization of every op of this package; ops of TVM stay untouched."""
    table: dict[str, Legalize] = {name: _collective(name) for name in (*ARGS, "exchange")}
    table.update(send=_send, recv=_recv)
    table.update({start_name(name): table[name] for name in COLLECTIVES})
    table[DONE] = lambda _, call: call.args[0]  # the start has done it
    named = {PREFIX + name: function for name, function in table.items()}
    written = {**WRITTEN_OPS, KV_APPEND_OP: appended}
    for name, function in {**named, **written, **GROUPED_KERNELS}.items():
        if ir.Op.get(name).get_attr("FLegalize") is None:
            register_legalize(name, function)
