# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Masks the padding of uneven dims on shards, so that ops read the values that they need.

Ops that keep a dim compute values in its padding that are never read; an op that reduces over it
needs the neutral element of its reduction there, and an op that uses an operand as index or divisor
needs a harmless value. The registration of an op declares its needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvm_distir.core.collectives.meaning import neutral
from tvm_distir.core.ops.padding import Padding, Reduced, Zeros

from .call import LocalCall


def neutral_element(kind: str, dtype: str) -> Any:
    """Return the neutral element of a reduction as a NumPy scalar (``bfloat16`` as float32)."""
    return neutral(kind, np.dtype("float32" if dtype == "bfloat16" else dtype))


def mask(cx: LocalCall, number: int, dim: int, value: Any) -> None:
    """Put ``value`` into the padding of an operand's dim."""
    shard = cx.ins[number].shard
    fill = cx.scalar(value, shard.dtype)
    masked = relax.op.where(cx.valid(number, dim), cx.operand(number), fill)
    others = [d for d in shard.padded_dims if d != dim]
    zero = bool(value == 0) and (cx.ins[number].zero or not others)
    cx.replace(number, masked, zero)


def protect(cx: LocalCall, needs: Padding) -> None:
    """Mask the padding that the call would read, before any local form sees the operands.

    Raises
    ------
    LoweringError
        DIST0507 when the op reads padding in a way that no value makes harmless.
    """
    padded = [i for i, operand in enumerate(cx.ins) if operand.shard.padded_dims]
    if not padded and not any(out.padded_dims for out in cx.outs):
        return
    _check_uneven(cx)
    for factor in cx.sharding.factors:
        if factor is None or not factor.reduces or needs.reduced is Reduced.UNREAD:
            continue
        for i in padded:
            dim = factor.ins[i]
            if dim is None or dim not in cx.ins[i].shard.padded_dims:
                continue
            _neutralise(cx, needs.reduced, factor.kind, i, dim)
    for i in needs.indices:
        if i in padded and not cx.ins[i].zero:
            for dim in cx.ins[i].shard.padded_dims:
                mask(cx, i, dim, 0)
    by = needs.divisor
    if by is not None and by in padded and "int" in cx.ins[by].shard.dtype:
        for dim in cx.ins[by].shard.padded_dims:
            mask(cx, by, dim, 1)


def _check_uneven(cx: LocalCall) -> None:
    """Raise where a padded dim is not in a factor that allows padding."""
    rows = [
        (f"operand {i}", operand.shard, [f and f.ins[i] for f in cx.sharding.factors])
        for i, operand in enumerate(cx.ins)
    ]
    rows += [
        (f"result {i}", out, [f and f.outs[i] for f in cx.sharding.factors])
        for i, out in enumerate(cx.outs)
    ]
    for label, shard, dims in rows:
        for axis, (factor, dim) in enumerate(zip(cx.sharding.factors, dims)):
            if factor is None or dim is None or dim not in shard.padded_dims or factor.uneven:
                continue
            raise cx.fault(
                "DIST0507",
                f"dim {dim} of size {shard.global_shape[dim]} of {label} is sharded into "
                f"{shard.counts[dim]} "
                f"uneven parts along mesh axis {axis}, which the op does not support",
                f"Pad it to {shard.local[dim] * shard.counts[dim]}, or replicate it.",
            )


def _neutralise(cx: LocalCall, reduced: Reduced, kind: str, number: int, dim: int) -> None:
    if reduced is Reduced.ZEROS:
        if not cx.ins[number].zero:
            mask(cx, number, dim, 0)
    elif reduced is Reduced.NEUTRAL:
        mask(cx, number, dim, neutral_element(kind, cx.ins[number].shard.dtype))
    else:
        raise cx.fault(
            "DIST0507",
            f"it reduces ({kind}) over dim {dim} of size {cx.ins[number].shard.global_shape[dim]}, "
            "which is padded, and the value that the padding must have for this op is unknown",
            "Choose a size that divides evenly, or replicate the dim.",
        )


def padding_stays_zero(cx: LocalCall, needs: Padding) -> bool:
    """Return whether the results' padding surely holds zeros."""
    if needs.zeros is Zeros.MADE:
        return True
    if needs.zeros is Zeros.UNKNOWN:
        return False
    if needs.zeros is Zeros.ALIGNED:
        # A broadcast operand would be added into the padding of the other.
        return all(operand.zero and operand.shard.local == cx.outs[0].local for operand in cx.ins)
    return all(operand.zero for operand in cx.ins)
