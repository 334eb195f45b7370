# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Padding of uneven dims: which ops read it, and what is put there for them.

A dim of n elements over k devices is padded to ``ceil(n/k)`` per shard. Ops that keep the dim
compute something in the padding that nobody looks at; an op that reduces over it must find the
neutral element of its reduction there, an op that uses an operand as index or divisor something
harmless.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from .calls import LocalCall

#: Sums whose terms are products of operand elements: zeros in all operands are neutral.
SUMS_OF_PRODUCTS = frozenset(
    f"relax.{op}"
    for op in (
        "matmul sum mean einsum collapse_sum_to collapse_sum_like grad.take_backward "
        "nn.conv1d nn.conv2d nn.conv3d nn.conv1d_transpose nn.conv2d_transpose "
        "nn.conv3d_transpose nn.cross_entropy_with_logits nn.nll_loss"
    ).split()
)
#: Reductions of one operand, by the kind of their factor.
PLAIN = {"relax.max": "max", "relax.min": "min", "relax.prod": "prod"}
#: Operands used as indices, which must lie inside what they index even in the padding.
INDICES = {
    "relax.take": (1,),
    "relax.gather_elements": (1,),
    "relax.gather_nd": (1,),
    "relax.grad.take_backward": (2,),
    "relax.nn.nll_loss": (1,),
    "relax.grad.nll_loss_backward": (2,),
    "relax.scatter_elements": (1,),
}
#: Integer divisions trap on a zero divisor.
DIVISIONS = ("relax.divide", "relax.floor_divide", "relax.mod", "relax.floor_mod")
#: Ops that give zeros for zeros, element by element or by moving elements.
KEEP_ZEROS = frozenset(
    f"relax.{op}"
    for op in (
        "negative abs sqrt sin tan sinh tanh asin atan erf square sign floor ceil round trunc "
        "nn.relu nn.leakyrelu nn.selu nn.silu nn.gelu nn.gelu_tanh astype permute_dims reshape "
        "expand_dims squeeze flatten nn.batch_flatten concat stack split strided_slice "
        "zeros_like add subtract"
    ).split()
)
#: Ops whose rule sums over rows that a device looks up: its handler leaves no term for padding.
SELECTING = frozenset({"relax.take", "relax.nn.nll_loss"})


def neutral_element(kind: str, dtype: str) -> Any:
    """Neutral element of a reduction as a NumPy scalar (``bfloat16`` as float32)."""
    base = np.dtype("float32" if dtype == "bfloat16" else dtype)
    if kind in ("sum", "prod"):
        return np.array(kind == "prod").astype(base)
    if base.kind == "b":
        return np.array(kind == "min")
    if base.kind in "iu":
        info = np.iinfo(base)
        return np.array(info.max if kind == "min" else info.min, base)
    return np.array(np.inf if kind == "min" else -np.inf, base)


def mask(cx: LocalCall, number: int, dim: int, value: Any) -> None:
    """Put ``value`` into the padding of an operand's dim."""
    own = cx.ins[number].shard
    fill = cx.scalar(value, own.dtype)
    kept = relax.op.where(cx.valid(number, dim), cx.operand(number), fill)
    others = [d for d in own.padded_dims if d != dim]
    zero = bool(value == 0) and (cx.ins[number].zero or not others)
    cx.replace(number, kept, zero)


def protect(cx: LocalCall) -> None:
    """Mask the padding that the call would read, before any handler sees the operands.

    Raises
    ------
    LoweringError
        DIST0507 when the op reads padding in a way that no value makes harmless.
    """
    padded = [i for i, own in enumerate(cx.ins) if own.shard.padded_dims]
    if not padded and not any(out.padded_dims for out in cx.outs):
        return
    name = str(cx.call.op.name)
    _check_uneven(cx)
    for factor in cx.form.factors:
        if factor is None or not factor.reduces or name in SELECTING:
            continue
        for i in padded:
            dim = factor.ins[i]
            if dim is None or dim not in cx.ins[i].shard.padded_dims:
                continue
            _neutralise(cx, name, factor.kind, i, dim)
    for i in INDICES.get(name, ()):
        if i in padded and not cx.ins[i].zero:
            for dim in cx.ins[i].shard.padded_dims:
                mask(cx, i, dim, 0)
    if name in DIVISIONS and 1 in padded and "int" in cx.ins[1].shard.dtype:
        for dim in cx.ins[1].shard.padded_dims:
            mask(cx, 1, dim, 1)


def _check_uneven(cx: LocalCall) -> None:
    """Every padded dim must be walked by a factor that allows padding."""
    rows = [
        (f"operand {i}", own.shard, [f and f.ins[i] for f in cx.form.factors])
        for i, own in enumerate(cx.ins)
    ]
    rows += [
        (f"result {i}", out, [f and f.outs[i] for f in cx.form.factors])
        for i, out in enumerate(cx.outs)
    ]
    for what, own, dims in rows:
        for axis, (factor, dim) in enumerate(zip(cx.form.factors, dims)):
            if factor is None or dim is None or dim not in own.padded_dims or factor.uneven:
                continue
            raise cx.fault(
                "DIST0507",
                f"dim {dim} of size {own.whole[dim]} of {what} is cut into {own.counts[dim]} "
                f"uneven parts along mesh axis {axis}, which the op cannot do",
                f"Pad it to {own.local[dim] * own.counts[dim]}, or replicate it.",
            )


def _neutralise(cx: LocalCall, name: str, kind: str, number: int, dim: int) -> None:
    if name in SUMS_OF_PRODUCTS:
        if not cx.ins[number].zero:
            mask(cx, number, dim, 0)
    elif PLAIN.get(name) == kind:
        mask(cx, number, dim, neutral_element(kind, cx.ins[number].shard.dtype))
    else:
        raise cx.fault(
            "DIST0507",
            f"it reduces ({kind}) over dim {dim} of size {cx.ins[number].shard.whole[dim]}, "
            "which is padded, and what the padding must hold for this op is not known",
            "Choose a size that divides evenly, or replicate the dim.",
        )


def stays_zero(cx: LocalCall) -> bool:
    """Whether the results' padding surely holds zeros."""
    name = str(cx.call.op.name)
    if name == "relax.zeros":
        return True
    if name not in KEEP_ZEROS:
        return False
    if name in ("relax.add", "relax.subtract"):
        # A broadcast operand would be added into the padding of the other.
        return all(own.zero and own.shard.local == cx.outs[0].local for own in cx.ins)
    return all(own.zero for own in cx.ins)
