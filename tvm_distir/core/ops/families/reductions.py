# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of reductions and statistics."""

from __future__ import annotations

import math

from tvm import ir, relax

from tvm_distir.core.ops.dims import elements, same
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.local.masking import neutral_element
from tvm_distir.core.ops.local.statistics import Moments, cutting_axes, fill_padding, reduced
from tvm_distir.core.ops.padding import ZERO_TERMS, Padding, Reduced
from tvm_distir.core.ops.registration import SAME_OP, Family
from tvm_distir.core.ops.statistic import statistic_bytes
from tvm_distir.support import PropagationError

FAMILY: Family = Family()


def tie_reduction(
    draft: Draft,
    axes: tuple[int, ...],
    keepdims: bool,
    kind: str | None,
    rescale: bool = False,
    comm_bytes: int = 0,
) -> None:
    """Tie kept dims, and reduced dims by ``kind`` (None: they must be replicated)."""
    shape, index = draft.call.ins[0], 0
    for d in range(len(shape)):
        if d in axes:
            if kind is not None:
                draft.tie({0: d}, {}, kind, rescale=rescale, comm_bytes=comm_bytes)
            index += keepdims
        else:
            draft.tie({0: d}, dict.fromkeys(range(len(draft.call.outs)), index))
            index += 1
    draft.work(elements(shape))


def _has_no_extreme(call: CallShape, axes: tuple[int, ...]) -> PropagationError | None:
    """Build the error for an extreme of no elements: TVM leaves its memory as it was."""
    empty = [d for d in axes if call.ins[0][d] == 0]
    if not empty or elements(call.outs[0]) == 0:
        return None
    return PropagationError(
        "DIST0419",
        f"dim {empty[0]} has no elements, and so no {call.op[-3:]}: the result in TVM is "
        "uninitialized "
        "memory",
        location=call.op,
        remedy="Remove the call, or give the dim at least one element.",
    )


def mean_on_shards(cx: LocalCall) -> ir.Call:
    """Divide the local sum by the full count, which gives partial sums of the mean."""
    if not any(f is not None and f.reduces for f in cx.sharding.factors):
        return cx.same()
    a, shard = cx.call.attrs, cx.ins[0].shard
    ndim = len(shard.global_shape)
    axes = range(ndim) if a.axis is None else [int(x) % ndim for x in a.axis]
    count = math.prod(shard.global_shape[d] for d in axes)
    total = cx.emit(relax.op.sum(cx.operand(0), list(axes), bool(a.keepdims)), "sum")
    return relax.op.divide(total, cx.scalar(count, shard.dtype))


_KIND = {"sum": "sum", "mean": "sum", "max": "max", "min": "min", "prod": "prod"}


@FAMILY.rule("relax.sum", local=SAME_OP, padding=ZERO_TERMS)
@FAMILY.rule("relax.mean", local=mean_on_shards, padding=ZERO_TERMS)
@FAMILY.rule(
    "relax.max", "relax.min", "relax.prod", local=SAME_OP, padding=Padding(Reduced.NEUTRAL)
)
def reduction(call: CallShape) -> Draft:
    """Shard reduced dims to partial results; partial results of a mean are rescaled by their part.

    Raises
    ------
    PropagationError
        DIST0419 for a maximum or minimum of no elements.
    """
    draft = Draft(call)
    name = call.op.removeprefix("relax.")
    axes = call.axes("axis", len(call.ins[0]))
    if name in ("max", "min") and (fault := _has_no_extreme(call, axes)) is not None:
        raise fault
    rounds = name == "mean" and not call.floats
    kind = None if rounds else _KIND[name]
    tie_reduction(draft, axes, bool(call.attrs.keepdims), kind, name == "mean")
    if rounds:
        draft.default_why = "the mean of integers is rounded"
    if name in ("sum", "mean") and not rounds:
        draft.linear((0,))
    return draft


def spread_on_shards(cx: LocalCall) -> ir.Call:
    """Reduce the mean, then the mean of squared differences."""
    a, shard = cx.call.attrs, cx.ins[0].shard
    ndim = len(shard.global_shape)
    dims = list(range(ndim)) if a.axis is None else [int(x) % ndim for x in a.axis]
    axes = cutting_axes(cx, dims)
    if not axes:
        return cx.same()
    _, _, result = Moments(cx, cx.operand(0), dims, axes).centred()
    if str(cx.call.op.name) == "relax.std":
        result = cx.emit(relax.op.sqrt(result), "root")
    return result if bool(a.keepdims) else relax.op.reshape(result, list(cx.outs[0].local))


@FAMILY.rule("relax.variance", "relax.std", local=spread_on_shards)
def spread(call: CallShape) -> Draft:
    """Shard kept dims; reduced dims reduce mean and squares inside the op."""
    draft = Draft(call)
    axes = call.axes("axis", len(call.ins[0]))
    rows = statistic_bytes(call.ins[0], axes, call.out_dtypes[0])
    tie_reduction(draft, axes, bool(call.attrs.keepdims), "stat", comm_bytes=rows)
    return draft


def extreme_index_on_shards(cx: LocalCall) -> ir.Call:
    """Reduce the extreme, then the first index where a device has it; NaN comes first."""
    a, shard = cx.call.attrs, cx.ins[0].shard
    axis = 0 if a.axis is None else int(a.axis) % len(shard.global_shape)
    axes = cx.axes_of_dim(0, axis)
    if not axes:
        return cx.same()
    kind = "max" if str(cx.call.op.name) == "relax.argmax" else "min"
    extreme, index = (
        (relax.op.max, relax.op.argmax) if kind == "max" else (relax.op.min, relax.op.argmin)
    )
    x = fill_padding(cx, cx.operand(0), [axis], neutral_element(kind, shard.dtype), shard.dtype)
    mine = cx.emit(extreme(x, axis, keepdims=True), kind)
    best = reduced(cx, mine, axes, kind, kind)
    source = cx.emit(index(x, axis, keepdims=True), "place")
    position = cx.emit(relax.op.add(source, cx.start(0, axis)), "place")
    nowhere = relax.const(shard.global_shape[axis], "int64")
    has = cx.emit(relax.op.equal(mine, best), "has")
    if "float" in shard.dtype:  # a NaN is the extreme, and equal to nothing
        nan = cx.emit(relax.op.logical_not(cx.emit(relax.op.equal(mine, mine), "number")), "nan")
        has = cx.emit(relax.op.logical_or(has, nan), "has")
    first = cx.emit(relax.op.where(has, position, nowhere), "place")
    first = reduced(cx, first, axes, "min", "place")
    return first if bool(a.keepdims) else relax.op.reshape(first, list(cx.outs[0].local))


@FAMILY.rule("relax.argmax", "relax.argmin", local=extreme_index_on_shards)
def extreme_index(call: CallShape) -> Draft:
    """Shard kept dims; the axis reduces the extreme and its first index inside the op.

    Raises
    ------
    PropagationError
        DIST0419 for the place of an extreme of no elements.
    """
    draft = Draft(call, why="the index counts all elements of the operand")
    shape = call.ins[0]
    axes = call.axes("axis", len(shape))
    if (fault := _has_no_extreme(call, axes)) is not None:
        raise fault
    flat = len(axes) > 1
    rows = statistic_bytes(shape, axes, "int64")
    kind = None if flat else "stat"
    tie_reduction(draft, axes, bool(call.attrs.keepdims), kind, comm_bytes=rows)
    return draft


@FAMILY.rule("relax.median", local=SAME_OP)
def median(call: CallShape) -> Draft:
    """Shard the kept dims; reduced dims must be replicated."""
    draft = Draft(call, why="the median cannot be computed from the medians of the parts")
    tie_reduction(draft, call.axes("axis", len(call.ins[0])), bool(call.attrs.keepdims), None)
    return draft


def collapse_sum_to_on_shards(cx: LocalCall) -> ir.Call:
    """Sum to the local shape."""
    return relax.op.collapse_sum_to(cx.operand(0), cx.outs[0].local)


@FAMILY.rule("relax.collapse_sum_to", local=collapse_sum_to_on_shards, padding=ZERO_TERMS)
@FAMILY.rule("relax.collapse_sum_like", local=SAME_OP, padding=ZERO_TERMS)
def collapse_sum(call: CallShape) -> Draft:
    """Sum over the dims that the result lacks or has with extent 1."""
    draft = Draft(call, why="its extent is not provably that of the result")
    shape, out = call.ins[0], call.outs[0]
    for d, extent in enumerate(shape):
        result_dim = d - len(shape) + len(out)
        if result_dim >= 0 and same(out[result_dim], extent):
            like = {1: result_dim} if len(call.ins) > 1 else {}
            draft.tie({0: d, **like}, {0: result_dim})
        elif result_dim < 0 or (isinstance(out[result_dim], int) and out[result_dim] == 1):
            draft.tie({0: d}, {}, "sum")
    draft.linear((0,))
    return draft.work(elements(shape), in_bytes={1: 0} if len(call.ins) > 1 else None)
