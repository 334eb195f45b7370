# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of losses over sharded samples and classes, without gathering logits."""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ops.dims import Shape, elements, size_bytes
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.core.ops.local.own_positions import as_int64, own_positions
from tvm_distir.core.ops.local.statistics import cutting_axes
from tvm_distir.core.ops.padding import ZERO_TERMS, Padding, Reduced
from tvm_distir.core.ops.registration import Family

FAMILY: Family = Family()


def cross_entropy_on_shards(cx: LocalCall) -> ir.Call:
    """Rescale the loss: the op divides by the local extent of dim 0, not by the full extent."""
    shard = cx.ins[0].shard
    if not any(factor is not None and factor.rescale for factor in cx.sharding.factors):
        return cx.same()
    part = cx.emit(cx.same(), "part")
    share = shard.local[0] / shard.global_shape[0]
    return relax.op.multiply(part, cx.scalar(share, shard.dtype))


@FAMILY.rule(
    "relax.nn.cross_entropy_with_logits", local=cross_entropy_on_shards, padding=ZERO_TERMS
)
def cross_entropy(call: CallShape) -> Draft:
    """Shard ``-sum(predictions * labels) / extent of dim 0``: partial sums, rescaled for dim 0."""
    draft = Draft(call)
    ndim = len(call.ins[0])
    for d in range(ndim):
        draft.tie({0: d, 1: d}, {}, "sum", rescale=d == 0 and ndim > 1)
    draft.linear((0,), (1,))
    return draft.work(2 * elements(call.ins[0]))


def _class_dim(shape: Shape) -> int:
    """Return the class dim of predictions (classes,) or (samples, classes, ...)."""
    return min(1, len(shape) - 1)


_WEIGHTS = "each device needs the weights of all targets"


class _Targets:
    """Targets of the samples of a device.

    Parameters
    ----------
    cx : LocalCall
        The call of a loss or its gradient; the predictions are operand ``first``, targets and
        weights follow.
    first : int
    """

    def __init__(self, cx: LocalCall, first: int) -> None:
        self.cx, self.first = cx, first
        self.predictions = cx.ins[first].shard
        self.targets = cx.ins[first + 1].shard
        self.class_dim = min(1, len(self.predictions.global_shape) - 1)
        self.class_axes = cx.axes_of_dim(first, self.class_dim)
        self.sample_axes = cutting_axes(cx, range(len(self.targets.global_shape)), first + 1)
        self.classes = as_int64(cx, cx.operand(first + 1))
        ignored = relax.const(int(cx.call.attrs.ignore_index), "int64")
        counts = cx.emit(relax.op.not_equal(self.classes, ignored), "counts")
        for d in self.targets.padded_dims:
            counts = cx.emit(relax.op.logical_and(counts, cx.valid(first + 1, d)), "counts")
        self.counts = counts
        self.weight = self._weights(counts)

    def _weights(self, counts: ir.Expr) -> ir.Expr:
        """Return the weight of each sample: zero where its target is ignored, or it is padding."""
        cx, dtype = self.cx, self.predictions.dtype
        if len(cx.ins) > self.first + 2:
            classes = cx.ins[self.first + 2].shard.global_shape[0]
            known = cx.emit(relax.op.clip(self.classes, 0, classes - 1), "known")
            table = cx.operand(self.first + 2)
            each = cx.emit(relax.op.take(table, known, axis=0, mode="fast"), "weight")
            return cx.emit(relax.op.where(counts, each, cx.scalar(0, dtype)), "weight")
        return cx.emit(relax.op.astype(counts, dtype), "weight")

    def local_indices(self) -> tuple[Any, Any]:
        """Return which samples count with a target class of this device, and these classes."""
        cx, rows = self.cx, self.predictions.local[self.class_dim]
        if not self.class_axes:
            return self.counts, cx.emit(relax.op.clip(self.classes, 0, rows - 1), "near")
        here, near = own_positions(cx, self.classes, self.first, self.class_dim)
        return cx.emit(relax.op.logical_and(here, self.counts), "here"), near

    def spread(self, value: ir.Expr) -> ir.Expr:
        """Give a value per sample a class dim of extent 1."""
        shape = list(self.targets.local)
        shape.insert(self.class_dim, 1)
        return self.cx.emit(relax.op.reshape(value, shape), "spread")

    def summed(self, value: ir.Expr, hint: str) -> ir.Expr:
        """Sum over the samples of this device; return a scalar."""
        return self.cx.emit(relax.op.sum(value), hint) if self.targets.local else value


def nll_loss_on_shards(cx: LocalCall) -> ir.Expr:
    """Look up the local classes; a mean divides by the weight of all samples."""
    reduction = str(cx.call.attrs.reduction)
    known = _Targets(cx, 0)
    averaged = reduction == "mean" and known.sample_axes
    over_padding = reduction == "sum" and known.targets.padded_dims
    if not known.class_axes and not averaged and not over_padding:
        return cx.same()
    here, near = known.local_indices()
    entries = relax.op.gather_elements(cx.operand(0), known.spread(near), axis=known.class_dim)
    picked = cx.emit(
        relax.op.reshape(cx.emit(entries, "found"), list(known.targets.local)), "found"
    )
    weighted = cx.emit(relax.op.multiply(picked, known.weight), "weighted")
    zero = cx.scalar(0, known.predictions.dtype)
    terms = cx.emit(relax.op.where(here, weighted, zero), "terms")
    losses = cx.emit(relax.op.negative(terms), "losses")
    if reduction == "none":
        return losses
    total = known.summed(losses, "loss")
    if reduction == "sum":
        return total
    divisor = known.summed(known.weight, "weights")
    if known.sample_axes:
        pair = cx.emit(relax.op.stack([total, divisor], 0), "pair")
        pair = cx.emit(ops.all_reduce(pair, cx.mesh, list(known.sample_axes), "sum"), "pair")
        parts = cx.emit(relax.op.split(pair, 2, 0), "halves")
        total, divisor = (
            cx.emit(relax.op.reshape(cx.emit(relax.TupleGetItem(parts, i)), []), "half")
            for i in (0, 1)
        )
    return relax.op.divide(total, divisor)


@FAMILY.rule(
    "relax.nn.nll_loss", local=nll_loss_on_shards, padding=Padding(Reduced.UNREAD, indices=(1,))
)
def nll_loss(call: CallShape) -> Draft:
    """Shard samples, kept (``none``), summed (``sum``) or averaged; classes give partial sums.

    Operands: predictions ``(N, C, d...)``, targets ``(N, d...)``, optionally weights ``(C,)``. A
    device that holds some classes looks up the targets among them, and zeros for the rest. A
    mean over sharded samples reduces the sum and its divisor, the weight of all targets, inside.
    """
    draft = Draft(call, why=_WEIGHTS)
    reduction = str(call.attrs.reduction)
    draft.tie({0: _class_dim(call.ins[0])}, {}, "sum")
    for d in range(len(call.ins[1])):
        ins = {0: d if d == 0 else d + 1, 1: d}
        if reduction == "none":
            draft.tie(ins, {0: d})
        elif reduction == "sum":
            draft.tie(ins, {}, "sum")
        else:
            draft.tie(ins, {}, "stat", comm_bytes=size_bytes((), call.out_dtypes[0]))
    draft.linear((0,))
    return draft.work(2 * elements(call.ins[1]), "gather")


def nll_loss_backward_on_shards(cx: LocalCall) -> ir.Call:
    """Put ``- weight * gradient`` at the target's class on the device that has it."""
    reduction = str(cx.call.attrs.reduction)
    known = _Targets(cx, 1)
    if not known.class_axes and not (reduction == "mean" and known.sample_axes):
        return cx.same()
    grad = cx.operand(0)
    if reduction == "mean":
        divisor = known.summed(known.weight, "weights")
        if known.sample_axes:
            axes = list(known.sample_axes)
            divisor = cx.emit(ops.all_reduce(divisor, cx.mesh, axes, "sum"), "weights")
        grad = cx.emit(relax.op.divide(grad, divisor), "share")
    each = cx.emit(relax.op.multiply(cx.emit(relax.op.negative(known.weight)), grad), "each")
    here, near = known.local_indices()
    local = known.predictions.local
    rows = cx.emit(relax.op.arange(0, local[known.class_dim], 1, "int64"), "classes")
    shape = [1] * len(local)
    shape[known.class_dim] = local[known.class_dim]
    rows = cx.emit(relax.op.reshape(rows, shape), "classes")
    chosen = cx.emit(relax.op.equal(rows, known.spread(near)), "chosen")
    chosen = cx.emit(relax.op.logical_and(chosen, known.spread(here)), "chosen")
    zero = cx.scalar(0, known.predictions.dtype)
    return relax.op.where(chosen, known.spread(each), zero)


@FAMILY.rule(
    "relax.grad.nll_loss_backward", local=nll_loss_backward_on_shards, padding=Padding(indices=(2,))
)
def nll_loss_backward(call: CallShape) -> Draft:
    """Shard samples and classes of the gradient of the predictions.

    Operands: gradient of the loss, predictions, targets, optionally weights. Of a mean over cut
    samples the divisor, the weight of all targets, is reduced inside.
    """
    draft = Draft(call, why=_WEIGHTS)
    reduction = str(call.attrs.reduction)
    classes = _class_dim(call.ins[1])
    draft.tie({1: classes}, {0: classes})
    for d in range(len(call.ins[2])):
        data_dim = d if d == 0 else d + 1
        ins = {1: data_dim, 2: d}
        if reduction == "none":
            draft.tie({0: d, **ins}, {0: data_dim})
        elif reduction == "sum":
            draft.tie(ins, {0: data_dim})
        else:
            draft.tie(ins, {0: data_dim}, "stat", comm_bytes=size_bytes((), call.out_dtypes[0]))
    draft.linear((0,))
    return draft.per_element()
