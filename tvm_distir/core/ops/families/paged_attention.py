# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of ops on paged caches: by requests, heads or positions of pages."""

from __future__ import annotations

from tvm import ir, relax

from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.operators.paged_attention_ops import (
    HEADS_DIM,
    KV_APPEND_OP,
    PAGED_ATTENTION_OP,
    POOLS_DIM,
    POSITIONS_DIM,
    PagedAttentionOptions,
    start_operand,
)
from tvm_distir.core.ops.dims import elements, nominal, size_bytes
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.registration import Family
from tvm_distir.core.rewriting.calls import typed

FAMILY: Family = Family()

_WHY = "every device needs all of it"


def _from_start(cx: LocalCall, cache: int) -> ir.Call:
    """Return the call with the first position that the device stores of every page."""
    start = cx.start(cache, POSITIONS_DIM)
    operands = [cx.operand(i) for i in range(len(cx.ins))]
    if start_operand(cx.call) is not None:
        start = cx.emit(relax.op.add(operands.pop(), start), "start")
    return ir.Call(cx.call.op, [*operands, start], cx.call.attrs)


def append_on_shards(cx: LocalCall) -> ir.Call:
    """Say where the positions of a device begin, if it stores a part of every page."""
    return cx.same() if not cx.axes_of_dim(0, POSITIONS_DIM) else _from_start(cx, 0)


@FAMILY.rule(KV_APPEND_OP, local=append_on_shards)
def kv_append(call: CallShape) -> Draft:
    """Shard requests with their pools, heads, and positions of pages.

    The cache is replaced in place: only the new rows are written.
    """
    draft = Draft(call, why=_WHY)
    cache, new, *_ = call.ins
    requests = {0: POOLS_DIM, 1: 0, 2: 0, 3: 0}
    draft.tie(requests, {0: POOLS_DIM}, size=cache[POOLS_DIM], uneven=False)
    draft.tie({0: HEADS_DIM, 1: 2}, {0: HEADS_DIM}, uneven=False)
    draft.tie({0: POSITIONS_DIM}, {0: POSITIONS_DIM}, uneven=False)
    draft.tie({0: 4, 1: 3}, {0: 4}, uneven=False)
    draft.replicate("in", 0, 1, "pages have numbers in their pool")
    return draft.work(0, "memory", {0: 0}, {0: size_bytes(new, call.in_dtypes[0])})


def attention_on_shards(cx: LocalCall) -> ir.Expr:
    """Join the results over parts of the positions, weighted by their sums of exponentials.

    Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", theorem 1.
    """
    cut = cx.axes_of_dim(1, POSITIONS_DIM)
    if not cut:
        return cx.same()
    parts = cx.emit(_from_start(cx, 1), "parts")
    mixed, lse = (
        cx.emit(relax.TupleGetItem(parts, i), hint) for i, hint in enumerate(("o", "lse"))
    )
    dtype, wide = str(mixed.ty.dtype), str(lse.ty.dtype)
    top = cx.emit(ops.all_reduce(lse, cx.mesh, cut, "max"), "max")
    share = cx.emit(relax.op.exp(cx.emit(relax.op.subtract(lse, top), "below")), "share")
    total = cx.emit(ops.all_reduce(share, cx.mesh, cut, "sum"), "sum")
    weight = cx.emit(relax.op.divide(share, total), "weight")
    weight = cx.emit(relax.op.expand_dims(weight, [4]), "weight")
    if dtype != wide:
        mixed = cx.emit(relax.op.astype(mixed, wide), "wide")
    mixed = cx.emit(relax.op.multiply(mixed, weight), "weighted")
    mixed = cx.emit(ops.all_reduce(mixed, cx.mesh, cut, "sum"), "mixed")
    if dtype != wide:
        mixed = cx.emit(relax.op.astype(mixed, dtype), "narrow")
    lse = cx.emit(relax.op.add(top, cx.emit(relax.op.log(total), "log")), "joined")
    return typed(relax.Tuple([mixed, lse]), relax.TupleType([mixed.ty, lse.ty]))


@FAMILY.rule(PAGED_ATTENTION_OP, local=attention_on_shards)
def paged_attention(call: CallShape) -> Draft:
    """Shard requests with their pools, key heads, query heads of a key head, and positions.

    Shapes: see :mod:`.paged_attention_ops`. FLOPs: 2 (D + E) for each query and key that it sees,
    where the ``S`` queries are the last of the ``T`` positions in the pages. Pages are read in
    full; with a window those that it touches.
    """
    draft = Draft(call, why=_WHY)
    q, k, v, pages, *_ = call.ins
    out = call.outs[0]
    requests = {0: 0, 1: POOLS_DIM, 2: POOLS_DIM, 3: 0, 4: 0}
    draft.tie(requests, {0: 0, 1: 0}, size=k[POOLS_DIM], uneven=False)
    draft.tie({0: 2, 1: HEADS_DIM, 2: HEADS_DIM}, {0: 2, 1: 2}, uneven=False)
    draft.tie({0: 3}, {0: 3, 1: 3}, uneven=False)
    statistics = 4 * elements(call.outs[1])
    joined = 2 * statistics + 4 * elements(out)
    draft.tie(
        {1: POSITIONS_DIM, 2: POSITIONS_DIM}, {}, "stat",
        comm_bytes=joined, uneven=False, kernels=6, passes=2,
    )  # fmt: skip
    draft.replicate("in", 1, 1, "pages have numbers in their pool")
    draft.replicate("in", 0, 4, "the products run over all features")
    options, new, rows = PagedAttentionOptions.of(call.attrs), nominal(q[1]), nominal(k[2])
    batch, positions = nominal(q[0]), nominal(pages[1]) * rows
    read, before = positions, new * positions - new * (new - 1) // 2 * rows // options.page_size
    if options.window:
        part = -(-options.window * rows // options.page_size)
        read, before = min(read, part + new), min(before, new * part)
    pairs = batch * nominal(q[2]) * nominal(q[3]) * before
    width = nominal(out[4])
    row_bytes = [
        size_bytes((batch, read, nominal(k[3]), nominal(shape[4])), dtype)
        for shape, dtype in zip((k, v), call.in_dtypes[1:3], strict=True)
    ]
    values = 0 if options.value_width else row_bytes[1]
    return draft.work(
        2 * pairs * (nominal(q[4]) + width), "attention", {1: row_bytes[0], 2: values}, {1: 0}
    )
