# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Implement the policy ``attention``, which saves the row maxima and sums of the weights.

``weights = softmax(f(matmul(q, k)))``, ``mixed = matmul(weights, v)`` is written with the maxima
and sums as separate values. The backward pass recomputes the scores and from them the weights,
block by block of keys, and computes the sum over the keys in the gradient of a softmax from the
result instead, ``sum(mixed_grad * mixed)`` (Dao et al. 2022, "FlashAttention", section 3.1 and
appendix B; ring attention needs this, Liu et al. 2023).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import known_shape
from tvm_distir.core.rewriting import BlockWriter, op_name, substitute, variables
from tvm_distir.transforms.training.autodiff.saved_values import kept_and_again

WIDE, NARROW = "float32", ("float16", "bfloat16")


BATCH_HEADS_ROWS_COLUMNS = 4
"""Dimensions of the weights of attention."""


@dataclass(frozen=True)
class AttentionRewrite:
    """Forward and backward pass of a function, written for this policy.

    Attributes
    ----------
    before, after : list of Binding
        The forward and the backward pass.
    kept : list of Var
        The values of the forward pass that are saved.
    again : list of Binding
        The bindings that the backward pass recomputes, in order.
    read : list of Var
        The values of the forward pass that the two read.
    whole : tuple of str
        Weights over positions that are kept all the same: what reads them is no product.
    """

    before: list[Any]
    after: list[Any]
    kept: list[Any]
    again: list[Any]
    read: list[Any]
    whole: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Site:
    """Attention in a forward pass: weights, scores, result, and the bindings to the scores."""

    weights: Any
    scores: Any
    mixed: Any
    core: tuple[Any, ...]


def keeping_sums(
    before: Sequence[Any],
    after: Sequence[Any],
    read: Sequence[Any],
    params: Sequence[Any],
    operands: Mapping[Any, Any],
) -> AttentionRewrite:
    """Write a function's passes so that the weights of attention are recomputed.

    Parameters
    ----------
    before, after : sequence of Binding
        The forward and the backward pass.
    read : sequence of Var
        The values that the backward pass, and its results, read.
    params : sequence of Var
    operands : mapping of Var to Var
        Values that kernels of the backward pass compute again, with what they read instead.

    Returns
    -------
    AttentionRewrite
        The rewrite, in which all other values are saved as by the policy ``none``.
    """
    sites = {site.weights: site for site in _sites(before) if site.weights in set(read)}
    writer = BlockWriter(relax.BlockBuilder(), True)
    remade: dict[Any, list[Any]] = {}
    for binding in before:
        site = sites.get(binding.var)
        if site is None:
            writer.bindings.append(binding)
            continue
        remade[binding.var] = _forward(writer, site)
    forward = writer.bindings
    backward = _without_sums(after, sites, before)
    core = {b.var for site in sites.values() for b in site.core}
    rewritten = {b.var for bindings in remade.values() for b in bindings}
    of_forward = {b.var for b in forward} | set(params)
    again = [b for b in forward if b.var in core] + [b for bs in remade.values() for b in bs]
    needed = [v for b in (*backward, *again) for v in variables(b.value) if v in of_forward]
    needed += [v for v in read if v in of_forward]
    at_hand = [*params, *core, *rewritten]
    outside = [v for v in needed if v not in core and v not in rewritten]
    saved, views = kept_and_again(forward, outside, at_hand, operands)
    views_of = {b.var for b in views}
    ordered: list[Any] = []
    for binding in forward:
        if binding.var in sites:
            ordered += remade[binding.var]
        elif binding.var in core or binding.var in views_of:
            ordered.append(binding)
    whole = tuple(
        str(b.var.name)
        for b in before
        if b.var in set(read) and b.var not in sites and op_name(b.value) == "nn.softmax"
        if len(known_shape(b.var.ty) or ()) == BATCH_HEADS_ROWS_COLUMNS
    )
    return AttentionRewrite(
        forward, backward, saved, ordered, [*dict.fromkeys([*saved, *outside])], whole
    )


def _sites(before: Sequence[Any]) -> list[_Site]:
    """Return attention whose weights are read by a single product."""
    values = {b.var: b.value for b in before}
    readers: dict[Any, list[Any]] = {}
    for binding in before:
        for var in variables(binding.value):
            readers.setdefault(var, []).append(binding.var)
    sites = []
    for binding in before:
        call, shape = binding.value, known_shape(getattr(binding.var, "ty", None)) or ()
        if op_name(call) != "nn.softmax" or int(call.attrs.axis) % len(shape) != len(shape) - 1:
            continue
        weights = binding.var
        below = readers.get(weights, [])
        if len(below) == 1 and op_name(values[below[0]]) == "astype":
            weights, below = below[0], readers.get(below[0], [])
        product: Any = values[below[0]] if len(below) == 1 else None
        core = _core(call.args[0], values)
        if op_name(product) == "matmul" and product.args[0].same_as(weights) and core:
            order = tuple(b for b in before if b.var in core)
            sites.append(_Site(binding.var, call.args[0], below[0], order))
    return sites


def _core(scores: Any, values: Mapping[Any, Any]) -> set[Any]:
    """Return the values from the product of queries and keys to the softmax."""
    shape, core = known_shape(scores.ty), set()
    waiting, reached = [scores], False
    while waiting:
        var = waiting.pop()
        value = values.get(var)
        if var in core or value is None or known_shape(var.ty) != shape:
            continue
        if not isinstance(value, ir.Call) or not isinstance(value.op, ir.Op):
            continue
        core.add(var)
        if op_name(value) == "matmul":
            reached = True
        else:
            waiting.extend(variables(value))
    return core if reached else set()


def _forward(writer: BlockWriter, site: _Site) -> list[Any]:
    """Write a softmax with its maxima and sums; return how to recompute the weights."""
    name, scores, weights = str(site.weights.name), site.scores, site.weights
    dtype = str(weights.ty.dtype)
    wide = WIDE if str(scores.ty.dtype) in NARROW else str(scores.ty.dtype)
    first = len(writer.bindings)
    if str(scores.ty.dtype) != wide:
        scores = writer.emit(relax.op.astype(scores, wide), f"{name}_wide")
    cast = writer.bindings[first:]
    top = writer.emit(relax.op.max(scores, [-1], keepdims=True), f"{name}_max")
    raised = _raised(writer, scores, top, name)
    total = writer.emit(relax.op.sum(raised, [-1], keepdims=True), f"{name}_sum")
    _divided(writer, raised, total, weights, dtype)
    other = BlockWriter(writer.builder, True)
    raised = _raised(other, scores, top, name)
    _divided(other, raised, total, weights, dtype)
    return [*cast, *other.bindings]


def _raised(writer: BlockWriter, scores: Any, top: Any, name: str) -> Any:
    moved = writer.emit(relax.op.subtract(scores, top), f"{name}_moved")
    return writer.emit(relax.op.exp(moved), f"{name}_exp")


def _divided(writer: BlockWriter, raised: Any, total: Any, weights: Any, dtype: str) -> None:
    value = writer.builder.normalize(relax.op.divide(raised, total))
    if str(value.ty.dtype) != dtype:
        wide = writer.add(value, f"{weights.name}_wide")
        value = writer.builder.normalize(relax.op.astype(wide, dtype))
    writer.bind(weights, value)


def _without_sums(
    after: Sequence[Any], sites: Mapping[Any, _Site], before: Sequence[Any]
) -> list[Any]:
    """Use ``sum(mixed_grad * mixed)`` for ``sum(weights_grad * weights)`` in the backward pass."""
    values = {b.var: b.value for b in (*before, *after)}
    writer = BlockWriter(relax.BlockBuilder(), True)
    for binding in after:
        pair = _along(binding.value, values, sites)
        if pair is None:
            writer.bindings.append(binding)
            continue
        dtype = str(binding.var.ty.dtype)
        both = [_typed(writer, var, dtype) for var in pair]
        product = writer.emit(relax.op.multiply(*both), f"{binding.var.name}_terms")
        (old,) = binding.value.args[:1]
        writer.bind(binding.var, substitute(binding.value, {old: product}))
    return writer.bindings


def _typed(writer: BlockWriter, var: Any, dtype: str) -> Any:
    if str(var.ty.dtype) == dtype:
        return var
    return writer.emit(relax.op.astype(var, dtype), f"{var.name}_wide")


def _along(
    call: Any, values: Mapping[Any, Any], sites: Mapping[Any, _Site]
) -> tuple[Any, Any] | None:
    """Return the result of attention and its gradient, if a call sums their product."""
    if op_name(call) != "sum" or not call.attrs.keepdims or call.attrs.axis is None:
        return None
    product: Any = values.get(call.args[0])
    last = len(call.args[0].ty.shape) - 1
    if op_name(product) != "multiply" or [int(a) % (last + 1) for a in call.attrs.axis] != [last]:
        return None
    for grad, weights in (product.args[:], product.args[::-1]):
        site = sites.get(weights) if isinstance(weights, ir.Var) else None
        if site is None:
            continue
        producer: Any = values.get(grad)
        if op_name(producer) == "astype":
            producer = values.get(producer.args[0])
        mixed = values[site.mixed]
        if op_name(producer) == "matmul" and _transposed(producer.args[1], mixed.args[1], values):
            same = known_shape(producer.args[0].ty) == known_shape(site.mixed.ty)
            return (producer.args[0], site.mixed) if same else None
    return None


def _transposed(first: Any, other: Any, values: Mapping[Any, Any]) -> bool:
    """Return whether a value is another value with its last two dims swapped."""
    for a, b in ((first, other), (other, first)):
        value: Any = values.get(a)
        if op_name(value) == "permute_dims" and value.args[0].same_as(b):
            ndim = len(b.ty.shape)
            swapped = [*range(ndim - 2), ndim - 1, ndim - 2]
            axes = value.attrs.axes
            return [int(x) for x in axes] == swapped if axes is not None else ndim == 2
    return False
