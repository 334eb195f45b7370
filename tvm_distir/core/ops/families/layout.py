# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of ops that move elements: permute, broadcast, slice, tile and flip."""

from __future__ import annotations

from tvm import ir, relax

from tvm_distir.core.ops.dims import same
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.padding import ZEROS_KEPT
from tvm_distir.core.ops.registration import SAME_OP, Family

from .elementwise import tie_broadcast

FAMILY: Family = Family()


@FAMILY.rule("relax.permute_dims", local=SAME_OP, padding=ZEROS_KEPT)
def permute_dims(call: CallShape) -> Draft:
    """Shard result dim d with operand dim axes[d]."""
    draft = Draft(call)
    ndim = len(call.ins[0])
    axes = call.integers("axes")
    order = range(ndim)[::-1] if axes is None else [a % ndim for a in axes]
    for d, source in enumerate(order):
        draft.tie({0: source}, {0: d})
    return draft.linear((0,))


def broadcast_to_on_shards(cx: LocalCall) -> ir.Call:
    """Broadcast to the local shape."""
    return relax.op.broadcast_to(cx.operand(0), cx.outs[0].local)


@FAMILY.rule("relax.broadcast_to", local=broadcast_to_on_shards)
def broadcast_to(call: CallShape) -> Draft:
    """Shard dims of the operand; new dims are sharded without any operand."""
    draft = Draft(call)
    tie_broadcast(draft, (0,))
    return draft.linear((0,))


def strided_slice_on_shards(cx: LocalCall) -> ir.Call:
    """Slice locally; sharded dims are taken in full, so their bounds become the local bounds."""
    shard = cx.ins[0].shard
    axes, begin = cx.argument_int(1), list(cx.argument_int(2))
    end = list(cx.argument_int(3))
    strides = list(cx.argument_int(4)) if len(cx.call.args) > 4 else [1] * len(axes)
    for k, axis in enumerate(axes):
        d = axis % len(shard.global_shape)
        if shard.counts[d] > 1:
            begin[k], end[k], strides[k] = 0, shard.local[d], 1
    inbound = bool(cx.call.attrs.assume_inbound)
    return relax.op.strided_slice(
        cx.operand(0), list(axes), begin, end, strides, assume_inbound=inbound
    )


@FAMILY.rule("relax.strided_slice", local=strided_slice_on_shards, padding=ZEROS_KEPT)
def strided_slice(call: CallShape) -> Draft:
    """Shard dims that are taken in full."""
    draft = Draft(call, why="it is sliced")
    shape = call.ins[0]
    strides = call.args[4] if len(call.args) > 4 else (1,) * len(call.args[1])
    cut = {}
    for axis, begin, end, stride in zip(*call.args[1:4], strides):
        full = begin == 0 and stride == 1 and isinstance(end, int)
        d = axis % len(shape)
        cut[d] = not (full and isinstance(shape[d], int) and end >= shape[d])
    for d, extent in enumerate(shape):
        if not cut.get(d, False) and same(extent, call.outs[0][d]):
            draft.tie({0: d}, {0: d})
    draft.linear((0,))
    return draft.work(0, in_bytes={0: draft.rule().out_bytes[0]})


def repeat_on_shards(cx: LocalCall) -> ir.Call:
    """Repeat locally; a device has complete groups of copies of a sharded dim, or extent 1."""
    axis = cx.call.attrs.axis
    if axis is None:
        return cx.same()
    shape, out = cx.ins[0].shard.local, cx.outs[0].local
    d = int(axis) % len(shape)
    return relax.op.repeat(cx.operand(0), out[d] // shape[d] if shape[d] else 1, d)


@FAMILY.rule("relax.repeat", local=repeat_on_shards)
def repeat(call: CallShape) -> Draft:
    """Shard all dims; copies are neighbours, so blocks of the repeated dim hold all copies."""
    draft = Draft(call)
    axis = call.integers("axis")
    if axis is None:
        if call.ins[0]:
            draft.tie({0: 0}, {0: 0}, size=call.ins[0][0], uneven=False)
        draft.default_why = "the operand is flattened first"
    else:
        for d, extent in enumerate(call.ins[0]):
            changed = d == axis[0] % len(call.ins[0]) and int(call.attrs.repeats) != 1
            if changed and isinstance(extent, int) and extent == 1:
                draft.tie({}, {0: d})
            else:
                draft.tie({0: d}, {0: d}, size=extent, uneven=not changed)
    return draft.linear((0,))


def tile_on_shards(cx: LocalCall) -> ir.Call:
    """Tile locally; a sharded result dim is broadcast: each device makes its copies."""
    shape, out = cx.ins[0].shard.local, cx.outs[0].local
    lead = (1,) * (len(out) - len(shape)) + shape
    return relax.op.tile(cx.operand(0), [n // m if m else 1 for n, m in zip(out, lead)])


@FAMILY.rule("relax.tile", local=tile_on_shards)
def tile(call: CallShape) -> Draft:
    """Shard dims that are not repeated; a dim of extent 1 is broadcast."""
    draft = Draft(call)
    shape, out = call.ins[0], call.outs[0]
    repeats = call.integers("repeats") or ()
    for d, extent in enumerate(out):
        operand_dim, times = d - len(out) + len(shape), d - len(out) + len(repeats)
        count = repeats[times] if times >= 0 else 1
        if operand_dim < 0 or (isinstance(shape[operand_dim], int) and shape[operand_dim] == 1):
            draft.tie({}, {0: d})
        elif count == 1:
            draft.tie({0: operand_dim}, {0: d})
        else:
            why = "its copies are concatenated: a block contains parts of several"
            draft.replicate("in", 0, operand_dim, why)
            draft.replicate("out", 0, d, why)
    return draft.linear((0,))


@FAMILY.rule("relax.flip", local=SAME_OP)
def flip(call: CallShape) -> Draft:
    """Shard the dims that are not flipped."""
    draft = Draft(call, why="it is reversed, which reorders blocks")
    ndim = len(call.ins[0])
    return draft.tie_each(ndim, without=int(call.attrs.axis) % ndim).linear((0,))


@FAMILY.rule("relax.nn.pixel_shuffle", local=SAME_OP)
def pixel_shuffle(call: CallShape) -> Draft:
    """Map ``(N, C r r, H, W) -> (N, C, H r, W r)``; shard full result channels and full pixels."""
    draft = Draft(call)
    source, out = call.ins[0], call.outs[0]
    for d in range(len(source)):
        channel = d == len(source) - 3
        draft.tie({0: d}, {0: d}, size=out[d] if channel else source[d], uneven=d < len(source) - 3)
    return draft.linear((0,))
