# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ops whose arguments or attributes hold whole sizes: shapes, repeats, bounds, groups."""

from __future__ import annotations

from typing import Any

from tvm import relax

from .calls import LocalCall, register_local


@register_local("relax.reshape", "relax.squeeze")
def reshape(cx: LocalCall) -> Any:
    """The leading dim of a group is cut: blocks of rows stay blocks of rows.

    A squeeze without axes would drop a cut dim whose shard has one element.
    """
    return relax.op.reshape(cx.operand(0), cx.outs[0].local)


@register_local("relax.broadcast_to")
def broadcast_to(cx: LocalCall) -> Any:
    """Broadcast to the local shape."""
    return relax.op.broadcast_to(cx.operand(0), cx.outs[0].local)


@register_local("relax.collapse_sum_to")
def collapse_sum_to(cx: LocalCall) -> Any:
    """Sum to the local shape."""
    return relax.op.collapse_sum_to(cx.operand(0), cx.outs[0].local)


@register_local("relax.full")
def full(cx: LocalCall) -> Any:
    """Fill the local shape."""
    return relax.op.full(cx.outs[0].local, cx.operand(0), cx.call.attrs.dtype)


@register_local("relax.zeros")
def zeros(cx: LocalCall) -> Any:
    """Zeros of the local shape."""
    return relax.op.zeros(cx.outs[0].local, cx.outs[0].dtype)


@register_local("relax.ones")
def ones(cx: LocalCall) -> Any:
    """Ones of the local shape."""
    return relax.op.ones(cx.outs[0].local, cx.outs[0].dtype)


@register_local("relax.tile")
def tile(cx: LocalCall) -> Any:
    """A cut result dim is a broadcast one: each device lays its share of the copies."""
    own, out = cx.ins[0].shard.local, cx.outs[0].local
    lead = (1,) * (len(out) - len(own)) + own
    return relax.op.tile(cx.operand(0), [n // m if m else 1 for n, m in zip(out, lead)])


@register_local("relax.repeat")
def repeat(cx: LocalCall) -> Any:
    """A cut repeated dim is either cut in whole elements, or of extent 1."""
    axis = cx.call.attrs.axis
    if axis is None:
        return cx.same()
    own, out = cx.ins[0].shard.local, cx.outs[0].local
    d = int(axis) % len(own)
    return relax.op.repeat(cx.operand(0), out[d] // own[d] if own[d] else 1, d)


@register_local("relax.strided_slice")
def strided_slice(cx: LocalCall) -> Any:
    """Cut dims are taken whole: their bounds become the local ones."""
    own = cx.ins[0].shard
    axes, begin = cx.argument_int(1), list(cx.argument_int(2))
    end = list(cx.argument_int(3))
    strides = list(cx.argument_int(4)) if len(cx.call.args) > 4 else [1] * len(axes)
    for k, axis in enumerate(axes):
        d = axis % len(own.whole)
        if own.counts[d] > 1:
            begin[k], end[k], strides[k] = 0, own.local[d], 1
    inbound = bool(cx.call.attrs.assume_inbound)
    return relax.op.strided_slice(
        cx.operand(0), list(axes), begin, end, strides, assume_inbound=inbound
    )
