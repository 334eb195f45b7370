# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of softmax, which reduces its maximum and sum over a sharded axis."""

from __future__ import annotations

from tvm import ir, relax

from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.local.masking import neutral_element
from tvm_distir.core.ops.local.statistics import fill_padding, widened
from tvm_distir.core.ops.registration import Family
from tvm_distir.core.ops.statistic import statistic_bytes

FAMILY: Family = Family()


def softmax_on_shards(cx: LocalCall) -> ir.Call:
    """Reduce maximum and sum of exponentials over the devices of a sharded axis."""
    shard = cx.ins[0].shard
    axis = int(cx.call.attrs.axis) % len(shard.global_shape)
    cut = cx.axes_of_dim(0, axis)
    if not cut:
        return cx.same()
    x = widened(cx, cx.operand(0))
    dtype = str(x.ty.dtype)
    x = fill_padding(cx, x, [axis], neutral_element("max", dtype), dtype)
    top = cx.emit(relax.op.max(x, [axis], keepdims=True), "max")
    top = cx.emit(ops.all_reduce(top, cx.mesh, cut, "max"), "max")
    shifted = cx.emit(relax.op.subtract(x, top), "shifted")
    powers = cx.emit(relax.op.exp(shifted), "exp")
    total = cx.emit(relax.op.sum(powers, [axis], keepdims=True), "sum")
    total = cx.emit(ops.all_reduce(total, cx.mesh, cut, "sum"), "sum")
    if str(cx.call.op.name) == "relax.nn.softmax":
        result = relax.op.divide(powers, total)
    else:
        result = relax.op.subtract(shifted, cx.emit(relax.op.log(total), "log"))
    if dtype != shard.dtype:
        result = relax.op.astype(cx.emit(result, "wide"), shard.dtype)
    return result


@FAMILY.rule("relax.nn.softmax", "relax.nn.log_softmax", local=softmax_on_shards)
def softmax(call: CallShape) -> Draft:
    """Shard kept dims; the axis reduces two statistics (maximum and sum) inside, in float32."""
    draft = Draft(call)
    shape = call.ins[0]
    axis = int(call.attrs.axis) % len(shape)
    rows = statistic_bytes(shape, (axis,))
    for d in range(len(shape)):
        if d == axis:
            # maximum, difference, exponential, sum, quotient (of the logarithm a difference)
            draft.tie({0: d}, {0: d}, "stat", comm_bytes=rows, kernels=5, passes=8)
        else:
            draft.tie({0: d}, {0: d})
    return draft.per_element(5)
