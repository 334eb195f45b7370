# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Random ops that models hold more seldom: kernels of their own, windows, scatters, creation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op as R

from tests.campaign.campaign_writer import EXACT_BOUNDS, NORM_DTYPES, Item, Skip, Writer


def _twice_plus_one(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda *i: x(*i) + x(*i) + tirx.const(1, x.dtype), "twice")


def _backwards(x: te.Tensor) -> te.Tensor:
    last = x.shape[-1] - 1
    return te.compute(x.shape, lambda *i: x(*i[:-1], last - i[-1]), "backwards")


def _swapped(x: te.Tensor) -> te.Tensor:
    shape = (*x.shape[:-2], x.shape[-1], x.shape[-2])
    return te.compute(shape, lambda *i: x(*i[:-2], i[-1], i[-2]), "swapped")


def _row_sums(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, x.shape[-1]), "k")
    return te.compute(x.shape[:-1], lambda *i: te.sum(x(*i, k), axis=k), "row_sums")


def _row_peaks(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, x.shape[-1]), "k")
    return te.compute(x.shape[:-1], lambda *i: te.max(x(*i, k), axis=k), "row_peaks")


def _centred(x: te.Tensor) -> te.Tensor:
    """Two blocks: row sums, then what they are subtracted from."""
    sums = _row_sums(x)
    return te.compute(x.shape, lambda *i: x(*i) - sums(*i[:-1]), "centred")


def _product(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, x.shape[1]), "k")
    shape = (x.shape[0], y.shape[1])
    return te.compute(shape, lambda i, j: te.sum(x(i, k) * y(k, j), axis=k), "product")


def kernel(w: Writer) -> Item:
    """A call of a PrimFunc of the module's own: a map, a view, a reduction, a product."""
    kind = w.draw(0, 6)
    if kind == 6:
        x = w.pick(lambda i: len(i.shape) == 2)
        y = w.pick(lambda i: len(i.shape) == 2 and i.shape[0] == x.shape[1])
        created = w.builder.call_te(_product, x.var, y.var)
        return w.emit(created, [x, y], x.bound * y.bound * x.shape[1])
    x = w.pick(lambda i: len(i.shape) >= 2)
    if kind == 4 and w.dtype == "float64":
        raise Skip  # TVMScript cannot read the least float64 back
    width = x.shape[-1]
    function, bound = [
        (_twice_plus_one, 2 * x.bound + 1),
        (_backwards, x.bound),
        (_swapped, x.bound),
        (_row_sums, x.bound * width),
        (_row_peaks, x.bound),
        (_centred, x.bound * (width + 1)),
    ][kind]
    w.guard(x.shape, bound)
    return w.emit(w.builder.call_te(function, x.var), [x], bound)


def _of_rank(w: Writer, rank: int) -> Item:
    matches = [i for i in w.pool if len(i.shape) == rank and i.dtype == w.dtype and i.exact]
    if matches:
        return w.one_of(matches)
    x = w.pick(lambda i: 2 <= len(i.shape) < rank and i.exact)
    lead = [1] * (rank - len(x.shape))
    return w.emit(R.reshape(x.var, lead + list(x.shape)), [x], x.bound)


def convolution(w: Writer) -> Item:
    """conv1d, conv2d with dilation and groups, conv2d_transpose."""
    kind = w.draw(0, 2)
    x = _of_rank(w, 3 if kind == 0 else 4)
    c, k = x.shape[1], w.one_of([1, 2, 3])
    dilation = w.one_of([1, 1, 2]) if kind < 2 else 1
    padding = w.draw(0, 1)
    if min(x.shape[2:]) + 2 * padding < (k - 1) * dilation + 1:
        raise Skip
    strides = w.one_of([1, 1, 2])
    groups = w.one_of([g for g in (1, 2, c) if c % g == 0]) if kind < 2 else 1
    outs = w.one_of([1, 2, 4])
    if kind == 0:
        weight = w.constant(-2, 2, (groups * outs, c // groups, k))
        call = R.nn.conv1d(x.var, weight, strides, padding, dilation, groups)
    elif kind == 1:
        weight = w.constant(-2, 2, (groups * outs, c // groups, k, k))
        call = R.nn.conv2d(x.var, weight, strides, padding, dilation, groups)
    else:
        weight = w.constant(-2, 2, (c, outs, k, k))
        call = R.nn.conv2d_transpose(x.var, weight, strides, min(padding, k - 1))
    return w.emit(call, [x], x.bound * 2 * c * k * (k if kind else 1))


def pool1d(w: Writer) -> Item:
    """max_pool1d with dilation, avg_pool2d that counts padding, rows and columns unlike."""
    if w.chance(0.5):
        x = _of_rank(w, 3)
        k, dilation = w.one_of([1, 2, 3]), w.one_of([1, 1, 2])
        padding = w.draw(0, k // 2)
        if x.shape[2] + 2 * padding < (k - 1) * dilation + 1:
            raise Skip
        pads = (padding, padding)
        call = R.nn.max_pool1d(x.var, (k,), (w.one_of([1, 2]),), pads, (dilation,))
        return w.emit(call, [x], x.bound)
    x = _of_rank(w, 4)
    k = (w.one_of([1, 2, 3]), w.one_of([1, 2]))
    if any(n < m for n, m in zip(x.shape[2:], k)):
        raise Skip
    strides = (w.one_of([1, 2]), w.one_of([1, 2]))
    call = R.nn.avg_pool2d(x.var, k, strides, (k[0] // 2, 0), count_include_pad=w.chance(0.5))
    return w.emit(call, [x], x.bound, exact=False)


def attention(w: Writer) -> Item:
    """Attention of one tensor with itself, by heads; sometimes causal."""
    x = w.pick(lambda i: len(i.shape) == 4 and i.exact and i.bound <= 4)
    mask = w.one_of([None, None, "TopLeft"])
    call = R.nn.attention(x.var, x.var, x.var, causal_mask=mask)
    return w.emit(call, [x], x.bound, exact=False)


def einsum(w: Writer) -> Item:
    """Products with a summed, a shared and a free letter."""
    x = w.pick(lambda i: len(i.shape) == 2)
    y = w.pick(lambda i: len(i.shape) == 2 and i.shape[1] == x.shape[1])
    text, terms = w.one_of([("ik,jk->ij", x.shape[1]), ("ik,jk->kij", 1), ("ik,jk->j", 0)])
    count = terms or x.shape[0] * x.shape[1]
    return w.emit(R.einsum([x.var, y.var], text), [x, y], x.bound * y.bound * count)


def outer(w: Writer) -> Item:
    """All products of two vectors."""
    x, y = (w.pick(lambda i: len(i.shape) == 1) for _ in range(2))
    return w.emit(R.outer(x.var, y.var), [x, y], x.bound * y.bound)


def triangle(w: Writer) -> Item:
    """tril or triu."""
    x = w.pick(lambda i: len(i.shape) >= 2)
    return w.emit(w.one_of([R.tril, R.triu])(x.var, w.draw(-1, 1)), [x], x.bound)


def created(w: Writer) -> Item:
    """Tensors made from nothing or from another's shape: zeros, ones, full, arange."""
    x = w.pick()
    kind = w.draw(0, 4)
    if kind == 4:
        x = w.pick(lambda i: len(i.shape) >= 1)
        built = w.bind(R.arange(0, x.shape[-1], 1, w.dtype))
        return w.emit(R.add(x.var, built), [x], x.bound + x.shape[-1])
    like = [
        R.zeros_like(x.var),
        R.ones_like(x.var),
        R.full_like(x.var, w.scalar(2)),
        R.full(x.shape, w.scalar(3), w.dtype),
    ][kind]
    return w.emit(R.add(x.var, w.bind(like)), [x], x.bound + 3)


def scatter(w: Writer) -> Item:
    """scatter_elements that adds, or slice_scatter."""
    x = w.pick(lambda i: len(i.shape) >= 1)
    a = w.axis(x)
    if w.chance(0.5):
        begin = w.draw(0, x.shape[a] - 1)
        end = w.draw(begin + 1, x.shape[a])
        shape = (*x.shape[:a], end - begin, *x.shape[a + 1 :])
        same = [i for i in w.pool if i.shape == shape and i.dtype == w.dtype]
        source = w.one_of(same).var if same else w.constant(-2, 2, shape)
        bound = max([x.bound, 2, *(i.bound for i in same)])
        call = R.slice_scatter(x.var, source, begin, end, 1, a)
        return w.emit(call, [x, *same], bound)
    index = relax.const(w.rng.integers(0, x.shape[a], x.shape).astype("int64"), "int64")
    y = w.pick(lambda i: i.shape == x.shape)
    call = R.scatter_elements(x.var, index, y.var, a, "add")
    return w.emit(call, [x, y], x.bound + y.bound * x.shape[a])


def gather_nd(w: Writer) -> Item:
    """Elements or rows by constant coordinates."""
    x = w.pick(lambda i: len(i.shape) >= 1)
    depth, count = w.draw(1, min(2, len(x.shape))), w.draw(1, 5)
    sizes = [x.shape[d] for d in range(depth)]
    index = relax.const(w.rng.integers(0, sizes, (count, depth)).astype("int64"), "int64")
    return w.emit(R.gather_nd(x.var, index), [x], x.bound)


def smooth_function(w: Writer) -> Item:
    """exp, erf, cos, softplus, sqrt and division of tame values; std and instance_norm."""
    kind = w.draw(0, 5)
    if kind == 5:
        if w.dtype not in NORM_DTYPES:
            raise Skip
        x = w.smooth(3)
        ones = w.constant(1, 2, (x.shape[1],))
        axes = list(range(2, len(x.shape)))
        call = R.nn.instance_norm(x.var, ones, ones, channel_axis=1, axes=axes)
        return w.emit(call, [x], 20, exact=False)
    x = w.smooth(0)
    if kind == 0:
        if x.bound > 4:
            raise Skip
        return w.emit(R.exp(x.var), [x], math.exp(x.bound), exact=False)
    if kind == 1:
        return w.emit(w.one_of([R.erf, R.cos, R.sin])(x.var), [x], 1, exact=False)
    if kind == 2:
        near = w.bind(R.abs(x.var))
        return w.emit(R.sqrt(w.bind(R.add(near, w.scalar(1)))), [x], x.bound + 1, exact=False)
    if kind == 3:
        near = w.bind(R.add(w.bind(R.abs(x.var)), w.scalar(1)))
        return w.emit(R.divide(x.var, near), [x], 1, exact=False)
    return w.emit(R.nn.leakyrelu(x.var, 0.25), [x], x.bound, exact=False)


def mixed(w: Writer) -> Item:
    """A product in another float type between two casts."""
    x = w.pick(lambda i: i.exact and len(i.shape) >= 1)
    y = w.pick(lambda i: i.exact and len(i.shape) == 2 and i.shape[0] == x.shape[-1])
    bound = x.bound * y.bound * x.shape[-1]
    names = [n for n, most in EXACT_BOUNDS.items() if bound < most and n != w.dtype]
    name = w.one_of(names)
    a, b = (w.bind(R.astype(i.var, name)) for i in (x, y))
    return w.emit(R.astype(w.bind(R.matmul(a, b)), w.dtype), [x, y], bound)


def logical(w: Writer) -> Item:
    """Comparisons joined by logical ops, or integers by arithmetic ones, cast back."""
    x = w.exact()
    y = w.pick(lambda i: i.shape == x.shape and i.exact)
    if w.chance(0.5):
        a, b = w.bind(R.greater(x.var, w.scalar(0))), w.bind(R.less(y.var, w.scalar(1)))
        op = w.one_of([R.logical_and, R.logical_or, R.logical_xor])
        return w.emit(R.astype(w.bind(op(a, b)), w.dtype), [x, y], 1)
    if x.bound + y.bound > 2**20:
        raise Skip
    a, b = (w.bind(R.astype(i.var, "int32")) for i in (x, y))
    op = w.one_of([R.add, R.maximum, R.subtract])
    return w.emit(R.astype(w.bind(op(a, b)), w.dtype), [x, y], x.bound + y.bound)


def branch(w: Writer) -> Item:
    """An ``If`` on a computed condition: two or three ops on either side, one result or two."""
    if w.in_dataflow:
        raise Skip
    x = w.pick(lambda i: i.exact and i.bound * math.prod(i.shape) < w.exact_bound)
    y = w.pick(lambda i: i.exact and i.shape == x.shape)
    condition = w.bind(R.greater(w.bind(R.sum(x.var)), w.scalar(w.draw(-1, 1))))
    count = 2 if w.chance(0.3) else 1
    (single, high), (other, far) = (_arm(w, a, b, count) for a, b in ((x, y), (y, x)))
    bound = max(high, far)
    w.guard(x.shape, bound)
    value = w.bind(relax.If(condition, single, other))
    exact = bound < w.exact_bound
    if count == 1:
        return w.hold(value, bound, exact)
    fields = [w.bind(relax.TupleGetItem(value, i)) for i in range(count)]
    return [w.hold(field, bound, exact) for field in fields][w.draw(0, 1)]


def _arm(w: Writer, x: Item, y: Item, count: int) -> tuple[relax.SeqExpr, float]:
    """A branch, and the largest magnitude in it."""
    bindings = []

    def bound_to(name: str, value: Any) -> Any:
        typed = w.builder.normalize(value)
        var = relax.Var(f"{name}{len(w.pool)}", typed.ty)
        bindings.append(relax.VarBinding(var, typed))
        return var

    single, bound = bound_to("near", w.one_of([R.nn.relu, R.negative, R.abs])(x.var)), x.bound
    squares = [i for i in w.pool if i.exact and x.shape and i.shape == (x.shape[-1],) * 2]
    squares = [i for i in squares if i.dtype == w.dtype]
    if x.shape and w.chance(0.25):
        d = w.draw(0, len(x.shape) - 1)
        total, bound = bound_to("all", R.sum(single, axis=[d], keepdims=True)), bound * x.shape[d]
        single, bound = bound_to("spread", R.subtract(single, total)), bound + x.bound
    elif squares and w.chance(0.5):
        z = w.one_of(squares)
        single, bound = bound_to("turned", R.matmul(single, z.var)), bound * z.bound * x.shape[-1]
    two = bound_to("far", w.one_of([R.add, R.subtract, R.maximum])(single, y.var))
    result = two if count == 1 else relax.Tuple([two, single])
    return relax.SeqExpr([relax.BindingBlock(bindings)], result), bound + y.bound


OPS: tuple[tuple[float, Callable[[Writer], Item]], ...] = (
    (3, kernel),
    (2, convolution),
    (1, pool1d),
    (0.7, attention),
    (1, einsum),
    (0.5, outer),
    (0.7, triangle),
    (1, created),
    (1, scatter),
    (0.7, gather_nd),
    (1.2, smooth_function),
    (1, mixed),
    (0.7, logical),
    (4, branch),
)
"""Weights and ops of this file."""
