# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of elementwise ops, whose operands may be broadcast."""

from __future__ import annotations

from tvm_distir.core.ir.operators.names import relax_names
from tvm_distir.core.ops.dims import same
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.padding import ZEROS_KEPT, Padding, Zeros
from tvm_distir.core.ops.registration import SAME_OP, Family

FAMILY: Family = Family()

UNARY = (
    "acos acosh asinh atanh bitwise_not clip cos cosh exp isfinite isinf isnan log logical_not "
    "nn.softplus rsqrt sigmoid grad.no_grad grad.start_checkpoint grad.end_checkpoint "
    "memory.ensure_zero_offset"
)
#: Of these a zero gives a zero.
ODD = (
    "abs asin atan ceil erf floor nn.gelu nn.gelu_tanh nn.leakyrelu nn.relu nn.selu nn.silu "
    "round sign sin sinh sqrt square tan tanh trunc"
)
BINARY = (
    "atan2 bitwise_and bitwise_or bitwise_xor equal greater greater_equal left_shift less "
    "less_equal log_add_exp logical_and logical_or logical_xor maximum minimum not_equal power "
    "right_shift ewise_fma"
)
QUOTIENTS = "floor_divide floor_mod mod"
IDENTITY = (
    "dist.annotate_sharding dist.redistribute builtin.stop_lift_params hint_on_device to_vdevice"
)
HALF, WIDE = ("float16", "bfloat16"), ("float32", "float64")
DIVIDES = Padding(divisor=1)


def tie_broadcast(draft: Draft, operands: tuple[int, ...], out: int = 0) -> None:
    """Tie every dim of a result to the dims of the operands that align with it at the end."""
    call = draft.call
    shape = call.outs[out]
    for d, extent in enumerate(shape):
        ins: dict[int, int] = {}
        clear = True
        for i in operands:
            operand_dim = d - len(shape) + len(call.ins[i])
            if operand_dim < 0 or (
                isinstance(call.ins[i][operand_dim], int) and call.ins[i][operand_dim] == 1
            ):
                continue
            if same(call.ins[i][operand_dim], extent):
                ins[i] = operand_dim
            else:
                clear = False
                draft.replicate(
                    "in", i, operand_dim, "its extent is not provably that of the result"
                )
        if clear:
            draft.tie(ins, {out: d})
        else:
            draft.replicate("out", out, d, "an operand's extent is not provably the same")


def elementwise(call: CallShape, *linear: tuple[int, ...]) -> Draft:
    """Return the rule of an elementwise op with these linear groups; an operation per element."""
    draft = Draft(call)
    tie_broadcast(draft, tuple(range(len(call.ins))))
    draft.linear(*linear)
    return draft.per_element()


@FAMILY.rule(*relax_names(UNARY), *relax_names(BINARY), local=SAME_OP)
@FAMILY.rule(*relax_names(ODD), local=SAME_OP, padding=ZEROS_KEPT)
@FAMILY.rule(*relax_names(QUOTIENTS), local=SAME_OP, padding=DIVIDES)
def nonlinear(call: CallShape) -> Draft:
    """Shard all dims of an elementwise op that is linear in no operand."""
    return elementwise(call)


@FAMILY.rule(*relax_names(IDENTITY), local=SAME_OP)
def identity(call: CallShape) -> Draft:
    """Shard an op that marks a value: operand and result agree, and it does no work."""
    return elementwise(call).work(0, "view")


@FAMILY.rule("relax.add", "relax.subtract", local=SAME_OP, padding=Padding(zeros=Zeros.ALIGNED))
def additive(call: CallShape) -> Draft:
    """Shard all dims of a sum or difference, which is jointly linear in both operands."""
    return elementwise(call, (0, 1))


@FAMILY.rule("relax.multiply", local=SAME_OP)
def multiply(call: CallShape) -> Draft:
    """Shard all dims of a product, which is linear in each operand."""
    return elementwise(call, (0,), (1,))


@FAMILY.rule("relax.divide", local=SAME_OP, padding=DIVIDES)
def divide(call: CallShape) -> Draft:
    """Shard all dims of a quotient, linear in the dividend (not for integers, which round)."""
    return elementwise(call, *([(0,)] if call.floats else []))


@FAMILY.rule("relax.astype", local=SAME_OP, padding=ZEROS_KEPT)
def astype(call: CallShape) -> Draft:
    """Shard all dims of a cast, which is linear where it only widens floats."""
    have, want = call.in_dtypes[0], call.out_dtypes[0]
    wider = (have in HALF and want in WIDE) or (have, want) == ("float32", "float64")
    return elementwise(call, *([(0,)] if wider else []))


@FAMILY.rule("relax.negative", local=SAME_OP, padding=ZEROS_KEPT)
def negative(call: CallShape) -> Draft:
    """Shard all dims of an op that is linear in its operand."""
    return elementwise(call, (0,))


@FAMILY.rule("relax.where", local=SAME_OP)
def where(call: CallShape) -> Draft:
    """Shard all dims of a choice, jointly linear in both choices but not in the condition."""
    return elementwise(call, (1, 2))


@FAMILY.rule("relax.nn.prelu", local=SAME_OP)
def prelu(call: CallShape) -> Draft:
    """Shard all dims; the slopes follow the channel axis."""
    draft = Draft(call)
    axis = call.axes("axis", len(call.ins[0]))[0]
    for d in range(len(call.outs[0])):
        tied = {0: d, 1: 0} if d == axis and same(call.ins[1][0], call.ins[0][d]) else {0: d}
        if d == axis and 1 not in tied and call.ins[1][0] != 1:
            draft.replicate("in", 0, d, "the slopes are not provably one per channel")
            continue
        draft.tie(tied, {0: d})
    return draft.per_element(2)


@FAMILY.rule("relax.nn.dropout", local=SAME_OP)
def dropout(call: CallShape) -> Draft:
    """Shard result and mask like the data."""
    return Draft(call).tie_each(len(call.ins[0]), outs=(0, 1)).per_element()
