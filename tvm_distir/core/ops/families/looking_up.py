# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of table look-ups and their gradient; tables may be sharded by rows."""

from __future__ import annotations

from tvm import ir, relax

from tvm_distir.core.ops.dims import elements
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.local.own_positions import as_int64, own_positions
from tvm_distir.core.ops.padding import Padding, Reduced
from tvm_distir.core.ops.registration import Family

FAMILY: Family = Family()


INDEXED = "it is indexed"


def reads_result(draft: Draft) -> Draft:
    """Set the work of a gather, which reads from its table as many bytes as it writes."""
    rule = draft.rule()
    return draft.work(0, "gather", in_bytes={0: min(rule.in_bytes[0], rule.out_bytes[0])})


def take_on_shards(cx: LocalCall) -> ir.Call:
    """Look up the rows that each device has; zeros stand for rows of other devices."""
    axes = tuple(
        a
        for a, f in enumerate(cx.sharding.factors)
        if f is not None and f.reduces and int(cx.mesh.shape[a]) > 1
    )
    if not axes:
        return cx.same()
    a, table, index = cx.call.attrs, cx.ins[0].shard, cx.ins[1].shard
    axis = int(a.axis) % len(table.global_shape) if a.axis is not None else 0
    full = table.global_shape[axis]
    positions, mode = cx.operand(1), str(a.mode)
    if mode in ("clip", "wrap"):
        positions = as_int64(cx, positions)
    if mode == "clip":
        positions = cx.emit(relax.op.clip(positions, 0, full - 1), "places")
    elif mode == "wrap":
        positions = cx.emit(relax.op.floor_mod(positions, relax.const(full, "int64")), "places")
    here, near = own_positions(cx, positions, 0, axis)
    looked_up = cx.emit(relax.op.take(cx.operand(0), near, axis=axis, mode="fast"), "found")
    shape = list(index.local) + [1] * (len(table.global_shape) - 1 - axis)
    wide = cx.emit(relax.op.reshape(here, shape), "here")
    return relax.op.where(wide, looked_up, cx.scalar(0, table.dtype))


@FAMILY.rule("relax.take", local=take_on_shards, padding=Padding(Reduced.UNREAD, indices=(1,)))
def take(call: CallShape) -> Draft:
    """Shard table dims and index dims; the indexed dim gives partial sums.

    A device that holds some rows looks up what it has and zeros for the rest.
    """
    draft = Draft(call)
    table, index = call.ins[0], call.ins[1] if len(call.ins) > 1 else ()
    axes = call.integers("axis")
    if axes is None and len(table) != 1:
        draft.default_why = "the table is flattened first"
        for d in range(len(index)):
            draft.tie({1: d}, {0: d})
    else:
        axis = axes[0] % len(table) if axes else 0
        if call.floats or "int" in call.out_dtypes[0]:
            draft.tie({0: axis}, {}, "sum")
        for d in range(len(table)):
            if d != axis:
                draft.tie({0: d}, {0: d if d < axis else d - 1 + len(index)})
        for d in range(len(index)):
            draft.tie({1: d}, {0: axis + d})
    draft.linear((0,))
    return reads_result(draft)


def take_backward_on_shards(cx: LocalCall) -> ir.Call:
    """Add up on each device the gradients of the table rows that it has."""
    a, grad, table = cx.call.attrs, cx.ins[0].shard, cx.ins[1].shard
    axis = int(a.axis) if a.axis is not None else 0
    if not cx.axes_of_dim(1, axis):
        return cx.same()
    here, near = own_positions(cx, cx.operand(2), 1, axis)
    shape = [1] * axis + list(cx.ins[2].shard.local) + [1] * (len(table.global_shape) - 1 - axis)
    wide = cx.emit(relax.op.reshape(here, shape), "here")
    mine = cx.emit(relax.op.where(wide, cx.operand(0), cx.scalar(0, grad.dtype)), "mine")
    near = cx.emit(relax.op.astype(near, cx.ins[2].shard.dtype), "near")
    return relax.op.grad.take_backward(mine, cx.operand(1), near, axis)


@FAMILY.rule(
    "relax.grad.take_backward",
    local=take_backward_on_shards,
    padding=Padding(Reduced.ZEROS, indices=(2,)),
)
def take_backward(call: CallShape) -> Draft:
    """Shard the table's dims and sum over the indices; the op is linear in the gradient.

    Operands: gradient of the result, table (of which only the shape counts), indices. A device
    that holds some rows adds up what was looked up among them. TVM's kernel takes a negative axis
    for the first index, and does not iterate over the table then: such a call is replicated.
    """
    draft = Draft(call, why=INDEXED)
    table, index = call.ins[1], call.ins[2]
    axes = call.integers("axis")
    if axes is not None and axes[0] >= 0:
        axis = axes[0]
        for d in range(len(table)):
            if d != axis:
                draft.tie({0: d if d < axis else d - 1 + len(index), 1: d}, {0: d})
        for d in range(len(index)):
            draft.tie({0: axis + d, 2: d}, {}, "sum")
        draft.tie({1: axis}, {0: axis})
    draft.linear((0,))
    return draft.work(elements(call.ins[0]), "gather", in_bytes={1: 0})
