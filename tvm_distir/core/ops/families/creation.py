# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of ops that create tensors or generate random numbers."""

from __future__ import annotations

from tvm import ir, relax

from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.padding import ZEROS_KEPT, Padding, Zeros
from tvm_distir.core.ops.registration import SAME_OP, Family

FAMILY: Family = Family()


def full_on_shards(cx: LocalCall) -> ir.Call:
    """Fill the local shape with a value."""
    return relax.op.full(cx.outs[0].local, cx.operand(0), cx.call.attrs.dtype)


def zeros_on_shards(cx: LocalCall) -> ir.Call:
    """Create zeros of the local shape."""
    return relax.op.zeros(cx.outs[0].local, cx.outs[0].dtype)


def ones_on_shards(cx: LocalCall) -> ir.Call:
    """Create ones of the local shape."""
    return relax.op.ones(cx.outs[0].local, cx.outs[0].dtype)


@FAMILY.rule("relax.full", local=full_on_shards)
@FAMILY.rule("relax.zeros", local=zeros_on_shards, padding=Padding(zeros=Zeros.MADE))
@FAMILY.rule("relax.ones", local=ones_on_shards)
def filled(call: CallShape) -> Draft:
    """Shard any dim: every element has the same value."""
    return Draft(call).tie_each(len(call.outs[0]), ())


@FAMILY.rule("relax.full_like", "relax.ones_like", local=SAME_OP)
@FAMILY.rule("relax.zeros_like", local=SAME_OP, padding=ZEROS_KEPT)
def filled_like(call: CallShape) -> Draft:
    """Shard like the operand, whose elements are not read."""
    return Draft(call).tie_each(len(call.outs[0])).work(0, in_bytes={0: 0})


@FAMILY.rule("relax.arange", "relax.eye", "relax.eye_like", "relax.hamming_window", local=SAME_OP)
def positional(call: CallShape) -> Draft:
    """Replicate all dims: values depend on the position."""
    return Draft(call, why="its values depend on the position")


@FAMILY.rule("relax.multinomial_from_uniform", local=SAME_OP)
def sampled(call: CallShape) -> Draft:
    """Replicate all dims of random samples."""
    draft = Draft(call, why="it samples random numbers: all devices must sample the same")
    return draft.per_element()
