# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of ops that join or split tensors: concat, stack, split, meshgrid."""

from __future__ import annotations

from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.padding import ZEROS_KEPT
from tvm_distir.core.ops.registration import SAME_OP, Family

FAMILY: Family = Family()


@FAMILY.rule("relax.concat", local=SAME_OP, padding=ZEROS_KEPT)
def concat(call: CallShape) -> Draft:
    """Shard dims other than the axis; the op is linear in all operands together."""
    draft = Draft(call, why="the operands are concatenated: a block contains parts of several")
    ndim = len(call.outs[0])
    axis = (call.integers("axis") or (0,))[0] % ndim
    operands = range(len(call.ins))
    return draft.tie_each(ndim, operands, without=axis).linear(operands)


@FAMILY.rule("relax.stack", local=SAME_OP, padding=ZEROS_KEPT)
def stack(call: CallShape) -> Draft:
    """Shard the operands' dims; the op is linear in all operands together."""
    draft = Draft(call, why="its extent is the number of operands")
    ndim = len(call.outs[0])
    axis = (call.integers("axis") or (0,))[0] % ndim
    for d in range(ndim):
        if d != axis:
            operand_dim = d if d < axis else d - 1
            draft.tie(dict.fromkeys(range(len(call.ins)), operand_dim), {0: d})
    return draft.linear(range(len(call.ins)))


@FAMILY.rule("relax.split", local=SAME_OP, padding=ZEROS_KEPT)
def split(call: CallShape) -> Draft:
    """Shard dims other than the axis."""
    draft = Draft(call, why="its sections are concatenated: a block contains parts of several")
    ndim = len(call.ins[0])
    axis = int(call.attrs.axis) % ndim
    return draft.tie_each(ndim, outs=range(len(call.outs)), without=axis).linear((0,))


@FAMILY.rule("relax.meshgrid", local=SAME_OP)
def meshgrid(call: CallShape) -> Draft:
    """Shard each operand with its dim of every result.

    With ``xy`` the first two change places, which TVM's result type does not say: such results
    have another shape than their type, and nothing is sharded.
    """
    draft = Draft(call)
    if str(call.attrs.indexing) == "xy" and len(call.ins) > 1:
        draft.default_why = "TVM's result type has the first two dims in the wrong places"
        return draft
    for i, shape in enumerate(call.ins):
        if shape:
            draft.tie({i: 0}, dict.fromkeys(range(len(call.outs)), i))
    return draft
