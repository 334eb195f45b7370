# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of ops at computed indices: take, gather, scatter, one_hot."""

from __future__ import annotations

from tvm_distir.core.ops.dims import same
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.padding import Padding
from tvm_distir.core.ops.registration import SAME_OP, Family

from .looking_up import INDEXED, reads_result

FAMILY: Family = Family()


@FAMILY.rule("relax.gather_elements", local=SAME_OP, padding=Padding(indices=(1,)))
def gather_elements(call: CallShape) -> Draft:
    """Shard the dims other than the axis where data and indices agree, and rows of the indices."""
    draft = Draft(call, why=INDEXED)
    data, index = call.ins
    axis = int(call.attrs.axis) % len(data)
    for d in range(len(data)):
        if d == axis:
            draft.tie({1: d}, {0: d})
        elif same(data[d], index[d]):
            draft.tie({0: d, 1: d}, {0: d})
    draft.linear((0,))
    return reads_result(draft)


@FAMILY.rule("relax.gather_nd", local=SAME_OP, padding=Padding(indices=(1,)))
def gather_nd(call: CallShape) -> Draft:
    """Shard batch dims, index dims, and dims of the data that are not indexed."""
    draft = Draft(call, why=INDEXED)
    data, index = call.ins
    batch, depth = int(call.attrs.batch_dims), index[-1]
    draft.replicate("in", 1, len(index) - 1, "it contains a single index")
    for d in range(batch):
        draft.tie({0: d, 1: d}, {0: d})
    for d in range(batch, len(index) - 1):
        draft.tie({1: d}, {0: d})
    if isinstance(depth, int):
        for k, d in enumerate(range(batch + depth, len(data))):
            draft.tie({0: d}, {0: len(index) - 1 + k})
    draft.linear((0,))
    return reads_result(draft)


@FAMILY.rule("relax.index_tensor", local=SAME_OP)
def index_tensor(call: CallShape) -> Draft:
    """Shard broadcast index dims and dims of the data that are not indexed."""
    draft = Draft(call, why=INDEXED)
    indices = call.args[1]
    data = call.ins[0]
    rank = max(len(call.ins[i]) for i in indices)
    for d in range(rank):  # no padding: its indices would have to be valid
        ins = {i: d - rank + len(call.ins[i]) for i in indices if d - rank + len(call.ins[i]) >= 0}
        draft.tie(ins, {0: d}, uneven=False)
    for k, d in enumerate(range(len(indices), len(data))):
        draft.tie({0: d}, {0: rank + k})
    draft.linear((0,))
    return reads_result(draft)


@FAMILY.rule("relax.index_put", local=SAME_OP)
def index_put(call: CallShape) -> Draft:
    """Shard dims of the data that are not indexed."""
    draft = Draft(call, why=INDEXED)
    indices, (values,) = call.args[1], call.args[2]
    data, update = call.ins[0], call.ins[values]
    for d in range(len(indices), len(data)):
        update_dim = d - len(data) + len(update)
        if update_dim >= 0 and same(update[update_dim], data[d]):
            draft.tie({0: d, values: update_dim}, {0: d})
    draft.linear((0, values))
    return draft.work(0, "gather")


@FAMILY.rule("relax.scatter_elements", local=SAME_OP, padding=Padding(indices=(1,)))
def scatter_elements(call: CallShape) -> Draft:
    """Shard dims other than the axis where data, indices and updates agree."""
    draft = Draft(call, why=INDEXED)
    data, index, update = call.ins
    axis = int(call.attrs.axis) % len(data)
    for d in range(len(data)):
        if d != axis and same(data[d], index[d]) and same(data[d], update[d]):
            draft.tie({0: d, 1: d, 2: d}, {0: d})
    if str(call.attrs.reduction) in ("update", "add"):
        draft.linear((0, 2))
    return draft.work(0, "gather")


@FAMILY.rule("relax.scatter_nd", local=SAME_OP)
def scatter_nd(call: CallShape) -> Draft:
    """Shard dims of the data that are not indexed."""
    draft = Draft(call, why=INDEXED)
    data, index, update = call.ins
    depth = index[-1]
    if isinstance(depth, int):
        for d in range(depth, len(data)):
            draft.tie({0: d, 2: len(update) - len(data) + d}, {0: d})
    if str(call.attrs.reduction) in ("update", "add"):
        draft.linear((0, 2))
    return draft.work(0, "gather")


@FAMILY.rule("relax.slice_scatter", local=SAME_OP)
def slice_scatter(call: CallShape) -> Draft:
    """Shard dims other than the axis; the op is jointly linear in data and slice."""
    draft = Draft(call, why="only a slice of it is written")
    ndim = len(call.ins[0])
    return draft.tie_each(ndim, (0, 1), without=int(call.attrs.axis) % ndim).linear((0, 1))


@FAMILY.rule("relax.one_hot", local=SAME_OP)
def one_hot(call: CallShape) -> Draft:
    """Shard index dims; the new dim is replicated."""
    draft = Draft(call, why="its values depend on the position")
    rank = len(call.outs[0])
    axis = int(call.attrs.axis) % rank
    for d in range(rank):
        if d != axis:
            draft.tie({0: d if d < axis else d - 1}, {0: d})
    return draft.per_element()


@FAMILY.rule("relax.bucketize", local=SAME_OP)
def bucketize(call: CallShape) -> Draft:
    """Shard dims of the input; the boundaries are replicated."""
    return Draft(call, why="it is searched").tie_each(len(call.ins[0])).per_element(8)
