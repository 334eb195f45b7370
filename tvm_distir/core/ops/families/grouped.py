# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of products of rows with the matrices of their groups."""

from __future__ import annotations

from tvm import ir, relax

from tvm_distir.core.ir.operators.grouped_ops import (
    EXPERT_MATMUL_OP,
    GROUPED_MATMUL_OP,
    GROUPED_OUTER_OP,
)
from tvm_distir.core.ops.active_experts import active_experts
from tvm_distir.core.ops.dims import elements, nominal, size_bytes
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.local.own_positions import as_int64
from tvm_distir.core.ops.padding import ZERO_TERMS
from tvm_distir.core.ops.registration import SAME_OP, Family

FAMILY: Family = Family()


def _shifted_ids(cx: LocalCall, start: ir.Expr) -> ir.Expr:
    """Return the ids relative to the first group of the device."""
    return cx.emit(relax.op.subtract(as_int64(cx, cx.operand(2)), start), "ids")


def grouped_matmul_on_shards(cx: LocalCall) -> ir.Call:
    """Multiply by the matrices that the device has; rows of others are zero."""
    if cx.axes_of_dim(1, 0):
        cx.replace(2, _shifted_ids(cx, cx.start(1, 0)))
    return cx.same()


def grouped_outer_on_shards(cx: LocalCall) -> ir.Call:
    """Sum the products of the groups that the device has."""
    result = cx.outs[0]
    axes = [a for a, x in enumerate(result.labels) if x == 0 and int(cx.mesh.shape[a]) > 1]
    operands = [cx.operand(i) for i in range(3)]
    local_groups = int(result.local[0])
    if axes:
        start = cx.emit(
            relax.op.multiply(cx.position(axes), relax.const(local_groups, "int64")), "start"
        )
        operands[2] = _shifted_ids(cx, start)
    attrs = ir.DictAttrs({"groups": int(cx.call.attrs["groups"]), "held": local_groups})
    return ir.Call(cx.call.op, operands, attrs)


@FAMILY.rule(GROUPED_MATMUL_OP, local=grouped_matmul_on_shards, padding=ZERO_TERMS)
def grouped_matmul(call: CallShape) -> Draft:
    """Shard rows and columns; the contracted dim and the groups give partial sums.

    Shapes ``(M, K) x (E, K, N) -> (M, N)`` by ids ``(M,)``. FLOPs: 2 M K N, of which a device that
    has ``E`` of all groups computes that share.
    """
    draft = Draft(call)
    x, w = call.ins[:2]
    draft.tie({0: 0, 2: 0}, {0: 0})
    draft.tie({0: 1, 1: 1}, {}, "sum")
    draft.tie({1: 2}, {0: 1})
    draft.tie({1: 0}, {}, "sum")
    draft.linear((0,), (1,))
    flops = 2 * elements(x) * nominal(w[2]) * nominal(w[0]) // int(call.attrs["groups"])
    return draft.work(flops, "matmul")


@FAMILY.rule(GROUPED_OUTER_OP, local=grouped_outer_on_shards, padding=ZERO_TERMS)
def grouped_outer(call: CallShape) -> Draft:
    """Shard groups and both dims of their matrices; rows give partial sums.

    Shapes ``(M, K) x (M, N) -> (E, K, N)`` by ids ``(M,)``. FLOPs: 2 M K N, of which a device that
    has ``E`` of all groups computes that share.
    """
    draft = Draft(call)
    x, y = call.ins[:2]
    draft.tie({0: 0, 1: 0, 2: 0}, {}, "sum")
    draft.tie({0: 1}, {0: 1})
    draft.tie({1: 1}, {0: 2})
    draft.tie({}, {0: 0}, uneven=False)
    draft.linear((0,), (1,))
    groups = nominal(call.outs[0][0])
    draft.work(2 * elements(x) * nominal(y[1]) * groups // int(call.attrs["groups"]), "matmul")
    return draft


@FAMILY.rule(EXPERT_MATMUL_OP, local=SAME_OP, padding=ZERO_TERMS)
def expert_matmul(call: CallShape) -> Draft:
    """Shard experts, slots and columns; the contracted dim gives partial sums.

    Shapes ``(E, M, K) x (E, K, N) -> (E, M, N)``. FLOPs: 2 M K N for each expert that works, see
    :func:`.active_experts`; the matrices of others are not read.
    """
    draft = Draft(call)
    x, w = call.ins
    draft.tie({0: 2, 1: 1}, {}, "sum")
    draft.tie({0: 0, 1: 0}, {0: 0})
    draft.tie({0: 1}, {0: 1})
    draft.tie({1: 2}, {0: 2})
    draft.linear((0,), (1,))
    groups, rows, inner, columns = (nominal(n) for n in (*x, w[2]))
    experts, top_k, tokens, slots = (
        int(call.attrs[key]) for key in ("experts", "top_k", "tokens", "slots")
    )
    active = int(active_experts(groups, experts, top_k, -(-rows * tokens // slots)))
    matrix = size_bytes((inner, columns), call.in_dtypes[1])
    return draft.work(2 * active * rows * inner * columns, "matmul", {1: active * matrix})
